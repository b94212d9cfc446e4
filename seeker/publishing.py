"""Making a policy version visible: stage, verify, commit; and loading one.

A version is staged by writing its bytes and reading them back from the store. Only when the driver has committed the
manifest does the publisher's remembered export move. A manifest lists the object versions that count, so what a failed
stage left behind is never read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from seeker.cluster.objects import ObjectHandle, ObjectStore
from seeker.config import PublishingConfig
from seeker.delta import apply_delta_, decode_anchor, decode_delta, diff_values, encode_anchor, encode_delta
from seeker.errors import ObjectMissingError, PublishError
from seeker.exports import Bits, Export, ExportLayout
from seeker.manifest import Manifest, Shard
from seeker.weights import export_policy, load_export_, policy_shapes

__all__ = ["LoadReport", "Manifest", "PolicyReader", "Publisher", "Shard"]


@dataclass(frozen=True, slots=True)
class Remembered:
    """A version that readers may hold, and its values as far as they are known here."""

    manifest: Manifest
    values: Bits | None  # [P]; None until they are read from the store


class Publisher:
    """Publishes one policy's versions. Its remembered export is the committed version's, never a staged one's."""

    def __init__(self, objects: ObjectStore, prefix: str, config: PublishingConfig) -> None:
        self._objects = objects
        self._prefix = prefix
        self._config = config
        self._committed: Remembered | None = None
        self._staged: Remembered | None = None
        self._anchors: list[tuple[str, ...]] = []  # keys of committed anchors, newest last

    def stage(self, version: int, export: Export) -> Manifest:
        """Write `version`, as a delta on the committed version or as a new anchor, and read it back.

        Raises `PublishError` when the store gives back anything else than what was written.
        """
        layout = ExportLayout.of({name: array.shape for name, array in export.items()})
        values = layout.flatten(export)
        old = self._remembered_values(layout)
        if self._committed is None or old is None or self._anchor_is_due(self._committed.manifest):
            manifest = self._stage_anchor(version, layout, values, old)
        else:
            manifest = self._stage_deltas(version, layout, values, old, self._committed.manifest)
        self._staged = Remembered(manifest, values)
        return manifest

    def commit(self, manifest: Manifest) -> None:
        """The driver has committed this manifest: deltas are taken from it from now on.

        A manifest that was staged by another publisher (whose executor was lost) is adopted: its values are read from
        the store by the next stage.
        """
        if self._committed is not None and self._committed.manifest == manifest:
            return
        is_staged = self._staged is not None and self._staged.manifest == manifest
        self._committed = self._staged if is_staged else Remembered(manifest, None)
        self._staged = None
        self._retire_anchors(manifest)

    def _remembered_values(self, layout: ExportLayout) -> Bits | None:
        if self._committed is None or self._committed.manifest.num_values != layout.num_values:
            return None
        if self._committed.values is None:
            try:
                values = read_values(self._objects, self._committed.manifest)[0]
            except (ObjectMissingError, PublishError):
                return None  # the adopted version is gone or damaged: an anchor needs neither
            if layout.digest(values) != self._committed.manifest.digest:
                return None
            self._committed = replace(self._committed, values=values)
        return self._committed.values

    def _anchor_is_due(self, manifest: Manifest) -> bool:
        longest = max((shard.newest - shard.base_version for shard in manifest.shards), default=0)
        heavy = manifest.delta_bytes > self._config.anchor_when_deltas_outweigh * manifest.anchor_bytes
        return heavy or longest >= self._config.max_deltas

    def _stage_anchor(self, version: int, layout: ExportLayout, values: Bits, old: Bits | None) -> Manifest:
        shards: list[Shard] = []
        num_bytes = 0
        for start, stop in layout.shards(self._config.shard_bytes):
            data = encode_anchor(values[start:stop])
            handle = self._objects.put(self._prefix, data)
            shard = Shard(handle.key, handle.endpoint, start, stop, base_version=handle.version)
            self._verify(version, shard, np.empty(stop - start, np.uint16), values, held=None)
            shards.append(shard)
            num_bytes += len(data)
        changed = 1.0 if old is None else float(np.count_nonzero(old != values) / max(len(values), 1))
        return Manifest(
            version=version,
            digest=layout.digest(values),
            num_values=len(values),
            shards=tuple(shards),
            anchor_version=version,
            anchor_bytes=num_bytes,
            delta_bytes=0,
            bytes_written=num_bytes,
            changed_fraction=changed,
        )

    def _stage_deltas(
        self, version: int, layout: ExportLayout, values: Bits, old: Bits, committed: Manifest
    ) -> Manifest:
        shards: list[Shard] = []
        num_bytes = num_changed = 0
        for held in committed.shards:
            before, after = old[held.start : held.stop], values[held.start : held.stop]
            pieces = layout.pieces(held.start, held.stop)
            delta = diff_values(before, after, pieces, self._config.whole_tensor_share)
            shard = held
            if delta.num_changed:
                data = encode_delta(delta)
                patch = self._objects.append(_handle(held), data)
                shard = replace(held, patches=(*held.patches, patch))
                self._verify(version, shard, before.copy(), values, held)
                num_bytes += len(data)
                num_changed += delta.num_changed
            shards.append(shard)
        return replace(
            committed,
            version=version,
            digest=layout.digest(values),
            shards=tuple(shards),
            delta_bytes=committed.delta_bytes + num_bytes,
            bytes_written=num_bytes,
            changed_fraction=num_changed / max(len(values), 1),
        )

    def _verify(self, version: int, shard: Shard, target: Bits, values: Bits, held: Shard | None) -> None:
        """Read the shard back from the store onto `target` and compare it with what is to be published."""
        read_shard_(self._objects, shard, target, held)
        if not np.array_equal(target, values[shard.start : shard.stop]):
            raise PublishError(f"policy version {version}: object {shard.key} reads back otherwise than it was written")

    def _retire_anchors(self, manifest: Manifest) -> None:
        """Delete anchors that neither this version nor the one before it names."""
        keys = tuple(shard.key for shard in manifest.shards)
        if keys in self._anchors:
            return
        self._anchors.append(keys)
        while len(self._anchors) > 2:
            for key in self._anchors.pop(0):
                self._objects.delete(key)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How a version was loaded. `failed` holds what went wrong with an earlier attempt."""

    version: int
    digest: str
    source: Literal["held", "deltas", "anchor"]
    bytes_read: int
    seconds: float
    failed: str | None = None


class PolicyReader:
    """Brings a model to a published version, and checks that it holds exactly that."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def load(self, manifest: Manifest, model: torch.nn.Module, held: Manifest | None) -> LoadReport:
        """Load `manifest` into `model`, which holds the version of `held` (None: anything).

        Only what is missing is read; a model that is wrong or too far behind loads the anchor and the deltas after it.
        Raises `PublishError` when that gives another policy too; the model is then unchanged.
        """
        started = time.perf_counter()
        if held == manifest:
            return LoadReport(manifest.version, manifest.digest, "held", 0, 0.0)
        layout = ExportLayout.of(policy_shapes(model))
        if layout.num_values != manifest.num_values:
            raise PublishError(
                f"policy version {manifest.version} has {manifest.num_values} values, the model {layout.num_values}"
            )
        follows = held is not None and manifest.continues(held)
        failed: str | None = None
        num_bytes = 0
        for base in (held if follows else None, None):
            try:
                values, read_bytes = self._values(manifest, model, layout, base)
            except PublishError as error:
                failed = str(error)
                continue
            num_bytes += read_bytes
            load_export_(model, layout.views(values))
            source = "anchor" if base is None else "deltas"
            return LoadReport(
                manifest.version, manifest.digest, source, num_bytes, time.perf_counter() - started, failed
            )
        raise PublishError(f"policy version {manifest.version} cannot be loaded, also not from its anchor: {failed}")

    def _values(
        self, manifest: Manifest, model: torch.nn.Module, layout: ExportLayout, held: Manifest | None
    ) -> tuple[Bits, int]:
        values = None if held is None else layout.flatten(export_policy(model))
        values, num_bytes = read_values(self._objects, manifest, values, held)
        digest = layout.digest(values)
        if digest != manifest.digest:
            raise PublishError(f"policy version {manifest.version} has digest {manifest.digest}, found {digest}")
        return values, num_bytes


