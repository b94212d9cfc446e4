"""Trajectories as bytes.

1. Every field comes back as it was, log-probs bit for bit.
2. The same trajectories give the same bytes.
3. Bytes of something else, and damaged ones that cannot be read, are refused with a clear error.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seeker.errors import RunDirectoryError
from seeker.trajectories import decode_trajectories, encode_trajectories
from seeker.types import Author, Search, Span, StopReason, Trajectory

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = hnp.arrays(np.int32, st.integers(0, 6), elements=st.integers(0, 200_000))


@st.composite
def spans(draw: st.DrawFn) -> Span:
    author = draw(st.sampled_from(Author))
    ids = draw(IDS)
    if author is not Author.POLICY:
        return Span(author, ids)
    logprobs = draw(hnp.arrays(np.float32, len(ids), elements=st.floats(-50, 0, width=32)))
    return Span(author, ids, logprobs, draw(st.integers(0, 10**6)))


TRAJECTORIES = st.builds(
    Trajectory,
    question_id=TEXT,
    group_id=TEXT,
    index=st.integers(0, 100),
    spans=st.lists(spans(), max_size=5).map(tuple),
    stop_reason=st.sampled_from(StopReason),
    num_turns=st.integers(0, 9),
    num_malformed=st.integers(0, 9),
    num_forged_observations=st.integers(0, 9),
    searches=st.lists(st.builds(Search, TEXT, st.lists(TEXT, max_size=3).map(tuple)), max_size=3).map(tuple),
    answer=st.none() | TEXT,
    reward=st.floats(-2, 2),
    reward_terms=st.dictionaries(TEXT, st.floats(-2, 2), max_size=3),
)


def assert_equal(left: Trajectory, right: Trajectory) -> None:
    for name in Trajectory.__dataclass_fields__:
        if name != "spans":
            assert getattr(left, name) == getattr(right, name), name
    assert list(left.reward_terms) == list(right.reward_terms)
    assert len(left.spans) == len(right.spans)
    for one, other in zip(left.spans, right.spans, strict=True):
        assert (one.author, one.policy_version) == (other.author, other.policy_version)
        assert one.token_ids.dtype == other.token_ids.dtype == np.int32
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert (one.logprobs is None) == (other.logprobs is None)
        if one.logprobs is not None and other.logprobs is not None:
            assert one.logprobs.tobytes() == other.logprobs.tobytes()


@settings(max_examples=80, deadline=None)
@given(st.lists(TRAJECTORIES, max_size=4))
def test_round_trip_and_same_bytes(trajectories: list[Trajectory]) -> None:
    data = encode_trajectories(trajectories)
    back = decode_trajectories(data)
    assert len(back) == len(trajectories)
    for one, other in zip(trajectories, back, strict=True):
        assert_equal(one, other)
    assert encode_trajectories(back) == data


def test_changed_logprob_changes_the_bytes() -> None:
    span = Span(Author.POLICY, np.asarray([1], np.int32), np.asarray([-0.5], np.float32), 0)
    other = Span(Author.POLICY, np.asarray([1], np.int32), np.asarray([-0.25], np.float32), 0)
    rows = [Trajectory("q", "g", 0, (each,), StopReason.ENDED, 1, 1, 0) for each in (span, other)]
    assert encode_trajectories(rows[:1]) != encode_trajectories(rows[1:])


def test_other_bytes_are_refused() -> None:
    with pytest.raises(RunDirectoryError, match="not a file of trajectories"):
        decode_trajectories(b"PAR1 but not really")


def test_damaged_bytes_are_refused_or_read() -> None:
    span = Span(Author.POLICY, np.arange(300, dtype=np.int32), np.linspace(-9, 0, 300, dtype=np.float32), 0)
    rows = [Trajectory(f"q{at}", "g", at, (span,), StopReason.ENDED, 1, 1, 0) for at in range(8)]
    data = encode_trajectories(rows)
    refused = 0
    for place in range(0, len(data), 29):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        try:
            decode_trajectories(bytes(damaged))
        except RunDirectoryError:
            refused += 1
    assert refused > 10
