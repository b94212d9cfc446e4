"""Objects of the cluster's cache, read and appended to with own tickets; every operation has a deadline.

Not through the SDK's client: it keeps what it reads, and has no deadlines.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from typing import Any

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),  # a cache that was away is noticed soon after its return
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]


class MissingError(Exception):
    """The cache has no such object."""


class AwayError(Exception):
    """The cache did not answer in time, or not sensibly."""


@dataclass(frozen=True)
class Parts:
    """What is newer than the version read before.

    Example: base put (1) and appended to (2), read after version 1: ``Parts(None, (b"...",), 2)``.
    """

    base: Any  # a buffer; None: not newer
    patches: tuple[bytes, ...]
    version: int  # to read after the next time


class Store:
    """The object cache. Safe to use from several threads."""

    def __init__(self, endpoint: str, ca_file: str | None = None) -> None:
        self._location = endpoint.replace("grpcs://", "grpc+tls://")
        self._ca_file = ca_file
        self._lock = threading.Lock()
        self._client: Any = None

    def read(self, key: str, after: int = 0, seconds: float = 2.0) -> Parts:
        """`MissingError` where there is no such object, `AwayError` where the cache does not answer."""
        flight: Any = importlib.import_module("pyarrow.flight")
        base: Any = None
        patches: list[bytes] = []
        version = after
        try:
            ticket = flight.Ticket(f"{key}:{after}".encode())
            for chunk in self._connected(flight).do_get(ticket, flight.FlightCallOptions(timeout=max(seconds, 0.01))):
                rows = chunk.data
                for place in range(rows.num_rows):
                    value = rows.column("data")[place].as_buffer()
                    version = max(version, rows.column("version")[place].as_py())
                    if rows.column("kind")[place].as_py() == "base":
                        base, patches = value, []
                    else:
                        patches.append(value.to_pybytes())
        except KeyError:  # pyarrow's form of NOT_FOUND
            raise MissingError(f"object {key} is not in the cache {self._location}") from None
        except Exception as error:
            raise AwayError(f"object cache {self._location}: reading {key}: {_short(error)}") from None
        return Parts(base, tuple(patches), version)

    def append(self, key: str, data: bytes, seconds: float = 2.0) -> None:
        """Append a patch. When it fails it may have been appended nevertheless."""
        arrow: Any = importlib.import_module("pyarrow")
        flight: Any = importlib.import_module("pyarrow.flight")
        schema = arrow.schema([("version", arrow.uint64()), ("data", arrow.binary())])
        columns = [arrow.array([0], arrow.uint64()), arrow.array([data], arrow.binary())]
        try:
            descriptor = flight.FlightDescriptor.for_command(f"PATCH:{key}".encode())
            options = flight.FlightCallOptions(timeout=max(seconds, 0.01))
            writer, reader = self._connected(flight).do_put(descriptor, schema, options)
            with writer:
                writer.write_batch(arrow.RecordBatch.from_arrays(columns, schema=schema))
                writer.done_writing()
                reader.read()
        except KeyError:
            raise MissingError(f"object {key} is not in the cache {self._location}") from None
        except Exception as error:
            raise AwayError(f"object cache {self._location}: appending to {key}: {_short(error)}") from None

    def _connected(self, flight: Any) -> Any:
        with self._lock:
            if self._client is None:
                certificates: dict[str, Any] = {}
                if self._ca_file and self._location.startswith("grpc+tls://"):
                    with open(self._ca_file, "rb") as file:
                        certificates["tls_root_certs"] = file.read()
                self._client = flight.FlightClient(self._location, generic_options=_OPTIONS, **certificates)
            return self._client


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
