"""Pinned behaviour of the embedded object cache, through Flight as the SDK speaks it.

1.  A get with the newest version brings nothing, with an older one only the patches after it, with one that the server
    never gave everything.
2.  Native tables come back as they were, with the version; a patch on one is counted and never delivered.
3.  The 1001st patch is refused with the engine's words; unknown keys, commands, schemas and actions are refused.
4.  Versions have no gaps under concurrent writers, whatever they write, and readers see consistent prefixes meanwhile.
5.  Above the memory limit least recently used payloads go to private files; every object is still there, unchanged.
6.  A spilled payload's file goes with it, a reader of it finishes; no descriptor stays open.
7.  When a file cannot be written the object stays in memory and is not lost.
8.  Statistics tell objects and bytes by session, through an action that is not listed.
9.  Memory and descriptors are flat over thousands of objects put and deleted.
10. A client goes on with a cache that was restarted at its address; one that is not there is named with a remedy.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import bson
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.local.payloads import Payload, Shelf
from seeker.cluster.objects import FlightObjects, ObjectHandle
from seeker.errors import ClusterError
from tests.cluster.conftest import wait_until

NATIVE = {b"flame.cache.format": b"arrow-table-v1", b"flame.cache.logical_type": b"pyarrow.table"}
MIB = 2**20


class Served:
    """A cache that listens, and two clients of it: Flight's own and ours."""

    def __init__(self, shelf: Shelf | None = None, location: str = "grpc://127.0.0.1:0") -> None:
        self.cache = ObjectCache(location, shelf)
        self.thread = threading.Thread(target=self.cache.serve, daemon=True)
        self.thread.start()
        self.client = flight.FlightClient(self.cache.endpoint)
        self.objects = FlightObjects(self.cache.endpoint)

    def get(self, key: str, version: int = 0) -> pa.Table:
        return self.client.do_get(flight.Ticket(f"{key}:{version}".encode())).read_all()

    def put_table(self, path: str, table: pa.Table) -> dict:
        writer, reader = self.client.do_put(flight.FlightDescriptor.for_path(path), table.schema)
        with writer:
            writer.write_table(table)
            writer.done_writing()
            return bson.decode(reader.read().to_pybytes())

    def statistics(self) -> dict[str, dict[str, int]]:
        told = self.objects.statistics()
        assert told is not None
        return told

    def close(self) -> None:
        self.objects.close()
        self.client.close()
        self.cache.shutdown()
        self.thread.join(timeout=10)


@pytest.fixture
def served() -> Iterator[Served]:
    opened = Served()
    yield opened
    opened.close()


@pytest.fixture
def spilling(tmp_path: Path) -> Iterator[Served]:
    opened = Served(Shelf(tmp_path, 2 * MIB))
    yield opened
    opened.close()


def test_gets_bring_what_is_newer(served: Served) -> None:
    handle = served.objects.put("app/s", b"base", name="x")
    for data in (b"two", b"three"):
        served.objects.append(handle, data)
    rows = [
        [("base", 1), ("patch", 2), ("patch", 3)],
        [("patch", 2), ("patch", 3)],
        [("patch", 3)],
        [],
        [("base", 1), ("patch", 2), ("patch", 3)],
    ]
    for version, expected in enumerate(rows):
        table = served.get("app/s/x", version)
        assert list(zip(table["kind"].to_pylist(), table["version"].to_pylist(), strict=True)) == expected


def test_native_tables(served: Served, spilling: Served) -> None:
    table = pa.table({"a": np.arange(1_000_000)}).replace_schema_metadata(NATIVE)
    for each in (served, spilling):
        assert each.put_table("app/s/t", table)["version"] == 1
        assert each.objects.append(ObjectHandle("app/s/t", 1, each.cache.endpoint), b"lost") == 2
        back = each.get("app/s/t", 1)
        assert back.column("a") == table.column("a")
        assert back.schema.metadata[b"flame.cache.version"] == b"2"
        assert each.get("app/s/t", 2).num_rows == 0
    assert spilling.statistics()["app/s"]["spilled_bytes"] == table.nbytes


def test_refusals(served: Served) -> None:
    handle = served.objects.put("app/s", b"base")
    for _ in range(1000):
        served.objects.append(handle, b"p")
    with pytest.raises(ClusterError, match=r"has reached maximum delta count \(1000\)"):
        served.objects.append(handle, b"p")
    with pytest.raises(KeyError, match="not found"):
        served.get("app/s/none")
    with pytest.raises(pa.ArrowInvalid, match="schema is"):
        served.put_table("app/s/x", pa.table({"a": [1]}))
    with pytest.raises(pa.ArrowInvalid, match="unknown command"):
        served.client.do_put(flight.FlightDescriptor.for_command(b"DROP:x"), pa.schema([("data", pa.binary())]))[
            1
        ].read()
    with pytest.raises(flight.FlightServerError, match="unknown action"):
        list(served.client.do_action(flight.Action("DROP", b"")))
    assert [action.type for action in served.client.list_actions()] == ["DELETE"]


