"""Publishing and loading.

1.  The first version is an anchor in shards; later ones are deltas; each loads to exactly the published bits.
2.  A shard that did not change is not written; a version without changes writes nothing.
3.  The remembered export moves at commit, never at stage: a version staged again is a delta on the committed one.
4.  What a failed stage left behind is never read.
5.  A store that gives back other bytes than were written fails the stage, and nothing is committed.
6.  An anchor moves to a new key when the deltas are too many or outweigh it; older anchors are deleted, the previous
    one is kept.
7.  A reader reads only what it lacks; one that is wrong or behind another anchor loads the anchor; a version that is
    damaged in the store fails with the model unchanged.
8.  A publisher that lost its memory adopts the committed manifest, or starts with an anchor when that is gone.
9.  Manifests survive JSON and stay small.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seeker.cluster.objects import ObjectHandle, ObjectParts
from seeker.config import PublishingConfig
from seeker.errors import PublishError
from seeker.exports import export_digest
from seeker.manifest import Manifest, Shard
from seeker.publishing import PolicyReader, Publisher
from seeker.weights import export_policy
from tests.fakes import MemoryObjects

PREFIX = "seeker/run"
SHARDED = PublishingConfig(shard_bytes=1024, anchor_when_deltas_outweigh=100.0)


class Weights(torch.nn.Module):
    """Two weights, 1000 and 300 values: three shards of 512 values, the second shared by both."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.a = torch.nn.Parameter(torch.randn(10, 100, generator=generator))
        self.b = torch.nn.Parameter(torch.randn(300, generator=generator))


def move(model: Weights, name: str, count: int) -> None:
    with torch.no_grad():
        getattr(model, name).view(-1)[:count] += 1.0


def publish(publisher: Publisher, version: int, model: Weights) -> Manifest:
    """Stage and commit; the manifest goes through JSON as it does between executors."""
    manifest = publisher.stage(version, export_policy(model))
    publisher.commit(manifest)
    return Manifest.from_json(json.loads(json.dumps(manifest.to_json())))


def assert_holds(reader: Weights, model: Weights) -> None:
    assert export_digest(export_policy(reader)) == export_digest(export_policy(model))


def test_anchor_then_deltas() -> None:
    objects, model, reader = MemoryObjects(), Weights(), Weights(1)
    publisher, policy_reader = Publisher(objects, PREFIX, SHARDED), PolicyReader(objects)
    first = publish(publisher, 0, model)
    assert len(first.shards) == 3 == len(objects.keys())
    assert first.changed_fraction == 1.0
    report = policy_reader.load(first, reader, None)
    assert (report.source, report.bytes_read) == ("anchor", first.bytes_written)
    assert_holds(reader, model)
    move(model, "a", 20)
    second = publish(publisher, 1, model)
    assert second.changed_fraction == pytest.approx(20 / 1300)
    assert [len(shard.patches) for shard in second.shards] == [1, 0, 0]
    report = policy_reader.load(second, reader, first)
    assert (report.source, report.bytes_read) == ("deltas", second.bytes_written)
    assert_holds(reader, model)
    assert policy_reader.load(second, reader, second).source == "held"
    unchanged = publish(publisher, 2, model)
    assert (unchanged.bytes_written, unchanged.changed_fraction) == (0, 0.0)
    assert unchanged.digest == second.digest
    assert policy_reader.load(unchanged, reader, second).bytes_read == 0


def test_late_joiners_take_anchor_and_deltas() -> None:
    objects, model, late = MemoryObjects(), Weights(), Weights(1)
    publisher = Publisher(objects, PREFIX, SHARDED)
    manifests = []
    for version in range(4):
        manifests.append(publish(publisher, version, model))
        move(model, "b", 10 * (version + 1))
    report = PolicyReader(objects).load(manifests[1], late, None)
    assert report.source == "anchor"
    report = PolicyReader(objects).load(manifests[3], late, manifests[1])
    assert report.source == "deltas"
    assert report.bytes_read == manifests[2].bytes_written + manifests[3].bytes_written


