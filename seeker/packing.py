"""The batch of one update: flat packed arrays and offsets, as bytes, in micro-batches, and in slices for ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from seeker.advantages import Advantages
from seeker.codec import Buffer, CodecError, Packet, decode_packet, encode_packet
from seeker.errors import BatchError
from seeker.types import loss_mask, policy_versions, sampler_logprobs, token_ids

Layout = Literal["padded", "packed"]
Indices = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

_ARRAYS = {
    "token_ids": np.int32,
    "loss_mask": np.bool_,
    "sampler_logprobs": np.float32,
    "offsets": np.int64,
    "advantages": np.float32,
}


@dataclass(frozen=True, slots=True)
class Batch:
    """The trajectories of one update, one after another.

    Example: two trajectories of 3 and 2 tokens: ``token_ids == [5, 9, 2, 5, 7]``, ``offsets == [0, 3, 5]``,
    ``loss_mask == [F, T, T, F, T]``, ``advantages == [1.0, -1.0]``.
    """

    token_ids: NDArray[np.int32]  # [N]
    loss_mask: NDArray[np.bool_]  # [N]
    sampler_logprobs: NDArray[np.float32]  # [N], 0 where the policy did not write
    offsets: Indices  # [B+1]
    advantages: NDArray[np.float32]  # [B]
    step: int
    policy_version: int  # that sampled the trajectories
    temperature: float

    @property
    def num_trajectories(self) -> int:
        return len(self.advantages)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_trainable_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def lengths(self) -> Indices:  # [B]
        return np.diff(self.offsets)

    @property
    def trainable_lengths(self) -> Indices:
        """Trainable tokens of each trajectory. Shape [B]."""
        before = np.concatenate([[0], np.cumsum(self.loss_mask)])
        return np.diff(before[self.offsets])

    def check(self) -> None:
        """Raise `BatchError` when the arrays do not fit together or the first token of a trajectory is trainable."""
        n, b = self.num_tokens, self.num_trajectories
        if {len(self.loss_mask), len(self.sampler_logprobs)} != {n}:
            raise BatchError(f"step {self.step}: token_ids, loss_mask and sampler_logprobs differ in length")
        if len(self.offsets) != b + 1 or self.offsets[0] != 0 or self.offsets[-1] != n:
            raise BatchError(f"step {self.step}: offsets do not cover {n} tokens of {b} trajectories")
        if b and (self.lengths.min() < 1 or self.loss_mask[self.offsets[:-1]].any()):
            raise BatchError(f"step {self.step}: a trajectory is empty or starts with a token of the policy")
        if not (np.isfinite(self.advantages).all() and np.isfinite(self.sampler_logprobs[self.loss_mask]).all()):
            raise BatchError(f"step {self.step}: an advantage or a log-prob of the sampler is not finite")


def pack_batch(advantages: Advantages, *, step: int, policy_version: int, temperature: float) -> Batch:
    """The batch of one step, from the trajectories that are worth training on (there may be none)."""
    trajectories = advantages.trajectories
    for trajectory in trajectories:
        versions = policy_versions(trajectory)
        if versions and versions != (policy_version,):
            raise BatchError(
                f"group {trajectory.group_id!r}, trajectory {trajectory.index}: sampled by policy versions "
                f"{versions}, expected {policy_version} alone"
            )
    ids = [token_ids(trajectory) for trajectory in trajectories]
    batch = Batch(
        token_ids=_concatenate(ids, np.int32),
        loss_mask=_concatenate([loss_mask(trajectory) for trajectory in trajectories], np.bool_),
        sampler_logprobs=_concatenate([sampler_logprobs(trajectory) for trajectory in trajectories], np.float32),
        offsets=np.cumsum([0] + [len(part) for part in ids], dtype=np.int64),
        advantages=advantages.values,
        step=step,
        policy_version=policy_version,
        temperature=temperature,
    )
    batch.check()
    return batch


def encode_batch(batch: Batch) -> bytes:
    """The batch as bytes: the same batch always gives the same bytes."""
    meta = {"step": batch.step, "policy_version": batch.policy_version, "temperature": batch.temperature}
    return encode_packet(Packet("batch", meta, {name: getattr(batch, name) for name in _ARRAYS}))


def decode_batch(data: Buffer) -> Batch:
    """The batch in `data`; raises `BatchError` when the bytes are damaged."""
    try:
        packet = decode_packet(data, "batch")
        batch = Batch(**{name: packet.arrays[name] for name in _ARRAYS}, **packet.meta)
    except (CodecError, KeyError, TypeError) as error:
        raise BatchError(f"cannot read a batch: {error}; write it again from the step's trajectories") from error
    batch.check()
    return batch


def take(batch: Batch, indices: Indices) -> Batch:
    """The trajectories at `indices`, in that order, as a batch of their own."""
    picked = [slice(int(batch.offsets[index]), int(batch.offsets[index + 1])) for index in indices]
    return Batch(
        token_ids=_concatenate([batch.token_ids[part] for part in picked], np.int32),
        loss_mask=_concatenate([batch.loss_mask[part] for part in picked], np.bool_),
        sampler_logprobs=_concatenate([batch.sampler_logprobs[part] for part in picked], np.float32),
        offsets=np.cumsum([0] + [part.stop - part.start for part in picked], dtype=np.int64),
        advantages=batch.advantages[indices],
        step=batch.step,
        policy_version=batch.policy_version,
        temperature=batch.temperature,
    )


def micro_batches(lengths: Indices, max_tokens: int, layout: Layout = "padded") -> list[Indices]:
    """Trajectory indices by micro-batch: sorted by length (long first, ties by index) and cut at `max_tokens`.

    A padded micro-batch costs rows times the longest row, a packed one the sum of its lengths. A trajectory longer
    than the limit travels alone.
    """
    order = np.argsort(-lengths, kind="stable")
    cuts: list[Indices] = []
    start, cost = 0, 0
    for end, index in enumerate(order):
        if layout == "padded":
            cost = int(lengths[order[start]]) * (end - start + 1)
        else:
            cost += int(lengths[index])
        if cost > max_tokens and end > start:
            cuts.append(order[start:end])
            start, cost = end, int(lengths[index])
    return [*cuts, order[start:]] if len(order) else []


def slice_for_rank(batch: Batch, rank: int, world: int) -> Indices:
    """The trajectories that `rank` of `world` trains on: each goes, long first, to the rank with the fewest tokens.

    Those without a trainable token cost nothing, since no pass is made over them. The slices of all ranks are disjoint
    and cover the batch. Example: lengths (5, 3, 3), 2 ranks: [0] and [1, 2].
    """
    loads = [0] * world
    mine: list[int] = []
    costs = np.where(batch.trainable_lengths > 0, batch.lengths, 0)
    for index in np.argsort(-costs, kind="stable"):
        lightest = loads.index(min(loads))
        loads[lightest] += int(costs[index])
        if lightest == rank:
            mine.append(int(index))
    return np.array(sorted(mine), np.int64)


def _concatenate(parts: Sequence[NDArray[Scalar]], dtype: type[Scalar]) -> NDArray[Scalar]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