def read_values(
    objects: ObjectStore, manifest: Manifest, values: Bits | None = None, held: Manifest | None = None
) -> tuple[Bits, int]:
    """The values of a version and the bytes read for them; with `held`, onto its `values` in place."""
    found = np.empty(manifest.num_values, np.uint16) if values is None else values
    held_shards: Sequence[Shard | None] = [None] * len(manifest.shards) if held is None else held.shards
    num_bytes = 0
    for shard, held_shard in zip(manifest.shards, held_shards, strict=True):
        num_bytes += read_shard_(objects, shard, found[shard.start : shard.stop], held_shard)
    return found, num_bytes


def read_shard_(objects: ObjectStore, shard: Shard, values: Bits, held: Shard | None) -> int:
    """Bring `values` to what `shard` names: from its anchor, or from `held` by the deltas after it. Bytes read."""
    wanted = shard.patches if held is None else shard.patches[len(held.patches) :]
    if held is not None and not wanted:
        return 0
    parts = objects.read(_handle(shard), 0 if held is None else held.newest)
    num_bytes = 0
    if held is None:
        if parts.base is None or parts.base_version != shard.base_version:
            raise PublishError(
                f"object {shard.key}: expected an anchor of version {shard.base_version}, found {parts.base_version}"
            )
        anchor = decode_anchor(parts.base)
        if anchor.shape != values.shape:
            raise PublishError(f"object {shard.key}: expected {len(values)} values, found {len(anchor)}")
        values[:] = anchor
        num_bytes += len(parts.base)
    found = dict(parts.patches)
    for version in wanted:
        if version not in found:
            raise PublishError(f"object {shard.key}: delta {version} is missing")
        apply_delta_(values, decode_delta(found[version]))
        num_bytes += len(found[version])
    return num_bytes


def _handle(shard: Shard) -> ObjectHandle:
    return ObjectHandle(shard.key, shard.base_version, shard.endpoint)
