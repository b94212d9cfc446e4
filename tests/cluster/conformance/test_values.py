"""What an object may hold.

1.  Anything that cloudpickle takes, classes and functions of the caller included.
2.  Arrow tables, batches and arrays; pandas and polars frames; lazy frames as frames. Tables travel natively.
3.  Anything that `to_arrow` makes a table of is stored as that table.
4.  Tables can be empty, chunked, replaced; patches of one are counted and never read.
5.  Inside something else they are values like others, and so they may be patches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from flamepy.core import cache


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
    [None, True, 0, -(2**70), 1.5, "", "ä", b"", b"FLM", b"FLM\x01no array", bytes(1000), bytearray(b"x"),
     (1, [2, {3}]), {"a": {"b": None}}, Point(1, 2), complex(1, 2), range(3)],
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


TABLE = pa.table({"a": pa.array([1, None, 3], pa.int32()), "b": ["x", "y", None], "c": [[1.0], [], [2.0, 3.0]]})


@pytest.mark.parametrize(
    "value",
    [TABLE, TABLE.slice(3), TABLE.replace_schema_metadata({"own": "kept"}), TABLE.to_batches()[0],
     pa.array([1, None, 3]), pa.concat_tables([TABLE, TABLE.slice(1)])],
    ids=["table", "empty", "metadata", "batch", "array", "chunks"],
)  # fmt: skip
def test_arrow(prefix: str, value: Any) -> None:  # 2, 4
    got = there_and_back(prefix, value)
    assert type(got) is type(value)
    assert got.equals(value)
    if isinstance(value, pa.Table):
        assert got.schema.equals(value.schema, check_metadata=True)


def test_pandas(prefix: str) -> None:  # 2
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None]}, index=[5, 9])
    pandas.testing.assert_frame_equal(there_and_back(prefix, frame), frame)


def test_polars(prefix: str) -> None:  # 2
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1, 2], "b": ["x", None], "c": [[1], []]})
    assert there_and_back(prefix, frame).equals(frame)
    got = there_and_back(prefix, frame.lazy().filter(polars.col("a") > 1))
    assert got.to_dicts() == [{"a": 2, "b": None, "c": []}]


def test_what_makes_a_table(prefix: str) -> None:  # 3
    class Dataset:
        def to_arrow(self) -> pa.Table:
            return TABLE

    assert there_and_back(prefix, Dataset()).equals(TABLE)


def together(base: Any, patches: list[Any]) -> tuple[Any, list[Any]]:
    return base, patches


def test_tables_take_no_patches(prefix: str) -> None:  # 4
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


def test_tables_inside(prefix: str) -> None:  # 5
    (table,) = there_and_back(prefix, (TABLE,))
    assert table.equals(TABLE)
    ref = cache.put_object(prefix, "base")
    cache.patch_object(ref, TABLE)
    base, patches = cache.get_object(ref, together)
    assert base == "base"
    assert patches[0].equals(TABLE)