def test_remembered_export_moves_at_commit() -> None:
    objects, model, reader = MemoryObjects(), Weights(), Weights(1)
    publisher = Publisher(objects, PREFIX, SHARDED)
    first = publish(publisher, 0, model)
    move(model, "a", 7)
    lost = publisher.stage(1, export_policy(model))  # the driver died before it committed
    with torch.no_grad():
        model.a.view(-1)[:7] -= 1.0
    move(model, "a", 5)
    again = publish(publisher, 1, model)
    assert again.changed_fraction == pytest.approx(5 / 1300)
    assert again.shards[0].patches == (3,)
    assert lost.shards[0].patches == (2,)
    PolicyReader(objects).load(first, reader, None)
    assert PolicyReader(objects).load(again, reader, first).failed is None
    assert_holds(reader, model)
    move(model, "a", 3)
    third = publish(publisher, 2, model)
    assert third.shards[0].patches == (3, 4)
    fresh = Weights(2)
    PolicyReader(objects).load(third, fresh, None)
    assert_holds(fresh, model)


class BentObjects(MemoryObjects):
    """A store whose reads go through `bend`."""

    def __init__(self) -> None:
        super().__init__()
        self.bend: Callable[[ObjectParts], ObjectParts] = lambda parts: parts

    def read(self, handle: ObjectHandle, after_version: int = 0) -> ObjectParts:
        return self.bend(super().read(handle, after_version))


def flip(data: Any) -> memoryview:
    changed = bytearray(data)
    changed[-1] ^= 0xFF
    return memoryview(bytes(changed))


def bend_base(parts: ObjectParts) -> ObjectParts:
    return parts if parts.base is None else replace(parts, base=flip(parts.base))


def bend_patches(parts: ObjectParts) -> ObjectParts:
    return replace(parts, patches=tuple((version, flip(data)) for version, data in parts.patches))


def drop_patches(parts: ObjectParts) -> ObjectParts:
    return replace(parts, patches=())


def test_a_stage_that_does_not_read_back_fails() -> None:
    objects, model = BentObjects(), Weights()
    publisher = Publisher(objects, PREFIX, SHARDED)
    objects.bend = bend_base
    with pytest.raises(PublishError):
        publisher.stage(0, export_policy(model))
    objects.bend = lambda parts: parts
    first = publish(publisher, 0, model)
    move(model, "a", 4)
    for bend in (bend_patches, drop_patches):
        objects.bend = bend
        with pytest.raises(PublishError):
            publisher.stage(1, export_policy(model))
    objects.bend = lambda parts: parts
    second = publish(publisher, 1, model)
    assert second.continues(first)
    assert second.changed_fraction == pytest.approx(4 / 1300)


def test_another_version_in_the_store_fails_the_stage() -> None:
    """Bytes that are whole but of another delta: the comparison of values finds it."""
    objects, model = BentObjects(), Weights()
    publisher = Publisher(objects, PREFIX, SHARDED)
    publish(publisher, 0, model)
    move(model, "a", 4)
    publisher.stage(1, export_policy(model))
    old = objects.read(ObjectHandle(objects.keys()[0], 1, objects.endpoint))
    candidates = [objects.read(ObjectHandle(key, 1, objects.endpoint)).patches for key in sorted(objects.keys())]
    stale = next(patches[0][1] for patches in candidates if patches)
    objects.bend = lambda parts: replace(parts, patches=tuple((version, stale) for version, _ in parts.patches))
    move(model, "a", 2)
    with pytest.raises(PublishError, match="otherwise than it was written"):
        publisher.stage(1, export_policy(model))
    assert old.base is not None


@pytest.mark.parametrize(
    "config",
    [
        PublishingConfig(shard_bytes=1024, max_deltas=2, anchor_when_deltas_outweigh=100.0),
        PublishingConfig(shard_bytes=1024, anchor_when_deltas_outweigh=0.6),
    ],
)
def test_anchors_move_forward(config: PublishingConfig) -> None:
    objects, model, reader = MemoryObjects(), Weights(), Weights(1)
    publisher = Publisher(objects, PREFIX, config)
    held: Manifest | None = None
    anchors: list[int] = []
    sources: list[str] = []
    for version in range(8):
        manifest = publish(publisher, version, model)
        sources.append(PolicyReader(objects).load(manifest, reader, held).source)
        assert_holds(reader, model)
        held = manifest
        anchors.append(manifest.anchor_version)
        move(model, "a", 200)
        assert len(objects.keys()) <= 6
    assert anchors == [0, 0, 0, 3, 3, 3, 6, 6]
    assert sources == ["anchor" if version in (0, 3, 6) else "deltas" for version in range(8)]


