"""The table of objects: keys, versions and patches. Every operation is short and moves no bytes."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field

from seeker.cluster.local.payloads import Payload, Shelf
from seeker.cluster.untyped import arrow as pa

MAX_PATCHES = 1000


@dataclass(slots=True, eq=False)
class StoredObject:
    """A base and the patches after it, each with its version. Those of a native table are counted, never kept."""

    base: Payload
    base_version: int
    version: int
    patches: list[tuple[int, Payload]] = field(default_factory=list[tuple[int, Payload]])

    @property
    def num_patches(self) -> int:
        return self.version - self.base_version

    def payloads(self) -> list[Payload]:
        return [self.base, *(payload for _, payload in self.patches)]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader at some version is sent: the base unless it has it, and the patches that are new to it.

    Example: a reader at version 2 of an object put (1) and patched twice: ``Reading(3, None, 1, [(3, payload)])``.
    """

    version: int
    base: Payload | None
    base_version: int
    patches: list[tuple[int, Payload]]


class ObjectTable:
    """Objects by ``<app>/<session>`` and id. Safe to use from several threads."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._sessions: dict[str, dict[str, StoredObject]] = {}
        self._lock = threading.Lock()

    def put(self, path: str, payload: Payload) -> tuple[str, int]:
        """A new base under a full key or, with an id of our making, under ``<app>/<session>``."""
        parts = checked_key(path, allowed=(2, 3))
        prefix, name = "/".join(parts[:2]), parts[2] if len(parts) == 3 else str(uuid.uuid4())
        self._shelf.add(payload)
        with self._lock:
            session = self._sessions.setdefault(prefix, {})
            before = session.get(name)
            version = before.version + 1 if before else 1
            session[name] = StoredObject(payload, version, version)
        self._discard([before] if before else [])
        return f"{prefix}/{name}", version

    def patch(self, key: str, payload: Payload) -> int:
        self._shelf.add(payload)
        try:
            with self._lock:
                stored = self._find(key)
                if stored.num_patches >= MAX_PATCHES:
                    text = f"object <{key}> has reached maximum delta count ({MAX_PATCHES}); replace it to compact"
                    raise pa.ArrowInvalid(text)
                stored.version += 1
                is_native = stored.base.schema is not None
                if not is_native:
                    stored.patches.append((stored.version, payload))
                version = stored.version
        except (KeyError, pa.ArrowInvalid):
            self._shelf.discard(payload)
            raise
        if is_native:
            self._shelf.discard(payload)
        return version

    def read(self, key: str, client_version: int) -> Reading:
        """Not modified (no base, no patches), only what is newer, or, for a version we cannot know, everything."""
        with self._lock:
            stored = self._find(key)
            if client_version == stored.version:
                return Reading(stored.version, None, stored.base_version, [])
            is_native = stored.base.schema is not None
            if not is_native and stored.base_version <= client_version < stored.version:
                newer = [(version, payload) for version, payload in stored.patches if version > client_version]
                return Reading(stored.version, None, stored.base_version, newer)
            return Reading(stored.version, stored.base, stored.base_version, list(stored.patches))

    def delete(self, path: str) -> None:
        """A key, a session's objects (``<app>/<session>``) or an application's (``<app>/*``)."""
        parts = checked_key(path, allowed=(2, 3), wildcard=True)
        with self._lock:
            if len(parts) == 3:
                gone = self._pop(f"{parts[0]}/{parts[1]}", parts[2])
            elif parts[1] == "*":
                prefixes = [prefix for prefix in self._sessions if prefix.startswith(f"{parts[0]}/")]
                gone = [stored for prefix in prefixes for stored in self._sessions.pop(prefix).values()]
            else:
                gone = list(self._sessions.pop(path, {}).values())
        self._discard(gone)

    def keys(self) -> list[str]:
        with self._lock:
            return [f"{prefix}/{name}" for prefix, session in self._sessions.items() for name in session]

    def statistics(self) -> dict[str, dict[str, int]]:
        """Number of objects and their bytes in memory and in files, by ``<app>/<session>``."""
        with self._lock:
            listed = [(prefix, list(session.values())) for prefix, session in self._sessions.items()]
        return {prefix: _statistics(objects) for prefix, objects in listed}

    def _find(self, key: str) -> StoredObject:
        prefix, _, name = key.rpartition("/")
        stored = self._sessions.get(prefix, {}).get(name)
        if stored is None:
            raise KeyError(f"object <{key}> not found")
        return stored

    def _pop(self, prefix: str, name: str) -> list[StoredObject]:
        session = self._sessions.get(prefix, {})
        stored = session.pop(name, None)
        if not session:
            self._sessions.pop(prefix, None)
        return [stored] if stored else []

    def _discard(self, gone: list[StoredObject]) -> None:
        """Outside the lock: removing files takes its time."""
        for stored in gone:
            for payload in stored.payloads():
                self._shelf.discard(payload)


def _statistics(objects: list[StoredObject]) -> dict[str, int]:
    payloads = [payload for stored in objects for payload in stored.payloads()]
    spilled = sum(payload.num_bytes for payload in payloads if payload.is_spilled)
    total = sum(payload.num_bytes for payload in payloads)
    return {"num_objects": len(objects), "memory_bytes": total - spilled, "spilled_bytes": spilled}


def checked_key(path: str, allowed: tuple[int, ...], wildcard: bool = False) -> list[str]:
    parts = path.split("/")
    bad = [part for part in parts if not part or ".." in part or "\\" in part]
    stars = [place for place, part in enumerate(parts) if "*" in part]
    if len(parts) not in allowed or bad or (stars and not (wildcard and stars == [1] and parts[1] == "*")):
        raise pa.ArrowInvalid(f"object key {path!r}: expected <app>/<session> or <app>/<session>/<id>")
    return parts
