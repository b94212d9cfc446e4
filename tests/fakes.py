"""Scripted fakes that several test packages share."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field

from seeker.cluster.objects import Buffer, ObjectHandle, ObjectParts, as_buffer, object_path
from seeker.errors import ClusterError, ObjectMissingError

MAX_PATCHES = 1000


@dataclass
class _Stored:
    base: bytes
    base_version: int
    patches: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def version(self) -> int:
        return self.base_version + len(self.patches)


class MemoryObjects:
    """An `ObjectStore` in memory, with the semantics of the cluster's (one test suite runs against both)."""

    endpoint = "memory://"

    def __init__(self) -> None:
        self._objects: dict[str, _Stored] = {}
        self._lock = threading.Lock()

    def put(self, prefix: str, data: Buffer, name: str | None = None) -> ObjectHandle:
        return self._write(object_path(prefix, str(uuid.uuid4()) if name is None else name), data)

    def get(self, handle: ObjectHandle) -> memoryview:
        base = self.read(handle).base
        assert base is not None
        return base

    def read(self, handle: ObjectHandle, after_version: int = 0) -> ObjectParts:
        with self._lock:
            stored = self._find(handle.key)
            has_base = stored.base_version <= after_version <= stored.version
            after = after_version if has_base else stored.base_version
            patches = tuple((version, memoryview(data)) for version, data in stored.patches if version > after)
            base = None if has_base else memoryview(stored.base)
            return ObjectParts(base, 0 if has_base else stored.base_version, patches)

    def append(self, handle: ObjectHandle, data: Buffer) -> int:
        with self._lock:
            stored = self._find(handle.key)
            if len(stored.patches) >= MAX_PATCHES:
                raise ClusterError(f"object <{handle.key}> has reached maximum delta count ({MAX_PATCHES})")
            stored.patches.append((stored.version + 1, as_buffer(data).to_pybytes()))
            return stored.version

    def replace(self, handle: ObjectHandle, data: Buffer) -> int:
        return self._write(handle.key, data).version

    def delete(self, prefix: str) -> None:
        parts = _check(prefix, (2, 3), wildcard=True)
        start = f"{parts[0]}/" if parts[1] == "*" else f"{prefix}/"
        with self._lock:
            self._objects = {
                key: stored for key, stored in self._objects.items() if key != prefix and not key.startswith(start)
            }

    def keys(self) -> list[str]:
        """All keys held, for tests that check what was left behind."""
        return sorted(self._objects)

    def _write(self, key: str, data: Buffer) -> ObjectHandle:
        _check(key, (3,))
        with self._lock:
            before = self._objects.get(key)
            version = before.version + 1 if before else 1
            self._objects[key] = _Stored(as_buffer(data).to_pybytes(), version)
        return ObjectHandle(key, version, self.endpoint)

    def _find(self, key: str) -> _Stored:
        if key not in self._objects:
            raise ObjectMissingError(f"object {key} is not in {self.endpoint}")
        return self._objects[key]


def _check(path: str, sizes: tuple[int, ...], wildcard: bool = False) -> list[str]:
    parts = path.split("/")
    starred = wildcard and len(parts) == 2 and parts[1] == "*"
    if len(parts) not in sizes or not all(parts) or ("*" in path and not starred) or ".." in path:
        raise ClusterError(f"object key {path!r}: expected <app>/<session> or <app>/<session>/<id>")
    return parts
