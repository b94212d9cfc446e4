"""Batches.

1.  Packing keeps every token, mask and log-prob of the trajectories, in order.
2.  Encoding is deterministic and lossless; any changed byte is recognised.
3.  Micro-batches hold every trajectory once, long first, within the token limit unless one alone exceeds it.
4.  The slices of all ranks are disjoint, cover the batch, and differ by at most the longest trajectory.
5.  A batch of another policy version, or one that starts with a trainable token, is refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.advantages import Advantages, group_advantages
from seeker.config import ObjectiveConfig
from seeker.errors import BatchError
from seeker.packing import Batch, decode_batch, encode_batch, micro_batches, pack_batch, slice_for_rank, take
from seeker.types import Author, loss_mask, sampler_logprobs, token_ids
from tests.learning.builders import make_batch, make_group, make_trajectory

lengths_lists = st.lists(st.integers(1, 50), min_size=1, max_size=30).map(lambda values: np.array(values, np.int64))


def pack(rewards: list[float], version: int = 0) -> tuple[Advantages, Batch]:
    advantages = group_advantages(make_group("a", rewards, version=version), ObjectiveConfig())
    return advantages, pack_batch(advantages, step=version, policy_version=version, temperature=0.7)


def test_packing_keeps_everything() -> None:
    advantages, batch = pack([1, 0, 0, 1])
    for index, trajectory in enumerate(advantages.trajectories):
        part = slice(batch.offsets[index], batch.offsets[index + 1])
        np.testing.assert_array_equal(batch.token_ids[part], token_ids(trajectory))
        np.testing.assert_array_equal(batch.loss_mask[part], loss_mask(trajectory))
        np.testing.assert_array_equal(batch.sampler_logprobs[part], sampler_logprobs(trajectory))
    policy_tokens = sum(
        len(span.token_ids) for t in advantages.trajectories for span in t.spans if span.author is Author.POLICY
    )
    assert batch.num_trainable_tokens == policy_tokens == batch.trainable_lengths.sum()
    np.testing.assert_array_equal(batch.advantages, advantages.values)


@given(st.integers(0, 8), st.integers(0, 1000))
def test_bytes_round_trip(num_trajectories: int, seed: int) -> None:
    batch = make_batch(num_trajectories, seed=seed) if num_trajectories else pack([1, 1])[1]
    data = encode_batch(batch)
    back = decode_batch(data)
    assert encode_batch(back) == data == encode_batch(batch)
    for name in ("token_ids", "loss_mask", "sampler_logprobs", "offsets", "advantages"):
        np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))
        assert getattr(back, name).dtype == getattr(batch, name).dtype
    assert (back.step, back.policy_version, back.temperature) == (batch.step, batch.policy_version, batch.temperature)


@given(st.data())
def test_damage_is_recognised(data: st.DataObject) -> None:
    whole = encode_batch(make_batch(3))
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BatchError):
        decode_batch(bytes(flipped))
    with pytest.raises(BatchError):
        decode_batch(whole[:place])


@given(lengths_lists, st.integers(1, 200), st.sampled_from(["padded", "packed"]))
def test_micro_batches(lengths: np.ndarray, max_tokens: int, layout: str) -> None:
    parts = micro_batches(lengths, max_tokens, layout)  # type: ignore[arg-type]
    order = np.concatenate(parts)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert (np.diff(lengths[order]) <= 0).all()
    for part in parts:
        cost = len(part) * lengths[part].max() if layout == "padded" else lengths[part].sum()
        assert cost <= max_tokens or len(part) == 1


def test_micro_batches_are_filled() -> None:
    parts = micro_batches(np.array([4, 4, 4, 2, 2], np.int64), 8, "padded")
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    parts = micro_batches(np.array([4, 4, 4, 2, 2], np.int64), 8, "packed")
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3, 4]]


@given(st.integers(1, 20), st.integers(1, 7), st.integers(0, 99))
def test_slices_cover_the_batch(num_trajectories: int, world: int, seed: int) -> None:
    batch = make_batch(num_trajectories, seed=seed)
    slices = [slice_for_rank(batch, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(slices).tolist()) == list(range(num_trajectories))
    loads = [int(batch.lengths[part].sum()) for part in slices]
    assert max(loads) - min(loads) <= batch.lengths.max()


def test_taking_a_part() -> None:
    batch = make_batch(5)
    part = take(batch, np.array([3, 1], np.int64))
    np.testing.assert_array_equal(
        part.token_ids[: batch.lengths[3]], batch.token_ids[batch.offsets[3] : batch.offsets[4]]
    )
    np.testing.assert_array_equal(part.advantages, batch.advantages[[3, 1]])
    part.check()


def test_another_policy_version_is_refused() -> None:
    advantages, _ = pack([1, 0], version=2)
    with pytest.raises(BatchError, match=r"000000/a.*expected 3"):
        pack_batch(advantages, step=3, policy_version=3, temperature=1.0)


def test_arrays_that_do_not_fit_are_refused() -> None:
    batch = make_batch(3)
    mask = batch.loss_mask.copy()
    mask[batch.offsets[1]] = True
    wrong = [
        replace(batch, loss_mask=mask),
        replace(batch, loss_mask=batch.loss_mask[:-1]),
        replace(batch, offsets=batch.offsets[:-1]),
        replace(batch, advantages=np.full(3, np.nan, np.float32)),
        replace(batch, sampler_logprobs=np.full(batch.num_tokens, -np.inf, np.float32)),
    ]
    for candidate in wrong:
        with pytest.raises(BatchError):
            candidate.check()


def test_a_trajectory_without_a_prompt_is_refused() -> None:
    headless = make_trajectory("a", 0)
    headless = replace(headless, spans=headless.spans[1:])
    advantages = Advantages((headless,), np.ones(1, np.float32), 1, 0)
    with pytest.raises(BatchError, match="starts with a token of the policy"):
        pack_batch(advantages, step=0, policy_version=0, temperature=1.0)
