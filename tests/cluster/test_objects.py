"""Pinned behaviour of object stores; every test runs against the cluster's and against the fake.

1.  What is put is read back; versions start at 1 and rise by one at each write.
2.  Patches come in order; a reader gets only what is newer than the version it names.
3.  A reader at the newest version gets nothing; one with an unknown version gets everything.
4.  `replace` drops the patches; an older reader then gets the new base.
5.  `get` gives the base only.
6.  A missing key is `ObjectMissingError`, in get, read and append; deleting nothing is fine.
7.  Deleting takes a key, a session or an application, and nothing else with it.
8.  Bytes, memoryviews and contiguous arrays are stored as their bytes; an array with gaps is refused, and so is what
    has no bytes of its own.
9.  A named put to an existing name replaces it.
10. The 1001st patch is refused and the object is unharmed.
11. Concurrent appends make versions without gaps, in every interleaving.
12. Bad prefixes and names are refused, also with a colon, which ends the key in a reader's ticket.
13. A store of a cluster that was closed says so, and writes nothing more.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seeker.cluster.client import Cluster
from seeker.cluster.objects import FlightObjects, ObjectHandle, ObjectStore
from seeker.errors import ClusterError, ObjectMissingError
from tests.fakes import MemoryObjects


@pytest.fixture(params=["cluster", "memory"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    if request.param == "memory":
        return MemoryObjects()
    opened: Cluster = request.getfixturevalue("cluster")
    return opened.objects


@pytest.fixture
def prefix() -> str:
    return f"app/{uuid.uuid4().hex}"


def _patches(parts) -> list[tuple[int, bytes]]:
    return [(version, bytes(data)) for version, data in parts.patches]


def test_put_append_and_read_newer_parts(store: ObjectStore, prefix: str) -> None:
    handle = store.put(prefix, b"base")
    assert handle.version == 1
    assert handle.key.startswith(f"{prefix}/")
    assert [store.append(handle, data) for data in (b"two", b"three")] == [2, 3]
    everything = store.read(handle)
    assert (bytes(everything.base or b""), everything.base_version) == (b"base", 1)
    assert _patches(everything) == [(2, b"two"), (3, b"three")]
    assert everything.version == 3
    newer = store.read(handle, after_version=2)
    assert newer.base is None
    assert newer.base_version == 0
    assert _patches(newer) == [(3, b"three")]
    nothing = store.read(handle, after_version=3)
    assert (nothing.base, nothing.patches, nothing.version) == (None, (), 0)
    assert bytes(store.read(handle, after_version=99).base or b"") == b"base"
    assert bytes(store.get(handle)) == b"base"


def test_replace_drops_patches(store: ObjectStore, prefix: str) -> None:
    handle = store.put(prefix, b"old")
    store.append(handle, b"patch")
    assert store.replace(handle, b"new") == 3
    parts = store.read(handle, after_version=2)
    assert (bytes(parts.base or b""), parts.base_version, parts.patches) == (b"new", 3, ())
    assert store.append(handle, b"after") == 4
    assert _patches(store.read(handle, after_version=3)) == [(4, b"after")]


def test_missing_keys(store: ObjectStore, prefix: str) -> None:
    handle = store.put(prefix, b"x")
    store.delete(handle.key)
    store.delete(handle.key)
    for work in (lambda: store.get(handle), lambda: store.read(handle, 1), lambda: store.append(handle, b"y")):
        with pytest.raises(ObjectMissingError, match=handle.key):
            work()


def test_delete_by_key_session_and_application(store: ObjectStore) -> None:
    app = f"app{uuid.uuid4().hex[:8]}"
    one, two, other = (store.put(f"{app}/{name}", name.encode()) for name in ("s", "s", "s2"))
    foreign = store.put(f"{app}x/s", b"foreign")
    store.delete(one.key)
    assert bytes(store.get(two)) == b"s"
    store.delete(f"{app}/s")
    with pytest.raises(ObjectMissingError):
        store.get(two)
    assert bytes(store.get(other)) == b"s2"
    store.delete(f"{app}/*")
    with pytest.raises(ObjectMissingError):
        store.get(other)
    assert bytes(store.get(foreign)) == b"foreign"


def test_kinds_of_buffers(store: ObjectStore, prefix: str) -> None:
    array = np.arange(12, dtype=np.uint16).reshape(3, 4)
    for data, expected in [
        (array, array.tobytes()),
        (memoryview(b"view"), b"view"),
        (bytearray(b"ba"), b"ba"),
        (b"", b""),
    ]:
        assert bytes(store.get(store.put(prefix, data))) == expected
    assert np.array_equal(np.frombuffer(store.get(store.put(prefix, array)), np.uint16), array.reshape(-1))
    with pytest.raises(ClusterError, match="contiguous"):
        store.put(prefix, array.T)


def test_named_objects_are_replaced(store: ObjectStore, prefix: str) -> None:
    handle = store.put(prefix, b"1", name="manifest")
    assert handle.key == f"{prefix}/manifest"
    store.append(handle, b"p")
    assert store.put(prefix, b"3", name="manifest").version == 3
    assert bytes(store.get(ObjectHandle(f"{prefix}/manifest", 0, handle.endpoint))) == b"3"


def test_patch_limit(store: ObjectStore, prefix: str) -> None:
    handle = store.put(prefix, b"base")
    for _ in range(1000):
        store.append(handle, b"p")
    with pytest.raises(ClusterError, match="maximum delta count"):
        store.append(handle, b"too many")
    assert len(store.read(handle).patches) == 1000
    assert store.replace(handle, b"compact") == 1002
    store.delete(prefix)


def test_concurrent_appends(store: ObjectStore, prefix: str) -> None:
    handle = store.put(prefix, b"base")
    versions: list[int] = []

    def append(author: int) -> None:
        versions.extend(store.append(handle, bytes([author])) for _ in range(10))

    threads = [threading.Thread(target=append, args=(author,)) for author in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(2, 42))
    assert [version for version, _ in store.read(handle).patches] == list(range(2, 42))


@pytest.mark.parametrize("bad", ["text", None, np.array([None]), 7])
def test_what_has_no_bytes(store: ObjectStore, prefix: str, bad: Any) -> None:
    with pytest.raises(ClusterError, match="pickle it"):
        store.put(prefix, bad)


@pytest.mark.parametrize("bad", ["one", "a/b/c", "a//", "a/../", "*/b", "a/b*"])
def test_bad_prefixes(store: ObjectStore, bad: str) -> None:
    with pytest.raises(ClusterError):
        store.put(bad, b"x", name="n")


@pytest.mark.parametrize("bad", ["", "a/b", "..", "*", "a:1", "a\\b"])
def test_bad_names(store: ObjectStore, prefix: str, bad: str) -> None:
    with pytest.raises(ClusterError, match="name"):
        store.put(prefix, b"x", name=bad)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["append", "replace", "read"]), st.integers(0, 12)), max_size=12))
def test_both_stores_agree(cluster: Cluster, script: list[tuple[str, int]]) -> None:
    memory = MemoryObjects()
    prefix = f"app/{uuid.uuid4().hex}"
    stores: list[ObjectStore] = [cluster.objects, memory]
    handles = [each.put(prefix, b"base", name="x") for each in stores]
    for step, (action, number) in enumerate(script):
        data = f"{step}".encode()
        if action == "read":
            ours, theirs = (each.read(handle, number) for each, handle in zip(stores, handles, strict=True))
            assert _patches(ours) == _patches(theirs)
            assert (ours.base, ours.base_version) == (theirs.base, theirs.base_version)
        else:
            one, two = (getattr(each, action)(handle, data) for each, handle in zip(stores, handles, strict=True))
            assert one == two


def test_large_object_is_not_copied_needlessly(cluster: Cluster, prefix: str) -> None:
    data = np.random.default_rng(0).integers(0, 255, 50_000_000, dtype=np.uint8)
    handle = cluster.objects.put(prefix, data)
    assert np.array_equal(np.frombuffer(cluster.objects.get(handle), np.uint8), data)
    cluster.objects.delete(prefix)


def test_a_closed_store(cluster: Cluster, prefix: str) -> None:
    objects = FlightObjects(cluster.describe()["cache_endpoint"])
    handle = objects.put(prefix, b"x")
    objects.close()
    for work in (lambda: objects.put(prefix, b"y"), lambda: objects.get(handle)):
        with pytest.raises(ClusterError, match="its client was closed here"):
            work()
    objects.close()
