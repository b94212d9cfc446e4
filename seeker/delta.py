"""What changed between two policy versions, losslessly: positions and new bits, or a weight whole.

Works on flat arrays of bf16 bits (one shard). Bits are compared as integers, so NaNs with their payloads and both
zeros survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seeker.codec import Buffer, CodecError, Packet, decode_packet, encode_packet
from seeker.errors import PublishError
from seeker.exports import Bits

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delta:
    """The change of one shard.

    Example: ``[1, 2, 3, 4]`` to ``[1, 9, 7, 8]`` with the weights at 0 to 2 and 2 to 4: the second one changed by more
    than a third: ``positions == [1], values == [9], whole == [[2, 4]], whole_values == [7, 8]``, ``num_changed == 3``.
    """

    num_values: int  # of the shard
    num_changed: int
    positions: Positions  # ascending, of weights that changed a little
    values: Bits  # the new bits there
    whole: Positions  # [S, 2] start and stop of weights that changed much
    whole_values: Bits  # their new bits, one after another


def diff_values(old: Bits, new: Bits, pieces: Sequence[tuple[int, int]], whole_share: float) -> Delta:
    """The change from `old` to `new`; a piece that changed by more than `whole_share` goes whole."""
    if old.shape != new.shape:
        raise ValueError(f"a delta needs arrays of one shape, found {old.shape} and {new.shape}")
    positions: list[Positions] = []
    whole: list[tuple[int, int]] = []
    num_changed = 0
    for start, stop in pieces:
        changed = np.flatnonzero(old[start:stop] != new[start:stop])
        num_changed += len(changed)
        if len(changed) > whole_share * (stop - start):
            whole.append((start, stop))
        else:
            positions.append(changed + start)
    flat = np.concatenate(positions) if positions else np.zeros(0, np.int64)
    parts = [new[start:stop] for start, stop in whole]
    return Delta(
        num_values=len(new),
        num_changed=num_changed,
        positions=flat,
        values=new[flat],
        whole=np.array(whole, np.int64).reshape(-1, 2),
        whole_values=np.concatenate(parts) if parts else np.zeros(0, np.uint16),
    )


def apply_delta_(values: Bits, delta: Delta) -> None:
    """Write the delta's bits into `values` in place."""
    if len(values) != delta.num_values:
        raise PublishError(f"a delta over {delta.num_values} values was given {len(values)}; it is another shard's")
    values[delta.positions] = delta.values
    done = 0
    for start, stop in delta.whole.tolist():
        values[start:stop] = delta.whole_values[done : done + stop - start]
        done += stop - start


def encode_delta(delta: Delta) -> bytes:
    """The delta as bytes: gaps between positions in the smallest integers that hold them."""
    gaps = np.diff(delta.positions, prepend=0)
    width = np.min_scalar_type(int(gaps.max())) if len(gaps) else np.dtype(np.uint8)
    arrays = {
        "gaps": gaps.astype(width),
        "values": delta.values,
        "whole": delta.whole,
        "whole_values": delta.whole_values,
    }
    meta = {"num_values": delta.num_values, "num_changed": delta.num_changed}
    return encode_packet(Packet("delta", meta, dict(arrays)))


def decode_delta(data: Buffer) -> Delta:
    """The delta in `data`; raises `PublishError` when the bytes are damaged or do not fit together."""
    try:
        packet = decode_packet(data, "delta")
    except CodecError as error:
        raise PublishError(str(error)) from error
    arrays = packet.arrays
    delta = Delta(
        num_values=packet.meta["num_values"],
        num_changed=packet.meta["num_changed"],
        positions=np.cumsum(arrays["gaps"], dtype=np.int64),
        values=arrays["values"],
        whole=arrays["whole"],
        whole_values=arrays["whole_values"],
    )
    _check(delta)
    return delta


def encode_anchor(values: Bits) -> bytes:
    """One shard's values whole."""
    return encode_packet(Packet("anchor", {}, {"values": values}))


def decode_anchor(data: Buffer) -> Bits:
    """The values in `data`, a read-only view; raises `PublishError` when the bytes are damaged."""
    try:
        return decode_packet(data, "anchor").arrays["values"]
    except CodecError as error:
        raise PublishError(str(error)) from error


def _check(delta: Delta) -> None:
    sizes = delta.whole[:, 1] - delta.whole[:, 0]
    inside = (
        (not len(delta.positions) or int(delta.positions[-1]) < delta.num_values)
        and bool((sizes > 0).all())
        and (not len(delta.whole) or (int(delta.whole.min()) >= 0 and int(delta.whole.max()) <= delta.num_values))
    )
    if not inside or len(delta.positions) != len(delta.values) or int(sizes.sum()) != len(delta.whole_values):
        raise PublishError(f"a delta over {delta.num_values} values names positions or sizes that do not fit it")
