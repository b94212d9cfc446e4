"""The object cache: versioned objects with patches, over Arrow Flight.

An object is a base and the patches after it. Every put, update and patch raises its version by one; a get carries the
version that the client has and brings only what is newer. Native Arrow tables are kept and returned as they came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from seeker.cluster.local.payloads import Payload, Shelf
from seeker.cluster.local.table import ObjectTable, Reading
from seeker.cluster.objects import MAX_OBJECT_BYTES, STATISTICS_ACTION
from seeker.cluster.untyped import arrow as pa
from seeker.cluster.untyped import bson, flight

_COPIED_BYTES = 64 * 1024  # a small value holds on to the network's larger buffer unless it is copied

_REPLY_SCHEMA = pa.schema([("version", pa.uint64()), ("kind", pa.utf8()), ("data", pa.binary())])
_FORMAT_KEY, _VERSION_KEY = b"flame.cache.format", b"flame.cache.version"
_NATIVE_FORMAT = b"arrow-table-v1"


class ObjectCache(flight.FlightServerBase):
    """Objects by key ``<app>/<session>/<id>``. Handlers run on Flight's threads; none holds a lock while bytes move."""

    def __init__(self, location: str = "grpc://127.0.0.1:0", shelf: Shelf | None = None) -> None:
        flight.FlightServerBase.__init__(self, location)
        self.endpoint = f"grpc://127.0.0.1:{self.port}"
        self._shelf = shelf or Shelf()
        self._table = ObjectTable(self._shelf)

    def read_bytes(self, key: str) -> bytes:
        """The base of a plain object (packages are uploaded that way)."""
        base = self._table.read(key, 0).base
        assert base is not None  # no object is at version 0
        return bytes(self._shelf.read(base))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        payload = _received(reader)
        if descriptor.command is not None and bytes(descriptor.command):
            command = bytes(descriptor.command).decode()
            if not command.startswith("PATCH:"):
                raise pa.ArrowInvalid(f"unknown command {command!r}; known: PATCH:<key>")
            key = command.removeprefix("PATCH:")
            version = self._table.patch(key, payload)
        else:
            key, version = self._table.put(b"/".join(descriptor.path).decode(), payload)
        writer.write(bson.encode({"endpoint": self.endpoint, "key": key, "version": version}))

    def do_get(self, context: Any, ticket: Any) -> Any:
        key, _, text = ticket.ticket.decode().partition(":")
        reading = self._table.read(key, int(text) if text.isdecimal() else 0)
        base = reading.base
        if base is not None and base.schema is not None:
            schema = base.schema.with_metadata({**base.schema.metadata, _VERSION_KEY: str(reading.version).encode()})
            return _stream(schema, (_with_schema(batch, schema) for batch in self._shelf.read(base)))
        return _stream(_REPLY_SCHEMA, self._rows(reading))

    def _rows(self, reading: Reading) -> Iterator[Any]:
        if reading.base is not None:
            yield _row(reading.base_version, "base", self._shelf.read(reading.base))
        for version, payload in reading.patches:
            yield _row(version, "patch", self._shelf.read(payload))

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        if action.type == STATISTICS_ACTION:
            return iter([flight.Result(pa.py_buffer(json.dumps(self._table.statistics()).encode()))])
        if action.type != "DELETE":
            raise flight.FlightServerError(f"unknown action {action.type!r}; known: DELETE")
        self._table.delete(action.body.to_pybytes().decode())
        return iter([flight.Result(pa.py_buffer(b"OK"))])

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [("DELETE", "Delete the objects under a key, <app>/<session> or <app>/*")]

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        key = b"/".join(descriptor.path).decode()
        return self._info(key)

    def list_flights(self, context: Any, criteria: Any) -> Iterator[Any]:
        return iter([self._info(key) for key in self._table.keys()])  # noqa: SIM118 (not a dict)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        return flight.SchemaResult(_REPLY_SCHEMA)

    def _info(self, key: str) -> Any:
        endpoint = flight.FlightEndpoint(key.encode(), [self.endpoint])
        return flight.FlightInfo(_REPLY_SCHEMA, flight.FlightDescriptor.for_path(key), [endpoint], -1, -1)


def _received(reader: Any) -> Payload:
    """The whole upload: a native table as it is, or all values of the `data` column as one buffer."""
    metadata: dict[bytes, bytes] = reader.schema.metadata or {}
    if metadata.get(_FORMAT_KEY) == _NATIVE_FORMAT:
        return Payload([chunk.data for chunk in reader], reader.schema)
    if "data" not in reader.schema.names:
        raise pa.ArrowInvalid(f"an object's schema is {{version: uint64, data: binary}}, found {reader.schema}")
    values = [scalar.as_buffer() for chunk in reader for scalar in chunk.data.column("data")]
    num_bytes = sum(value.size for value in values)
    if num_bytes > MAX_OBJECT_BYTES:
        raise pa.ArrowInvalid(f"an object of {num_bytes} bytes is above {MAX_OBJECT_BYTES}; store it in shards")
    if len(values) == 1 and num_bytes > _COPIED_BYTES:
        return Payload(values[0])
    return Payload(pa.py_buffer(b"".join(memoryview(value) for value in values)))


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
