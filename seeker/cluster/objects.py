"""Objects: versioned bytes in the cluster's object cache, named by ``<app>/<session>/<id>``.

An object is a base and the patches appended to it; every write raises its version by one. Payloads are raw bytes,
read with our own tickets (key and version): the SDK's cache would keep a second copy of every policy.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from seeker.cluster.untyped import arrow as pa
from seeker.cluster.untyped import bson, flight
from seeker.errors import ClusterError, DeadlineError, ObjectMissingError

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]

MAX_OBJECT_BYTES = 2**31 - 1  # one value of an Arrow binary column
OPERATION_DEADLINE_S = 300.0
STATISTICS_ACTION = "seeker.statistics"  # known to the embedded cluster's cache only, and not listed there

_GRPC_DETAILS = ". gRPC client debug context"  # says the same again, and more of the like after it
_PUT_SCHEMA = pa.schema([("version", pa.uint64()), ("data", pa.binary())])
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),  # how long one attempt may take, handshake included
    ("grpc.max_reconnect_backoff_ms", 2000),  # a cache that restarts is found again within seconds
]


@dataclass(frozen=True, slots=True)
class ObjectHandle:
    """Names an object; JSON-able through `to_json`. `version` is the one that the write made, not a pin for reads.

    Example: ``ObjectHandle("seeker-1f/run-7-trainer/5b2c", 1, "grpc://127.0.0.1:9090")``.
    """

    key: str
    version: int
    endpoint: str

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ObjectParts:
    """What a read brought: the base, unless the reader had it, and the patches that are new to the reader.

    Example: an object put (1) and appended to twice (2, 3), read after version 2:
    ``ObjectParts(base=None, base_version=0, patches=((3, b"..."),))``.
    """

    base: memoryview | None
    base_version: int  # 0 when `base` is None
    patches: tuple[tuple[int, memoryview], ...]  # in version order

    @property
    def version(self) -> int:
        """The newest version that this read brought; 0 when nothing was new."""
        return self.patches[-1][0] if self.patches else self.base_version


class ObjectStore(Protocol):
    """Put, get, append, replace, delete. Every failure is a `ClusterError`, a missing key `ObjectMissingError`."""

    def put(self, prefix: str, data: Buffer, name: str | None = None) -> ObjectHandle:
        """A new object under ``<app>/<session>``, at version 1; a put to a name that exists replaces it."""
        ...

    def get(self, handle: ObjectHandle) -> memoryview:
        """The newest base, without patches."""
        ...

    def read(self, handle: ObjectHandle, after_version: int = 0) -> ObjectParts:
        """What is newer than `after_version`; all of it when the base is newer or the version is unknown."""
        ...

    def append(self, handle: ObjectHandle, data: Buffer) -> int:
        """Append one patch; its version."""
        ...

    def replace(self, handle: ObjectHandle, data: Buffer) -> int:
        """A new base, all patches dropped; its version."""
        ...

    def delete(self, prefix: str) -> None:
        """Delete a key, a session's objects (``<app>/<session>``) or an application's (``<app>/*``)."""
        ...


@dataclass(frozen=True, slots=True)
class GangMembership:
    """An executor's place in its gang. A generation ends with the first loss of a member.

    Example: ``GangMembership("g-1", 1, 2, ("0a1f", "77c2"), ("node-a", "node-b"))`` is the second of two.
    """

    generation: str
    rank: int
    world: int
    executors: tuple[str, ...]  # by rank
    hosts: tuple[str, ...]  # by rank


@dataclass(slots=True)
class ServiceContext:
    """What a service gets from the cluster when it is set up.

    Example: ``ServiceContext(objects, "seeker-1f/run-7-trainer", "0a1f", 1)``.
    """

    objects: ObjectStore
    prefix: str  # "<app>/<session>": where its objects go
    executor: str  # the executor's id
    set_up_count: int  # 1 for the first process behind this executor, 2 after that one was lost, ...
    gang: GangMembership | None = None  # set before the first call that is for a gang


def object_path(prefix: str, name: str | None) -> str:
    """Where a put goes. A reader's ticket ends the key with a colon, so that no name may have one."""
    parts = prefix.split("/") + ([] if name is None else [name])
    if prefix.count("/") != 1 or not all(parts) or any(re.search(r"[/\\*:]|\.\.", part) for part in parts):
        text = "expected <app>/<session> and a name, none of them empty or with / \\ * : or .. in it"
        raise ClusterError(f"object prefix {prefix!r}, name {name!r}: {text}")
    return "/".join(parts)


def as_buffer(data: Buffer) -> Any:
    """`data` as an Arrow buffer, without a copy."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ClusterError("an array must be C-contiguous to be stored; use numpy.ascontiguousarray")
        if data.dtype.hasobject:
            raise ClusterError(f"an array of {data.dtype} has no bytes to be stored; pickle it")
        data = data.reshape(-1).view(np.uint8).data
    try:
        buffer = pa.py_buffer(data)
    except TypeError as error:
        text = f"an object is bytes or an array, found {type(data).__name__}; encode or pickle it"
        raise ClusterError(text) from error
    if buffer.size > MAX_OBJECT_BYTES:
        raise ClusterError(f"an object of {buffer.size} bytes is above {MAX_OBJECT_BYTES}; store it in shards")
    return buffer


class FlightObjects:
    """The object store of a cluster, over Arrow Flight. Safe to use from several threads."""

    def __init__(self, endpoint: str, ca_file: str | None = None, deadline_s: float = OPERATION_DEADLINE_S) -> None:
        self.endpoint = endpoint
        self.prefixes: set[str] = set()  # where this store has put objects: deleted when the cluster is closed
        self._ca_file = ca_file
        self._deadline_s = deadline_s
        self._clients: dict[str, Any] = {}
        self._closed = False
        self._lock = threading.Lock()

    def put(self, prefix: str, data: Buffer, name: str | None = None) -> ObjectHandle:
        path = object_path(prefix, name)
        self.prefixes.add(prefix)
        return self._write(self.endpoint, path, flight.FlightDescriptor.for_path(path), data)

    def get(self, handle: ObjectHandle) -> memoryview:
        base = self.read(handle).base
        assert base is not None  # a read after version 0 always brings the base
        return base

    def read(self, handle: ObjectHandle, after_version: int = 0) -> ObjectParts:
        ticket = flight.Ticket(f"{handle.key}:{after_version}".encode())
        base: memoryview | None = None
        base_version = 0
        patches: list[tuple[int, memoryview]] = []
        with self._errors(handle.endpoint, handle.key):
            for chunk in self._client(handle.endpoint).do_get(ticket, self._options()):
                for version, kind, data in _rows(chunk.data):
                    if kind == "base":
                        base, base_version = data, version
                    else:
                        patches.append((version, data))
        return ObjectParts(base, base_version, tuple(patches))

    def append(self, handle: ObjectHandle, data: Buffer) -> int:
        descriptor = flight.FlightDescriptor.for_command(f"PATCH:{handle.key}".encode())
        return self._write(handle.endpoint, handle.key, descriptor, data).version

    def replace(self, handle: ObjectHandle, data: Buffer) -> int:
        descriptor = flight.FlightDescriptor.for_path(handle.key)
        return self._write(handle.endpoint, handle.key, descriptor, data).version

    def delete(self, prefix: str) -> None:
        with self._errors(self.endpoint, prefix):
            list(self._client(self.endpoint).do_action(flight.Action("DELETE", prefix.encode()), self._options()))

    def keys(self) -> list[str]:
        """Of all objects in the cache, whoever put them."""
        with self._errors(self.endpoint, "the list of objects"):
            infos = self._client(self.endpoint).list_flights(options=self._options())
            return [b"/".join(info.descriptor.path).decode() for info in infos]

    def statistics(self) -> dict[str, dict[str, int]] | None:
        """Objects and bytes by ``<app>/<session>``, which only an embedded cluster's cache tells; else None."""
        with self._errors(self.endpoint, "the cache's statistics"):
            action = flight.Action(STATISTICS_ACTION, b"")
            try:
                (result,) = self._client(self.endpoint).do_action(action, self._options())
            except (flight.FlightUnavailableError, flight.FlightTimedOutError):
                raise
            except (pa.ArrowException, OSError, ValueError, KeyError):  # each server refuses an unknown action its way
                return None
        return json.loads(result.body.to_pybytes())

    def exists(self, handle: ObjectHandle) -> bool:
        """Without its data, as long as its version is the handle's."""
        try:
            self.read(handle, handle.version)
        except ObjectMissingError:
            return False
        return True

    def wait_ready(self, deadline_s: float) -> None:
        """Raise unless the cache answers within `deadline_s`."""
        try:
            with self._errors(self.endpoint, "the cache's actions"):
                options = flight.FlightCallOptions(timeout=deadline_s)
                list(self._client(self.endpoint).list_actions(options))
        except ClusterError as error:
            raise type(error)(
                f"{error}; start the object cache there, or name another by cluster.cache_endpoint or "
                f"FLAME_CACHE_ENDPOINT (waited {deadline_s:g} s)"
            ) from error

    def close(self) -> None:
        with self._lock:
            clients, self._clients, self._closed = list(self._clients.values()), {}, True
        for client in clients:
            client.close()

    def _write(self, endpoint: str, path: str, descriptor: Any, data: Buffer) -> ObjectHandle:
        buffer = as_buffer(data)
        offsets = pa.array([0, buffer.size], pa.int32()).buffers()[1]
        column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, buffer])
        batch = pa.RecordBatch.from_arrays([pa.array([0], pa.uint64()), column], schema=_PUT_SCHEMA)
        with self._errors(endpoint, path):
            writer, reader = self._client(endpoint).do_put(descriptor, _PUT_SCHEMA, self._options())
            with writer:
                writer.write_batch(batch)
                writer.done_writing()
                reply = reader.read()
        if reply is None:
            raise ClusterError(f"object cache {endpoint} did not acknowledge the write of {path}")
        written = bson.decode(reply.to_pybytes())
        return ObjectHandle(written["key"], int(written["version"]), written["endpoint"])

    def _options(self) -> Any:
        return flight.FlightCallOptions(timeout=self._deadline_s)

    def _client(self, endpoint: str) -> Any:
        with self._lock:
            if self._closed:
                raise ClusterError(f"object cache {endpoint}: its client was closed here")
            client = self._clients.get(endpoint)
            if client is None:
                client = self._clients[endpoint] = self._connect(endpoint.replace("grpcs://", "grpc+tls://"))
            return client

    def _connect(self, location: str) -> Any:
        if location.startswith("grpc+tls://") and self._ca_file:
            certificates = Path(self._ca_file).read_bytes()
            return flight.FlightClient(location, tls_root_certs=certificates, generic_options=_OPTIONS)
        return flight.FlightClient(location, generic_options=_OPTIONS)

    @contextmanager
    def _errors(self, endpoint: str, what: str) -> Generator[None]:
        try:
            yield
        except KeyError as error:  # pyarrow's form of NOT_FOUND
            raise ObjectMissingError(f"object {what} is not in the cache {endpoint}") from error
        except flight.FlightTimedOutError as error:
            raise DeadlineError(f"object cache {endpoint}: {what}: no answer within the deadline") from error
        except flight.FlightUnavailableError as error:
            text = str(error).partition(_GRPC_DETAILS)[0]
            raise ClusterError(f"object cache {endpoint} cannot be reached: {text}") from error
        except (pa.ArrowException, OSError) as error:
            raise ClusterError(f"object cache {endpoint}: {what}: {error}") from error


def _rows(batch: Any) -> Iterator[tuple[int, str, memoryview]]:
    versions, kinds, values = batch.column("version"), batch.column("kind"), batch.column("data")
    for row in range(batch.num_rows):
        yield versions[row].as_py(), kinds[row].as_py(), memoryview(values[row].as_buffer())
