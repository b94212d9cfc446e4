"""The object cache: versioned objects with patches, over Arrow Flight.

An object is a base and the patches after it. Every put, update and patch raises its version by one; a get carries the
version that the client has and brings only what is newer. Native Arrow tables are kept and returned as they came.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from seeker.cluster.untyped import arrow as pa
from seeker.cluster.untyped import bson, flight

MAX_PATCHES = 1000

_REPLY_SCHEMA = pa.schema([("version", pa.uint64()), ("kind", pa.utf8()), ("data", pa.binary())])
_FORMAT_KEY, _VERSION_KEY = b"flame.cache.format", b"flame.cache.version"
_NATIVE_FORMAT = b"arrow-table-v1"


@dataclass(slots=True, eq=False)
class StoredObject:
    """`base` is a buffer, or the batches of a native table. Versions: base_version, then one per patch."""

    base: Any
    base_version: int
    schema: Any = None  # of a native table
    patches: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    version: int = 0

    def num_bytes(self) -> int:
        base = sum(batch.nbytes for batch in self.base) if self.schema is not None else len(self.base)
        return base + sum(len(data) for _, data in self.patches)


class ObjectCache(flight.FlightServerBase):
    """Objects in memory, by key ``<app>/<session>/<id>``. Handlers run on Flight's threads."""

    def __init__(self, location: str = "grpc://127.0.0.1:0") -> None:
        flight.FlightServerBase.__init__(self, location)
        self.endpoint = f"grpc://127.0.0.1:{self.port}"
        self._objects: dict[str, StoredObject] = {}
        self._lock = threading.Lock()

    def statistics(self) -> dict[str, int]:
        with self._lock:
            objects = list(self._objects.values())
        return {"num_objects": len(objects), "num_bytes": sum(each.num_bytes() for each in objects)}

    def read_bytes(self, key: str) -> bytes:
        """The base of a plain object (packages are uploaded that way)."""
        return bytes(self._find(key).base)

    # -- Flight -------------------------------------------------------------------------------------------------

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        metadata: dict[bytes, bytes] = reader.schema.metadata or {}
        native = metadata.get(_FORMAT_KEY) == _NATIVE_FORMAT
        if native:
            payload: Any = [chunk.data for chunk in reader]
        else:
            payload = _joined(reader)
        if descriptor.command is not None and bytes(descriptor.command):
            key, version = self._patch(bytes(descriptor.command).decode(), payload)
        else:
            path = b"/".join(descriptor.path).decode()
            key, version = self._put(path, payload, reader.schema if native else None)
        writer.write(bson.encode({"endpoint": self.endpoint, "key": key, "version": version}))

    def do_get(self, context: Any, ticket: Any) -> Any:
        key, _, text = ticket.ticket.decode().partition(":")
        client_version = int(text) if text.isdecimal() else 0
        with self._lock:
            stored = self._find(key)
            version, patches = stored.version, list(stored.patches)
            base, base_version, schema = stored.base, stored.base_version, stored.schema
        if client_version == version != 0:
            return _stream(_REPLY_SCHEMA, iter([]))  # not modified, whatever the kind of object
        if schema is not None:
            schema = schema.with_metadata({**schema.metadata, _VERSION_KEY: str(version).encode()})
            return _stream(schema, iter([_with_schema(batch, schema) for batch in base]))
        rows = [] if base_version <= client_version <= version else [(base_version, "base", base)]
        after = client_version if not rows else base_version
        rows += [(each, "patch", data) for each, data in patches if each > after]
        return _stream(_REPLY_SCHEMA, iter([_row(*row) for row in rows]))

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        if action.type != "DELETE":
            raise flight.FlightServerError(f"unknown action {action.type!r}; known: DELETE")
        self._delete(action.body.to_pybytes().decode())
        return iter([flight.Result(pa.py_buffer(b"OK"))])

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [("DELETE", "Delete the objects under a key, <app>/<session> or <app>/*")]

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        key = b"/".join(descriptor.path).decode()
        return self._info(key)

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        with self._lock:
            keys = list(self._objects)
        return iter([self._info(key) for key in keys])

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return flight.SchemaResult(_REPLY_SCHEMA)

    # -- the store ----------------------------------------------------------------------------------------------

    def _info(self, key: str) -> Any:
        endpoint = flight.FlightEndpoint(key.encode(), [self.endpoint])
        return flight.FlightInfo(_REPLY_SCHEMA, flight.FlightDescriptor.for_path(key), [endpoint], -1, -1)

    def _find(self, key: str) -> StoredObject:
        stored = self._objects.get(key)
        if stored is None:
            raise KeyError(f"object <{key}> not found")
        return stored

    def _put(self, path: str, payload: Any, schema: Any) -> tuple[str, int]:
        parts = _checked(path, allowed=(2, 3))
        key = path if len(parts) == 3 else f"{path}/{uuid.uuid4()}"
        with self._lock:
            before = self._objects.get(key)
            version = before.version + 1 if before else 1
            self._objects[key] = StoredObject(payload, version, schema, version=version)
        return key, version

    def _patch(self, command: str, payload: Any) -> tuple[str, int]:
        if not command.startswith("PATCH:"):
            raise pa.ArrowInvalid(f"unknown command {command!r}; known: PATCH:<key>")
        key = command.removeprefix("PATCH:")
        with self._lock:
            stored = self._find(key)
            if len(stored.patches) >= MAX_PATCHES:
                text = f"object <{key}> has reached maximum delta count ({MAX_PATCHES}); replace it to compact"
                raise pa.ArrowInvalid(text)
            stored.version += 1
            stored.patches.append((stored.version, payload))
            return key, stored.version

    def _delete(self, path: str) -> None:
        parts = _checked(path, allowed=(2, 3), wildcard=True)
        prefix = parts[0] + "/" if parts[1] == "*" else path + "/"
        with self._lock:
            for key in [key for key in self._objects if key == path or key.startswith(prefix)]:
                del self._objects[key]


def _checked(path: str, allowed: tuple[int, ...], wildcard: bool = False) -> list[str]:
    parts = path.split("/")
    bad = [part for part in parts if not part or ".." in part or "\\" in part]
    stars = [place for place, part in enumerate(parts) if "*" in part]
    if len(parts) not in allowed or bad or (stars and not (wildcard and stars == [1] and parts[1] == "*")):
        raise pa.ArrowInvalid(f"object key {path!r}: expected <app>/<session> or <app>/<session>/<id>")
    return parts


def _joined(reader: Any) -> Any:
    """All values of the `data` column as one buffer; a single value is kept without a copy."""
    values = [scalar.as_buffer() for chunk in reader for scalar in chunk.data.column("data")]
    if len(values) == 1:
        return values[0]
    return pa.py_buffer(b"".join(memoryview(value) for value in values))


def _row(version: int, kind: str, data: Any) -> Any:
    offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    return pa.RecordBatch.from_arrays(
        [pa.array([version], pa.uint64()), pa.array([kind]), column], schema=_REPLY_SCHEMA
    )


def _with_schema(batch: Any, schema: Any) -> Any:
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _stream(schema: Any, batches: Iterator[Any]) -> Any:
    return flight.GeneratorStream(schema, batches)
