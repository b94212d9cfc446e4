"""The object cache on the wire.

1.  A put at `<app>/<session>` makes an id, at a full key it makes or replaces the object; the reply is one BSON
    message of endpoint, key and version. Rows and batches are joined.
2.  A get at version v brings nothing at the object's version, the patches after v where v is at or after the base,
    else everything; so it does for a version from the future, or none.
3.  Rows are version, kind and data; base first, patches in order of their versions.
4.  A patch needs its object; the key travels as the command `PATCH:<key>`.
5.  Unknown keys are not found, malformed ones invalid.
6.  DELETE takes a key, a session or an application, and is content when there was nothing.
7.  Every object has a flight with its key as ticket; actions and schema are told.
8.  A native table comes back as it came, with its version; patches of it are counted and never delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import bson
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.cluster.conformance.target import Target

SCHEMA = pa.schema([("version", pa.uint64()), ("data", pa.binary())])


@pytest.fixture(scope="module")
def client(target: Target) -> Iterator[flight.FlightClient]:
    if not target.cache_endpoint.startswith("grpc://"):
        pytest.skip("the raw checks speak without TLS")
    with flight.FlightClient(target.cache_endpoint) as opened:
        yield opened


@pytest.fixture
def prefix(client: flight.FlightClient, name: str) -> Iterator[str]:
    yield f"{name}/s"
    delete(client, f"{name}/*")


def put(client: flight.FlightClient, place: str, *values: bytes, patch: bool = False) -> dict[str, Any]:
    command = f"PATCH:{place}".encode()
    descriptor = flight.FlightDescriptor.for_command(command) if patch else flight.FlightDescriptor.for_path(place)
    writer, reader = client.do_put(descriptor, SCHEMA)
    for value in values:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([0], pa.uint64()), pa.array([value])], schema=SCHEMA))
    writer.done_writing()
    reply = reader.read()
    writer.close()  # raises what the server refused
    return bson.decode(bytes(reply))


def rows(client: flight.FlightClient, ticket: str) -> list[tuple[int, str, bytes]]:
    table = client.do_get(flight.Ticket(ticket.encode())).read_all()
    assert table.schema.names == ["version", "kind", "data"]
    return [(row["version"], row["kind"], row["data"]) for row in table.to_pylist()]


def delete(client: flight.FlightClient, place: str) -> list[bytes]:
    return [result.body.to_pybytes() for result in client.do_action(flight.Action("DELETE", place.encode()))]


def tickets(client: flight.FlightClient) -> set[str]:
    return {info.endpoints[0].ticket.ticket.decode() for info in client.list_flights()}


def test_put(client: flight.FlightClient, prefix: str) -> None:  # 1
    first = put(client, prefix, b"one")
    assert set(first) == {"endpoint", "key", "version"}
    assert first["key"].rpartition("/")[0] == prefix
    assert first["version"] == 1
    assert put(client, prefix, b"two")["key"] != first["key"]
    named = put(client, f"{prefix}/named", b"ab", b"", b"cd")
    assert (named["key"], named["version"]) == (f"{prefix}/named", 1)
    assert rows(client, named["key"]) == [(1, "base", b"abcd")]
    assert put(client, f"{prefix}/named", b"new")["version"] == 2
    assert rows(client, named["key"]) == [(2, "base", b"new")]


def test_versions(client: flight.FlightClient, prefix: str) -> None:  # 2, 3
    key = put(client, f"{prefix}/o", b"old")["key"]
    put(client, key, b"base")
    assert [put(client, key, data, patch=True)["version"] for data in (b"p", b"q", b"r")] == [3, 4, 5]
    full = [(2, "base", b"base"), (3, "patch", b"p"), (4, "patch", b"q"), (5, "patch", b"r")]
    for known in ("", ":0", ":1", ":9"):
        assert rows(client, key + known) == full, known
    assert [rows(client, f"{key}:{version}") for version in (2, 3, 4, 5)] == [full[1:], full[2:], full[3:], []]
    assert put(client, key, b"again")["version"] == 6
    for known in (":0", ":2", ":5"):
        assert rows(client, key + known) == [(6, "base", b"again")]
    assert rows(client, f"{key}:6") == []


def test_patches_need_their_object(client: flight.FlightClient, prefix: str) -> None:  # 4
    with pytest.raises((KeyError, flight.FlightError, pa.ArrowException)):
        put(client, f"{prefix}/none", b"x", patch=True)
    assert f"{prefix}/none" not in tickets(client)


def test_bad_keys(client: flight.FlightClient, prefix: str) -> None:  # 5
    with pytest.raises(KeyError):
        rows(client, f"{prefix}/none:0")
    for place in ("one", f"{prefix}/a/b", f"{prefix}/..", f"{prefix}/"):
        with pytest.raises((pa.ArrowException, flight.FlightError, ValueError)):
            put(client, place, b"x")


def test_delete(client: flight.FlightClient, name: str) -> None:  # 6
    keys = [put(client, place, b"x")["key"] for place in (f"{name}/a/1", f"{name}/a/2", f"{name}/b/1", f"{name}b/a/1")]
    assert delete(client, keys[0]) == [b"OK"]
    assert tickets(client) & set(keys) == set(keys[1:])
    assert delete(client, f"{name}/a") == [b"OK"]
    assert tickets(client) & set(keys) == set(keys[2:])
    for _ in range(2):
        assert delete(client, f"{name}/*") == [b"OK"]
        assert tickets(client) & set(keys) == {keys[3]}
    delete(client, f"{name}b/*")
    with pytest.raises(KeyError):
        rows(client, keys[0])
    assert put(client, keys[0], b"y")["version"] == 1  # a new life
    delete(client, f"{name}/*")


def test_flights_actions_and_schema(client: flight.FlightClient, prefix: str) -> None:  # 7
    key = put(client, prefix, b"x")["key"]
    descriptor = flight.FlightDescriptor.for_path(key)
    info = client.get_flight_info(descriptor)
    assert info.endpoints[0].ticket.ticket == key.encode()
    assert info.endpoints[0].locations
    assert (info.total_records, info.total_bytes) == (-1, -1)
    assert rows(client, info.endpoints[0].ticket.ticket.decode()) == [(1, "base", b"x")]
    assert key in tickets(client)
    assert "DELETE" in [action.type for action in client.list_actions()]
    assert {"version", "data"} <= set(client.get_schema(descriptor).schema.names)
    with pytest.raises((flight.FlightError, pa.ArrowException)):
        list(client.do_action(flight.Action("NOTHING", b"")))


def test_native_tables(client: flight.FlightClient, prefix: str) -> None:  # 8
    marks = {b"flame.cache.format": b"arrow-table-v1", b"flame.cache.version": b"0", b"own": b"kept"}
    table = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]}).replace_schema_metadata(marks)
    writer, reader = client.do_put(flight.FlightDescriptor.for_path(f"{prefix}/table"), table.schema)
    writer.write_table(table, max_chunksize=2)
    writer.done_writing()
    assert bson.decode(bytes(reader.read()))["version"] == 1
    writer.close()
    key = f"{prefix}/table"
    got = client.do_get(flight.Ticket(f"{key}:0".encode())).read_all()
    assert got.to_pylist() == table.to_pylist()
    assert (got.schema.metadata[b"flame.cache.version"], got.schema.metadata[b"own"]) == (b"1", b"kept")
    assert client.do_get(flight.Ticket(f"{key}:1".encode())).read_all().num_rows == 0
    assert put(client, key, b"patch", patch=True)["version"] == 2
    again = client.do_get(flight.Ticket(f"{key}:1".encode())).read_all()
    assert (again.num_rows, again.schema.metadata[b"flame.cache.version"]) == (3, b"2")
