"""Named arrays as bytes: one self-describing container for batches, anchors, deltas.

Layout: magic (8 bytes) · digest of all that follows (16) · length of the header (8, little endian) · header (JSON) ·
padding to 64 · arrays, each starting at a multiple of 64. The same arrays always give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

MAGIC = b"SEEKER\x00\x01"
_DIGEST_START, _LENGTH_START, _HEADER_START = 8, 24, 32
_ALIGNMENT = 64

Buffer = bytes | bytearray | memoryview


class CodecError(ValueError):
    """Bytes that are no container, or a damaged one."""


@dataclass(frozen=True, slots=True)
class Packet:
    """What a container holds.

    Example: ``Packet("batch", {"step": 3}, {"token_ids": array([5, 9], int32)})``.
    """

    kind: str
    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def encode_packet(packet: Packet) -> bytes:
    """The packet's bytes; deterministic, arrays keep dtype and shape."""
    arrays = {name: np.ascontiguousarray(array) for name, array in packet.arrays.items()}
    header = json.dumps(
        {"kind": packet.kind, "meta": packet.meta, "arrays": _describe(arrays)},
        sort_keys=True,
        separators=(",", ":"),
    ).encode()
    start = _aligned(_HEADER_START + len(header))
    entries = _describe(arrays)
    data = bytearray(start + sum(_aligned(array.nbytes) for array in arrays.values()))
    data[:_DIGEST_START] = MAGIC
    data[_LENGTH_START:_HEADER_START] = len(header).to_bytes(8, "little")
    data[_HEADER_START : _HEADER_START + len(header)] = header
    for name, array in arrays.items():
        begin = start + entries[name]["offset"]
        data[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8).data
    data[_DIGEST_START:_LENGTH_START] = xxhash.xxh3_128_digest(memoryview(data)[_LENGTH_START:])
    return bytes(data)


def decode_packet(data: Buffer, kind: str) -> Packet:
    """The packet in `data`, whose arrays are read-only views of it; raises `CodecError` when it is damaged."""
    view = memoryview(data).toreadonly()
    if view.nbytes < _HEADER_START or bytes(view[:_DIGEST_START]) != MAGIC:
        raise CodecError(f"expected a {kind} of Seeker, found {view.nbytes} bytes that start otherwise")
    if xxhash.xxh3_128_digest(view[_LENGTH_START:]) != bytes(view[_DIGEST_START:_LENGTH_START]):
        raise CodecError(f"the {kind} is damaged: its digest does not fit its {view.nbytes} bytes")
    length = int.from_bytes(view[_LENGTH_START:_HEADER_START], "little")
    header = cast(dict[str, Any], json.loads(bytes(view[_HEADER_START : _HEADER_START + length])))
    if header["kind"] != kind:
        raise CodecError(f"expected a {kind}, found a {header['kind']}")
    body = view[_aligned(_HEADER_START + length) :]
    return Packet(kind, header["meta"], {name: _array(body, entry) for name, entry in header["arrays"].items()})


def _describe(arrays: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    offset = 0
    for name, array in arrays.items():
        entries[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "offset": offset}
        offset += _aligned(array.nbytes)
    return entries


def _array(body: memoryview, entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:  # an empty array at the very end has no byte to point at
        return np.empty(shape, dtype)
    return np.frombuffer(body, dtype, count, entry["offset"]).reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
