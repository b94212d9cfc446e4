"""Objects through the SDK.

1.  A put has version 1 and a key `<app>/<session>/<id>`; update and patch raise the version by one.
2.  A get brings the newest whatever the reference says; version 0 only goes round the client's own copy.
3.  Without a deserializer a get is the base; with one, the base and all patches so far, not only the new ones.
4.  Only what a reader has not seen travels.
5.  An update drops the patches.
6.  Deletion by object, session, application; of nothing too. Missing objects are KeyErrors to read.
7.  Malformed keys are ValueErrors before anything is sent.
8.  References travel as BSON.
9.  Patches of concurrent writers are all there, in an order of versions without a gap; concurrent updates leave one.
10. A thousand patches are the limit (drill).
11. Two hundred megabytes pass in one piece (drill), twenty by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import flamepy
import pytest
from flamepy.core import cache
from flamepy.core.cache import ObjectRef


@pytest.fixture
def prefix(name: str) -> Iterator[str]:
    yield f"{name}/s"
    cache.delete_objects(f"{name}/*")


def together(base: object, patches: list[object]) -> list[object]:
    return [base, *patches]


def fresh(ref: ObjectRef) -> list[object]:
    """Base and patches as a client sees them that has no copy."""
    return cache.get_object(ObjectRef(ref.endpoint, ref.key, 0), together)


def test_versions(prefix: str) -> None:  # 1, 5
    ref = cache.put_object(prefix, "a")
    assert ref.version == 1
    assert ref.key.startswith(f"{prefix}/")
    patched = cache.patch_object(ref, "p")
    updated = cache.update_object(ref, "b")
    again = cache.patch_object(ref, "q")
    assert [each.version for each in (patched, updated, again)] == [2, 3, 4]
    assert {each.key for each in (patched, updated, again)} == {ref.key}
    assert fresh(ref) == ["b", "q"]
    assert cache.put_object(prefix, "a").key != ref.key


def test_the_newest_is_read(prefix: str) -> None:  # 2, 3
    ref = flamepy.put_object(prefix, {"n": 1})
    assert flamepy.get_object(ref) == {"n": 1}
    flamepy.update_object(ref, {"n": 2})
    for version in (0, 1, 2, 77):
        assert flamepy.get_object(ObjectRef(ref.endpoint, ref.key, version)) == {"n": 2}
    cache.patch_object(ref, "p")
    assert flamepy.get_object(ref) == {"n": 2}
    assert cache.get_object(ref, together) == [{"n": 2}, "p"]


def test_patches_come_in_order_and_all(prefix: str) -> None:  # 3, 4
    ref = cache.put_object(prefix, 0)
    for number in range(1, 6):
        cache.patch_object(ref, number)
        assert cache.get_object(ref, together) == list(range(number + 1))
    news = cache._fetch_object_data(ref, 4)
    assert [(patch.version, patch.data) for patch in news.patches] == [(5, 4), (6, 5)]
    assert news.base is None
    assert cache._fetch_object_data(ref, 6) is None
    assert cache._fetch_object_data(ref, 0).base == 0


def test_a_reader_follows_another_writer(prefix: str) -> None:  # 2, 4
    """The writer drops its own copy; a reader keeps its own and adds what is new."""
    ref = cache.put_object(prefix, "base")
    assert cache.get_object(ref, together) == ["base"]
    kept = dict(cache._object_cache)
    cache.patch_object(ref, "p")
    cache._object_cache.update(kept)  # as in another process
    assert cache.get_object(ref, together) == ["base", "p"]
    kept = dict(cache._object_cache)
    cache.update_object(ref, "new")
    cache._object_cache.update(kept)
    assert cache.get_object(ref, together) == ["new"]


def test_deletion(name: str) -> None:  # 6
    refs = [cache.put_object(f"{name}/{session}", session) for session in ("a", "a", "b")]
    cache.delete_objects(refs[0].key)
    with pytest.raises(KeyError):
        cache.get_object(refs[0])
    assert cache.get_object(refs[1]) == "a"
    cache.delete_objects(f"{name}/a")
    with pytest.raises(KeyError):
        cache.get_object(refs[1])
    assert cache.get_object(refs[2]) == "b"
    for _ in range(2):
        cache.delete_objects(f"{name}/*")
    with pytest.raises(KeyError):
        cache.get_object(refs[2])
    with pytest.raises((KeyError, ValueError)):
        cache.patch_object(refs[2], "p")
    assert cache.update_object(refs[2], "back").version == 1
    cache.delete_objects(f"{name}/*")


@pytest.mark.parametrize("bad", ["", "one", "/s", "a/", "a/b/c/d", "*/s", "a/..", "a\\b/s"])
def test_malformed_prefixes(bad: str) -> None:  # 7
    for work in (lambda: cache.put_object(bad, 1), lambda: cache.delete_objects(bad)):
        with pytest.raises(ValueError, match=r"cannot be empty|[Ii]nvalid|not allowed"):
            work()
    with pytest.raises(ValueError, match=r"cannot be empty|[Ii]nvalid|not allowed"):
        cache.get_object(ObjectRef("grpc://127.0.0.1:1", bad))


def test_references(prefix: str) -> None:  # 8
    ref = cache.put_object(prefix, [1, 2])
    assert ObjectRef.decode(ref.encode()) == ref
    assert cache.get_object(ObjectRef.decode(ref.encode())) == [1, 2]


def test_concurrent_patches(prefix: str) -> None:  # 9
    ref = cache.put_object(prefix, "base")

    def write(writer: int) -> list[int]:
        return [cache.patch_object(ref, (writer, number)).version for number in range(15)]

    with ThreadPoolExecutor(8) as threads:
        versions = [version for written in threads.map(write, range(8)) for version in written]
    assert sorted(versions) == list(range(2, 122))
    base, *patches = fresh(ref)
    assert base == "base"
    assert sorted(patches) == [(writer, number) for writer in range(8) for number in range(15)]
    for writer in range(8):  # each writer's own come in its order
        assert [patch for patch in patches if patch[0] == writer] == [(writer, number) for number in range(15)]


def test_concurrent_updates(prefix: str) -> None:  # 9
    ref = cache.put_object(prefix, -1)
    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(lambda number: cache.update_object(ref, number).version, range(40)))
    assert sorted(written) == list(range(2, 42))
    assert fresh(ref) == [written.index(41)]


@pytest.mark.drill
def test_the_limit_of_patches(prefix: str) -> None:  # 10
    ref = cache.put_object(prefix, "base")
    for number in range(1000):
        cache.patch_object(ref, number)
    with pytest.raises(Exception, match=r"maximum delta count \(1000\)"):
        cache.patch_object(ref, 1000)
    assert fresh(ref) == ["base", *range(1000)]
    assert cache.update_object(ref, "compact").version == 1002
    assert cache.patch_object(ref, "again").version == 1003


@pytest.mark.parametrize("num_bytes", [20_000_000, pytest.param(200_000_000, marks=pytest.mark.drill)])
def test_large_objects(prefix: str, num_bytes: int) -> None:  # 11
    data = bytes(range(250)) * (num_bytes // 250)
    ref = cache.put_object(prefix, data)
    assert cache.get_object(ref) == data
    cache.delete_objects(ref.key)