def test_the_previous_version_stays_readable_when_the_anchor_moves() -> None:
    objects, model, late = MemoryObjects(), Weights(), Weights(1)
    publisher = Publisher(objects, PREFIX, PublishingConfig(shard_bytes=1024, max_deltas=1))
    manifests = [publish(publisher, 0, model)]
    move(model, "a", 1)
    manifests.append(publish(publisher, 1, model))
    digest = export_digest(export_policy(model))
    move(model, "a", 1)
    manifests.append(publish(publisher, 2, model))
    assert manifests[2].anchor_version == 2
    PolicyReader(objects).load(manifests[1], late, None)
    assert export_digest(export_policy(late)) == digest


def test_a_reader_that_is_wrong_loads_the_anchor() -> None:
    objects, model, reader = MemoryObjects(), Weights(), Weights(1)
    publisher = Publisher(objects, PREFIX, SHARDED)
    first = publish(publisher, 0, model)
    move(model, "b", 9)
    second = publish(publisher, 1, model)
    report = PolicyReader(objects).load(second, reader, first)  # the reader holds something else than it says
    assert report.source == "anchor"
    assert report.failed is not None
    assert "digest" in report.failed
    assert_holds(reader, model)


@pytest.mark.parametrize("bend", [bend_base, bend_patches, drop_patches])
def test_a_damaged_version_leaves_the_model_unchanged(bend: Callable[[ObjectParts], ObjectParts]) -> None:
    objects, model, reader = BentObjects(), Weights(), Weights(1)
    publisher = Publisher(objects, PREFIX, SHARDED)
    publish(publisher, 0, model)
    move(model, "b", 9)
    second = publish(publisher, 1, model)
    before = export_digest(export_policy(reader))
    objects.bend = bend
    with pytest.raises(PublishError, match="policy version 1 cannot be loaded"):
        PolicyReader(objects).load(second, reader, None)
    assert export_digest(export_policy(reader)) == before


def test_a_model_of_another_size_is_refused() -> None:
    objects = MemoryObjects()
    manifest = publish(Publisher(objects, PREFIX, SHARDED), 0, Weights())
    with pytest.raises(PublishError, match="1300 values, the model 2"):
        PolicyReader(objects).load(manifest, torch.nn.Linear(1, 1), None)


def test_a_new_publisher_adopts_what_was_committed() -> None:
    objects, model = MemoryObjects(), Weights()
    first = publish(Publisher(objects, PREFIX, SHARDED), 0, model)
    publisher = Publisher(objects, PREFIX, SHARDED)
    publisher.commit(first)
    move(model, "a", 3)
    second = publish(publisher, 1, model)
    assert second.continues(first)
    assert second.changed_fraction == pytest.approx(3 / 1300)
    objects.delete(PREFIX)
    publisher = Publisher(objects, PREFIX, SHARDED)
    publisher.commit(second)
    move(model, "a", 3)
    third = publish(publisher, 2, model)
    assert third.anchor_version == 2
    reader = Weights(1)
    PolicyReader(objects).load(third, reader, None)
    assert_holds(reader, model)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300), st.booleans(), st.booleans()), max_size=8))
@settings(max_examples=20)
def test_any_history_loads_exactly(history: list[tuple[str, int, bool, bool]]) -> None:
    """Whatever is staged, committed or lost, and whichever versions a reader skips, it ends at the published bits."""
    objects, model, reader = MemoryObjects(), Weights(), Weights(1)
    publisher = Publisher(objects, PREFIX, PublishingConfig(shard_bytes=1024, max_deltas=3))
    held: Manifest | None = None
    for version, (name, count, lost, skipped) in enumerate([("a", 0, False, False), *history]):
        move(model, name, count)
        if lost:
            publisher.stage(version, export_policy(model))
            continue
        manifest = publish(publisher, version, model)
        if not skipped:
            assert PolicyReader(objects).load(manifest, reader, held).failed is None
            held = manifest
            assert_holds(reader, model)


def test_manifests_stay_small() -> None:
    shards = tuple(
        Shard(f"seeker-app/run-0123456789-trainer/{index:036d}", "grpc://10.0.0.1:9090", 0, 1, 1, tuple(range(2, 402)))
        for index in range(25)
    )
    manifest = Manifest(400, "0" * 32, 3 * 10**9, shards, 0, 6 * 10**9, 10**9, 10**7, 0.01)
    text = json.dumps(manifest.to_json())
    assert len(text) < 16 * 1024
    assert Manifest.from_json(json.loads(text)) == manifest
    gaps = replace(shards[0], patches=(2, 3, 7, 9, 10))
    uneven = replace(manifest, shards=(gaps,))
    assert Manifest.from_json(uneven.to_json()) == uneven
    assert np.isclose(manifest.changed_fraction, 0.01)
