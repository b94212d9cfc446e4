"""Published policy versions in the run directory: the very anchors and deltas that went to the executors.

The trainer's publisher writes through `MirroredObjects`, which sends each object to the store and lays a copy into the
run directory. So evaluation and export read any version with the code that executors load with, and need no live run.
Whole exports would cost more room: 6 GB a version for a 3 B policy, where a delta takes 0.2 GB or less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from seeker.cluster.objects import Buffer, ObjectHandle, ObjectParts, ObjectStore, as_buffer
from seeker.errors import ObjectMissingError
from seeker.runs.files import Json, write_atomic

_PART = re.compile(r"^(\d{6})\.(base|patch)$")


@dataclass(frozen=True, slots=True)
class FolderObjects:
    """Objects as folders: ``<key>/000001.base`` and ``<key>/000002.patch``, numbered by object version."""

    root: Path

    def store(self, key: str, version: int, data: Buffer, kind: str) -> Json:
        """Write one part of an object; `kind` is "base" or "patch". What a commit says about it.

        Example: ``{"path": "policy/app/session/0f/000002.patch", "bytes": 4711, "xxh3": "9f86…"}``.
        """
        path = self.root / key / f"{version:06d}.{kind}"
        view = memoryview(as_buffer(data))
        write_atomic(path, view, within=self.root.parent)
        told = str(path.relative_to(self.root.parent))
        return {"path": told, "bytes": view.nbytes, "xxh3": xxhash.xxh3_128_hexdigest(view)}

    def get(self, handle: ObjectHandle) -> memoryview:
        return memoryview(self._newest_base(handle)[1].read_bytes())

    def read(self, handle: ObjectHandle, after_version: int = 0) -> ObjectParts:
        base_version, base = self._newest_base(handle)
        is_new = after_version < base_version
        after = max(after_version, base_version)
        patches = tuple(
            (version, memoryview(path.read_bytes()))
            for version, kind, path in self._parts(handle)
            if kind == "patch" and version > after
        )
        return ObjectParts(
            base=memoryview(base.read_bytes()) if is_new else None,
            base_version=base_version if is_new else 0,
            patches=patches,
        )

    def _newest_base(self, handle: ObjectHandle) -> tuple[int, Path]:
        bases = [(version, path) for version, kind, path in self._parts(handle) if kind == "base"]
        if not bases:
            raise ObjectMissingError(f"{self.root / handle.key}: no such published object in the run directory")
        return bases[-1]

    def _parts(self, handle: ObjectHandle) -> list[tuple[int, str, Path]]:
        folder = self.root / handle.key
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        found = [(_PART.match(path.name), path) for path in paths]
        return [(int(match[1]), match[2], path) for match, path in found if match is not None]


@dataclass(frozen=True, slots=True)
class MirroredObjects:
    """An object store whose writes also land in a folder, under the same keys and versions."""

    store: ObjectStore
    folder: FolderObjects
    written: list[Json] = field(default_factory=list[Json])  # since `take_written`

    def put(self, prefix: str, data: Buffer, name: str | None = None) -> ObjectHandle:
        handle = self.store.put(prefix, data, name)
        self._keep(handle.key, handle.version, data, "base")
        return handle

    def append(self, handle: ObjectHandle, data: Buffer) -> int:
        version = self.store.append(handle, data)
        self._keep(handle.key, version, data, "patch")
        return version

    def replace(self, handle: ObjectHandle, data: Buffer) -> int:
        version = self.store.replace(handle, data)
        self._keep(handle.key, version, data, "base")
        return version

    def take_written(self) -> list[Json]:
        """What landed in the folder since this was asked last, for the commit that names it."""
        taken = list(self.written)
        self.written.clear()
        return taken

    def _keep(self, key: str, version: int, data: Buffer, kind: str) -> None:
        self.written.append(self.folder.store(key, version, data, kind))

    def get(self, handle: ObjectHandle) -> memoryview:
        return self.store.get(handle)

    def read(self, handle: ObjectHandle, after_version: int = 0) -> ObjectParts:
        return self.store.read(handle, after_version)

    def delete(self, prefix: str) -> None:
        """Deletes from the store only: the run directory keeps what it published."""
        self.store.delete(prefix)
