"""Numpy arrays as objects.

1.  Numbers of every width and any shape, contiguous or not, come back without a change of type or order.
2.  The SDK makes bytes of truth values and refuses complex, text and object arrays, unless they are inside something.
3.  Arrays are patches of arrays, whatever their shapes and types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from flamepy.core import cache

from tests.cluster.conformance.test_values import there_and_back, together

np = pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def prefix(stock_client: None) -> Iterator[str]:
    yield "conformance-arrays/s"
    cache.delete_objects("conformance-arrays/*")


@pytest.mark.parametrize("kind", ["int8", "uint16", "int64", "float16", "float32", "float64"])
def test_array_types(prefix: str, kind: str) -> None:  # 1
    array = np.arange(12).reshape(3, 4).astype(kind)
    got = there_and_back(prefix, array)
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert np.array_equal(got, array)


@pytest.mark.parametrize(
    "array",
    [np.float32(3) * np.ones(()), np.zeros((0, 3)), np.arange(24).reshape(2, 3, 4)[:, ::2],
     np.arange(6).reshape(2, 3).T, np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(5)[::-1]],
    ids=["scalar", "empty", "strided", "transposed", "fortran", "reversed"],
)  # fmt: skip
def test_array_shapes(prefix: str, array: Any) -> None:  # 1
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


def test_arrays_as_patches(prefix: str) -> None:  # 3
    ref = cache.put_object(prefix, np.zeros(2))
    cache.patch_object(ref, np.ones(3, dtype=np.uint8))
    cache.patch_object(ref, np.arange(4).reshape(2, 2))
    base, patches = cache.get_object(ref, together)
    assert base.tolist() == [0.0, 0.0]
    assert (patches[0].tolist(), patches[0].dtype) == ([1, 1, 1], np.uint8)
    assert patches[1].tolist() == [[0, 1], [2, 3]]
