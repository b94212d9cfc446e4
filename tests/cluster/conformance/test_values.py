"""What an object may hold (flame-0.6.md 1.4, 3.2).

1.  Anything that cloudpickle takes, classes and functions of the caller included.
2.  Numpy arrays of numbers and of any shape, contiguous or not, without a change of type or order. The SDK makes
    bytes of truth values and refuses complex, text and object arrays, unless they are inside something else.
3.  Arrow tables, batches and arrays; pandas and polars frames; lazy frames as frames. Tables travel natively.
4.  Anything that `to_arrow` makes a table of is stored as that table.
5.  Tables can be empty, chunked, replaced; patches of one are counted and never read.
6.  Inside something else they are values like others, and arrays may be patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from flamepy.core import cache

np = pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def prefix(stock_client: None) -> Iterator[str]:
    yield "conformance-values/s"
    cache.delete_objects("conformance-values/*")


def there_and_back(prefix: str, value: Any) -> Any:
    ref = cache.put_object(prefix, value)
    got = cache.get_object(ref)
    cache.delete_objects(ref.key)
    return got


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(2**70), 1.5, "", "ä", b"", b"FLM", b"FLM\x01no array", bytes(1000), bytearray(b"x"), (1, [2, {3}]),
     {"a": {"b": None}}, Point(1, 2), complex(1, 2), range(3)],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_plain_values(prefix: str, value: Any) -> None:  # 1
    got = there_and_back(prefix, value)
    assert (type(got), got) == (type(value), value)


def test_functions_and_classes(prefix: str) -> None:  # 1
    offset = 40

    class Local:
        def answer(self) -> int:
            return offset + 2

    assert there_and_back(prefix, lambda value: value + offset)(2) == 42
    assert there_and_back(prefix, Local)().answer() == 42
    assert there_and_back(prefix, Local()).answer() == 42


@pytest.mark.parametrize("kind", ["int8", "uint16", "int64", "float16", "float32", "float64"])
def test_array_types(prefix: str, kind: str) -> None:  # 2
    array = np.arange(12).reshape(3, 4).astype(kind)
    got = there_and_back(prefix, array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert np.array_equal(got, array)


@pytest.mark.parametrize(
    "array",
    [np.float32(3) * np.ones(()), np.zeros((0, 3)), np.arange(24).reshape(2, 3, 4)[:, ::2], np.arange(6).reshape(2, 3).T,
     np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(5)[::-1]],
    ids=["scalar", "empty", "strided", "transposed", "fortran", "reversed"],
)  # fmt: skip
def test_array_shapes(prefix: str, array: Any) -> None:  # 2
    got = there_and_back(prefix, array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert np.array_equal(got, array)


def test_arrays_that_are_no_tensors(prefix: str) -> None:  # 2
    truths = np.array([True, False])
    assert there_and_back(prefix, truths).tolist() == [1, 0]
    for array in (np.array([1j]), np.array(["text"]), np.array([{"a": 1}, None], dtype=object)):
        with pytest.raises(pa.ArrowNotImplementedError):
            cache.put_object(prefix, array)
        (got,) = there_and_back(prefix, (array,))
        assert got.tolist() == array.tolist()


TABLE = pa.table({"a": pa.array([1, None, 3], pa.int32()), "b": ["x", "y", None], "c": [[1.0], [], [2.0, 3.0]]})


@pytest.mark.parametrize(
    "value",
    [TABLE, TABLE.slice(3), TABLE.replace_schema_metadata({"own": "kept"}), TABLE.to_batches()[0], pa.array([1, None, 3]),
     pa.concat_tables([TABLE, TABLE.slice(1)])],
    ids=["table", "empty", "metadata", "batch", "array", "chunks"],
)  # fmt: skip
def test_arrow(prefix: str, value: Any) -> None:  # 3, 5
    got = there_and_back(prefix, value)
    assert type(got) is type(value)
    assert got.equals(value)
    if isinstance(value, pa.Table):
        assert got.schema.equals(value.schema, check_metadata=True)


def test_pandas(prefix: str) -> None:  # 3
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None]}, index=[5, 9])
    pandas.testing.assert_frame_equal(there_and_back(prefix, frame), frame)


def test_polars(prefix: str) -> None:  # 3
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1, 2], "b": ["x", None], "c": [[1], []]})
    assert there_and_back(prefix, frame).equals(frame)
    got = there_and_back(prefix, frame.lazy().filter(polars.col("a") > 1))
    assert got.to_dicts() == [{"a": 2, "b": None, "c": []}]


def test_what_makes_a_table(prefix: str) -> None:  # 4
    class Dataset:
        def to_arrow(self) -> pa.Table:
            return TABLE

    assert there_and_back(prefix, Dataset()).equals(TABLE)


def together(base: Any, patches: list[Any]) -> tuple[Any, list[Any]]:
    return base, patches


def test_tables_take_no_patches(prefix: str) -> None:  # 5
    ref = cache.put_object(prefix, TABLE)
    assert cache.patch_object(ref, "p").version == 2
    base, patches = cache.get_object(ref, together)
    assert base.equals(TABLE)
    assert patches == []
    assert cache.update_object(ref, TABLE.slice(1)).version == 3
    assert cache.get_object(ref).equals(TABLE.slice(1))
    assert cache.get_object(ref).num_rows == 2  # not modified
    assert cache.update_object(ref, "now a text").version == 4
    assert cache.get_object(ref) == "now a text"


def test_arrays_and_tables_inside(prefix: str) -> None:  # 6
    array, table = there_and_back(prefix, (np.arange(3), TABLE))
    assert array.tolist() == [0, 1, 2]
    assert table.equals(TABLE)
    ref = cache.put_object(prefix, np.zeros(2))
    cache.patch_object(ref, np.ones(3, dtype=np.uint8))
    cache.patch_object(ref, TABLE)
    base, patches = cache.get_object(ref, together)
    assert base.tolist() == [0.0, 0.0]
    assert patches[0].tolist() == [1, 1, 1]
    assert patches[0].dtype == np.uint8
    assert patches[1].equals(TABLE)
