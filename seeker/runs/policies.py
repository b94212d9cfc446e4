"""Published policy versions in the run directory: the very anchors and deltas that went to the executors.

The trainer's publisher writes through `MirroredObjects`, which sends each object to the store and lays a copy into the
run directory. So evaluation and export read any version with the code that executors load with, and need no live run.
Whole exports would cost more room: 6 GB a version for a 3 B policy, where a delta takes 0.2 GB or less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from seeker.cluster.objects import Buffer, ObjectHandle, ObjectParts, ObjectStore, as_buffer
from seeker.errors import ObjectMissingError
from seeker.runs.files import write_atomic

_PART = re.compile(r"^(\d{6})\.(base|patch)$")


@dataclass(frozen=True, slots=True)
class FolderObjects:
    """Objects as folders: ``<key>/000001.base`` and ``<key>/000002.patch``, numbered by object version."""

    root: Path

    def store(self, key: str, version: int, data: Buffer, kind: str) -> None:
        """Write one part of an object. `kind` is "base" or "patch"."""
        write_atomic(self.root / key / f"{version:06d}.{kind}", memoryview(as_buffer(data)))

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

    def put(self, prefix: str, data: Buffer, name: str | None = None) -> ObjectHandle:
        handle = self.store.put(prefix, data, name)
        self.folder.store(handle.key, handle.version, data, "base")
        return handle

    def append(self, handle: ObjectHandle, data: Buffer) -> int:
        version = self.store.append(handle, data)
        self.folder.store(handle.key, version, data, "patch")
        return version

    def replace(self, handle: ObjectHandle, data: Buffer) -> int:
        version = self.store.replace(handle, data)
        self.folder.store(handle.key, version, data, "base")
        return version

    def get(self, handle: ObjectHandle) -> memoryview:
        return self.store.get(handle)

    def read(self, handle: ObjectHandle, after_version: int = 0) -> ObjectParts:
        return self.store.read(handle, after_version)

    def delete(self, prefix: str) -> None:
        """Deletes from the store only: the run directory keeps what it published."""
        self.store.delete(prefix)