def test_concurrent_writers_leave_no_gaps(served: Served) -> None:
    handle = served.objects.put("app/s", b"0", name="x")
    versions: list[int] = []
    wrong: list[str] = []
    done = threading.Event()

    def write(author: int) -> None:
        for turn in range(40):
            work = served.objects.replace if (turn + author) % 4 == 0 else served.objects.append
            versions.append(work(handle, bytes([author, turn])))

    def read() -> None:
        while not done.is_set():
            parts = served.objects.read(handle)
            found = [parts.base_version, *(version for version, _ in parts.patches)]
            if found != list(range(found[0], found[0] + len(found))):
                wrong.append(f"{found}")

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=write, args=(author,)) for author in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert sorted(versions) == list(range(2, 162))
    assert not wrong


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("prad"), st.integers(0, 5), st.integers(0, 9)), max_size=40))
def test_a_memory_limit_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int, int]]
) -> None:
    """The same operations with a limit and without give the same answers, and leave the same objects."""
    served = Served(Shelf(tmp_path_factory.mktemp("spill"), 20_000))
    free = Served()
    for step, (action, name, size) in enumerate(script):
        data = bytes([step % 256]) * (size * 2500)
        assert _do(served, action, f"n{name}", data) == _do(free, action, f"n{name}", data)
    for opened in (served, free):
        opened.close()


def _do(served: Served, action: str, name: str, data: bytes) -> object:
    handle = ObjectHandle(f"app/s/{name}", 1, served.cache.endpoint)
    try:
        if action == "p":
            return served.objects.put("app/s", data, name=name).version
        if action == "a":
            return served.objects.append(handle, data)
        if action == "d":
            return served.objects.delete(handle.key)
        parts = served.objects.read(handle)
        return bytes(parts.base or b""), [(version, bytes(patch)) for version, patch in parts.patches]
    except ClusterError as error:
        return type(error).__name__


def test_spilled_objects_are_all_there(spilling: Served, tmp_path: Path) -> None:
    arrays = [np.random.default_rng(seed).integers(0, 255, MIB // 4, dtype=np.uint8) for seed in range(32)]
    handles = [spilling.objects.put("app/s", array) for array in arrays]
    told = spilling.statistics()["app/s"]
    assert told["num_objects"] == 32
    assert told["memory_bytes"] <= 2 * MIB
    assert told["memory_bytes"] + told["spilled_bytes"] == 8 * MIB
    files = list(tmp_path.glob("*.spilled"))
    assert sum(file.stat().st_size for file in files) == told["spilled_bytes"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    num_open = len(os.listdir("/proc/self/fd"))
    for handle, array in zip(handles, arrays, strict=True):
        assert np.array_equal(np.frombuffer(spilling.objects.get(handle), np.uint8), array)
    assert len(os.listdir("/proc/self/fd")) == num_open
    spilling.objects.delete("app/s")
    assert not list(tmp_path.glob("*.spilled"))


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 3 * 10_000)
    payloads = [shelf.add(Payload(pa.py_buffer(bytes(10_000)))) for _ in range(3)]
    shelf.read(payloads[0])
    shelf.add(Payload(pa.py_buffer(bytes(10_000))))
    assert [payload.is_spilled for payload in payloads] == [False, True, False]


def test_a_reader_outlives_the_deletion(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0)
    payload = shelf.add(Payload(pa.py_buffer(b"x" * 10_000)))
    data = shelf.read(payload)
    shelf.discard(payload)
    assert bytes(shelf.read(payload)) == b"x" * 10_000
    del payload
    assert not list(tmp_path.iterdir())
    assert bytes(data) == b"x" * 10_000


def test_a_full_disk_loses_nothing(spilling: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(tmp_path)
    handles = [spilling.objects.put("app/s", bytes([place]) * MIB) for place in range(6)]
    assert [bytes(spilling.objects.get(handle))[:1] for handle in handles] == [bytes([place]) for place in range(6)]
    assert spilling.statistics()["app/s"]["memory_bytes"] == 6 * MIB
    assert caplog.text.count("stays in memory") == 1  # not once per object


def test_memory_is_flat(served: Served) -> None:
    def rounds(count: int) -> None:
        for _ in range(count):
            handle = served.objects.put("app/s", b"x" * 10_000)
            served.objects.append(handle, b"y" * 2_000)
            served.objects.get(handle)
            served.objects.delete(handle.key)

    rounds(150)
    memory, num_open = _resident_bytes(), len(os.listdir("/proc/self/fd"))
    rounds(300)
    assert _resident_bytes() < memory * 1.1
    assert len(os.listdir("/proc/self/fd")) <= num_open + 2
    assert served.statistics() == {}


def test_a_cache_that_restarts() -> None:
    first = Served()
    objects = FlightObjects(first.cache.endpoint)
    handle = objects.put("app/s", b"x")
    first.close()
    for work in (lambda: objects.get(handle), lambda: objects.put("app/s", b"x")):
        with pytest.raises(ClusterError, match=r"cannot be reached: .* Connection refused$"):
            work()
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1.* start the object cache there, or name another by"):
        objects.wait_ready(1.0)
    second = Served(location=first.cache.endpoint)
    wait_until(lambda: _answers(objects), 10, "the client finds it again")
    assert objects.put("app/s", b"y").version == 1
    objects.close()
    second.close()


def _answers(objects: FlightObjects) -> bool:
    try:
        return objects.keys() == []
    except ClusterError:
        return False


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
