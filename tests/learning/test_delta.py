"""Deltas.

1.  Applying a difference to the old values gives the new ones bit for bit, NaN payloads and empty arrays included.
2.  Encoding is deterministic and lossless; any changed byte or cut is recognised as `PublishError`.
3.  A weight goes whole when more than the share of it changed, else by positions.
4.  A delta of another shard, or one whose positions do not fit, is refused.
5.  A layout flattens and unflattens an export, cuts it into shards that cover it, and its digest is the export's.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seeker.codec import Packet, encode_packet
from seeker.delta import Delta, apply_delta_, decode_anchor, decode_delta, diff_values, encode_anchor, encode_delta
from seeker.errors import PolicyError, PublishError
from seeker.exports import ExportLayout, export_digest

THIRD = 1 / 3
bits = hnp.arrays(np.uint16, st.integers(0, 60))


@st.composite
def changes(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Old and new values (few, many or no changes) and the bounds of the weights among them."""
    old = draw(bits)
    new = np.where(draw(hnp.arrays(bool, old.shape)), draw(hnp.arrays(np.uint16, old.shape)), old)
    cuts = sorted(draw(st.sets(st.integers(1, max(len(old) - 1, 1)), max_size=6)))
    bounds = sorted({0, *[cut for cut in cuts if cut < len(old)], len(old)})
    return old, new, list(pairwise(bounds))


@given(changes(), st.sampled_from([0.0, THIRD, 1.0]))
def test_round_trip(change: tuple[np.ndarray, np.ndarray, list[tuple[int, int]]], share: float) -> None:
    old, new, pieces = change
    delta = diff_values(old, new, pieces, share)
    data = encode_delta(delta)
    assert encode_delta(decode_delta(data)) == data
    values = old.copy()
    apply_delta_(values, decode_delta(data))
    np.testing.assert_array_equal(values, new)
    assert delta.num_changed == np.count_nonzero(old != new)


def test_nan_payloads_and_signed_zeros_count_as_changes() -> None:
    old = np.array([0x7FC0, 0x7FC1, 0x0000, 0x3F80], np.uint16)
    new = np.array([0x7FC1, 0x7FC1, 0x8000, 0x3F80], np.uint16)
    delta = diff_values(old, new, [(0, 4)], 1.0)
    assert delta.positions.tolist() == [0, 2]
    assert delta.values.tolist() == [0x7FC1, 0x8000]


def test_much_changed_weights_go_whole() -> None:
    old = np.arange(12, dtype=np.uint16)
    new = old.copy()
    new[[0, 3, 4, 9]] += 100
    delta = diff_values(old, new, [(0, 3), (3, 6), (6, 12)], THIRD)  # changed: 1/3, 2/3, 1/6
    assert delta.whole.tolist() == [[3, 6]]
    assert delta.whole_values.tolist() == [103, 104, 5]
    assert delta.positions.tolist() == [0, 9]


def test_sparse_changes_cost_little() -> None:
    old = np.zeros(1_000_000, np.uint16)
    new = old.copy()
    new[::100] = 1
    assert len(encode_delta(diff_values(old, new, [(0, len(old))], THIRD))) < 10_000 * 3 + 1000


def test_far_apart_positions_survive() -> None:
    old = np.zeros(200_000, np.uint16)
    new = old.copy()
    new[[5, 199_999]] = 7
    delta = decode_delta(encode_delta(diff_values(old, new, [(0, len(old))], THIRD)))
    assert delta.positions.tolist() == [5, 199_999]


@given(st.data())
def test_damage_is_recognised(data: st.DataObject) -> None:
    old = np.arange(40, dtype=np.uint16)
    new = old.copy()
    new[[1, 30]] = 999
    for whole, decode in [
        (encode_delta(diff_values(old, new, [(0, 40)], THIRD)), decode_delta),
        (encode_anchor(new), decode_anchor),
    ]:
        place = data.draw(st.integers(0, len(whole) - 1))
        flipped = bytearray(whole)
        flipped[place] ^= data.draw(st.integers(1, 255))
        with pytest.raises(PublishError):
            decode(bytes(flipped))
        with pytest.raises(PublishError):
            decode(whole[:place])


def test_an_anchor_is_no_delta() -> None:
    with pytest.raises(PublishError, match="expected a delta, found a anchor"):
        decode_delta(encode_anchor(np.zeros(3, np.uint16)))


@pytest.mark.parametrize(
    "changes",
    [
        {"gaps": np.array([9], np.uint8)},
        {"values": np.zeros(2, np.uint16)},
        {"whole": np.array([[2, 9]], np.int64)},
        {"whole": np.array([[3, 3]], np.int64)},
        {"whole_values": np.zeros(3, np.uint16)},
    ],
)
def test_contents_that_do_not_fit_are_refused(changes: dict[str, np.ndarray]) -> None:
    arrays: dict[str, np.ndarray] = {
        "gaps": np.array([1], np.uint8),
        "values": np.zeros(1, np.uint16),
        "whole": np.array([[2, 4]], np.int64),
        "whole_values": np.zeros(2, np.uint16),
    }
    meta = {"num_values": 5, "num_changed": 3}
    assert isinstance(decode_delta(encode_packet(Packet("delta", meta, arrays))), Delta)
    with pytest.raises(PublishError):
        decode_delta(encode_packet(Packet("delta", meta, {**arrays, **changes})))


def test_a_delta_of_another_shard_is_refused() -> None:
    delta = diff_values(np.zeros(5, np.uint16), np.ones(5, np.uint16), [(0, 5)], THIRD)
    with pytest.raises(PublishError, match="another shard"):
        apply_delta_(np.zeros(6, np.uint16), delta)


shapes = hnp.array_shapes(max_dims=2, min_side=0, max_side=6)
exports = st.dictionaries(st.text("ab", min_size=1, max_size=3), hnp.arrays(np.uint16, shapes), max_size=5)


@given(exports, st.integers(1, 64))
@settings(max_examples=30)
def test_layout(export: dict[str, np.ndarray], shard_bytes: int) -> None:
    layout = ExportLayout.of({name: array.shape for name, array in export.items()})
    flat = layout.flatten(export)
    views = layout.views(flat)
    assert views.keys() == export.keys()
    assert all(np.array_equal(views[name], export[name]) for name in export)
    assert layout.digest(flat) == export_digest(export) == export_digest(dict(reversed(list(export.items()))))
    shards = layout.shards(shard_bytes)
    assert [place for start, stop in shards for place in range(start, stop)] == list(range(layout.num_values))
    for start, stop in shards:
        assert (stop - start) * 2 <= max(shard_bytes, 2)
        covered = [place for a, b in layout.pieces(start, stop) for place in range(a, b)]
        assert covered == list(range(stop - start))


def test_the_digest_knows_names_and_shapes() -> None:
    values = np.arange(6, dtype=np.uint16)
    digests = {
        export_digest({"a": values}),
        export_digest({"b": values}),
        export_digest({"a": values.reshape(2, 3)}),
        export_digest({"a": values[:3], "b": values[3:]}),
        export_digest({"a": values[::-1].copy()}),
    }
    assert len(digests) == 5


def test_an_export_of_another_policy_is_named() -> None:
    layout = ExportLayout.of({"a": (2,)})
    with pytest.raises(PolicyError, match="'a'"):
        layout.flatten({"a": np.zeros(3, np.uint16)})
