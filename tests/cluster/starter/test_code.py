"""Pinned behaviour of the code on a node, its devices and its starter's sources.

1.  A tree with the right digest is used where it lies, whatever else is named; an edited one is not.
2.  Otherwise the archive is unpacked once per node, however many executors come at once, into a folder of our own.
3.  A damaged, partial or foreign tree under the digest's name is made anew; a damaged archive, one that is missing and
    a folder that is open to others are named.
4.  The newest trees are kept, and those that a process uses; a killed unpacking's remains go.
5.  A service whose code came from the archive runs it, also when the working directory holds another.
6.  Free devices are taken all or none, are held by the process for its life, and are free when it is killed. So are
    those of an assignment that names more than the service asks for: all executors of the node have the same.
7.  Devices: the assigned ones, the override, the device files.
8.  The starter's sources need the standard library alone at import, parse as Python 3.10, are shipped whole, and work
    on other Pythons.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seeker.cluster import archive
from seeker.cluster import session as sessions
from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.objects import FlightObjects
from seeker.cluster.starter import code, gpus
from seeker.cluster.starter.code import find_code
from seeker.cluster.starter.running import Failure, Request, RunningCall, Stranger
from tests.cluster.starter.conftest import ROOT, Session

STARTER = Path(ROOT) / "seeker" / "cluster" / "starter"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's folder for temporary files."""
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "lib" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "lib" / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / "tree" / "lib" / "sub" / "data.txt").write_text("data")
    return tmp_path / "tree"


def running(seconds: float = 30.0) -> RunningCall:
    return RunningCall(Request("echo", b"", seconds, None, "c", None, None), "probe.echo")


def published(cache: ObjectCache, tree: Path, packages: tuple[str, ...] = ("lib",)) -> dict[str, Any]:
    data, digest = archive.pack(packages, [str(tree)])
    handle = FlightObjects(cache.endpoint).put(f"seeker-code/{digest}", data, "archive")
    return {"digest": digest, "key": handle.key, "endpoint": cache.endpoint, "roots": [], "packages": list(packages)}


def found(wanted: dict[str, Any], **changes: Any) -> str:
    place = find_code({**wanted, **changes}, running())
    if place.descriptor is not None:
        os.close(place.descriptor)
    return place.paths[0]


def test_a_tree_in_place(cache: ObjectCache, tree: Path, node: Path) -> None:
    wanted = published(cache, tree)
    assert found(wanted, roots=["/no/such", str(tree)], endpoint="grpc://127.0.0.1:9") == str(tree)
    assert not list(node.iterdir())
    (tree / "lib" / "__init__.py").write_text("VALUE = 2\n")
    unpacked = Path(found(wanted, roots=[str(tree)]))
    assert unpacked.parent.parent == node
    assert (unpacked / "lib" / "__init__.py").read_text() == "VALUE = 1\n"
    assert (unpacked.parent.stat().st_mode & 0o777, unpacked.stat().st_mode & 0o777) == (0o700, 0o700)


def test_unpacked_once(cache: ObjectCache, tree: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = published(cache, tree)
    counted: list[float] = []

    def slow(data: bytes, directory: str) -> None:
        counted.append(time.monotonic())
        time.sleep(0.1)
        archive.unpack(data, directory)

    monkeypatch.setattr(code, "unpack", slow)
    with ThreadPoolExecutor(8) as threads:
        places = set(threads.map(lambda _: found(wanted), range(8)))
    assert len(places) == len(counted) == 1


def test_damaged_partial_and_foreign_trees(cache: ObjectCache, tree: Path, node: Path, tmp_path: Path) -> None:
    wanted = published(cache, tree)
    place = Path(found(wanted))
    (place / "lib" / "__init__.py").write_text("import os\n")
    assert (Path(found(wanted)) / "lib" / "__init__.py").read_text() == "VALUE = 1\n"
    (place / "lib" / "sub" / "data.txt").unlink()
    assert (Path(found(wanted)) / "lib" / "sub" / "data.txt").exists()
    (place / "lib" / "__pycache__").mkdir()
    (place / "lib" / "__pycache__" / "x.pyc").write_bytes(b"kept")
    assert (Path(found(wanted)) / "lib" / "__pycache__" / "x.pyc").exists()
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tree)
    assert not Path(found(wanted)).is_symlink()
    assert tree.exists()


def test_what_cannot_be_unpacked_is_named(cache: ObjectCache, tree: Path, node: Path) -> None:
    wanted = published(cache, tree)
    store = FlightObjects(cache.endpoint)
    damaged = store.put("seeker-code/damaged", archive.pack(["lib"], [str(tree)])[0][:-40], "archive").key
    (tree / "lib" / "more.py").touch()
    other = store.put("seeker-code/other", archive.pack(["lib"], [str(tree)])[0], "archive").key
    for changes, text in (
        ({"key": "seeker-code/none/archive"}, "object seeker-code/none/archive is not in the cache"),
        ({"key": damaged}, f"archive of code {wanted['digest']} cannot be unpacked"),
        ({"key": other}, "it holds the tree"),
    ):
        with pytest.raises(Failure, match=text) as caught:
            found(wanted, **changes)
        assert caught.value.kind == "setup"
    folder = node / f"seeker-code-{os.getuid()}"
    assert sorted(path.name for path in folder.iterdir()) == [code.LOCK_NAME]
    with pytest.raises(Failure, match=r"fetching its code, did not finish within its deadline.*127.0.0.1:9"):
        find_code({**wanted, "endpoint": "grpc://127.0.0.1:9"}, running(1.0))
    folder.chmod(0o755)
    with pytest.raises(Failure, match=r"is not a folder of user .* alone; remove it, or set TMPDIR"):
        found(wanted)


def test_old_trees_go(cache: ObjectCache, tree: Path, node: Path) -> None:
    (node / f"seeker-code-{os.getuid()}").mkdir(mode=0o700)
    (node / f"seeker-code-{os.getuid()}" / "abc.123.part").mkdir()
    used = find_code(published(cache, tree), running())
    places: list[str] = []
    for number in range(code.NUM_KEPT + 2):
        (tree / "lib" / "number.txt").write_text(str(number))
        places.append(found(published(cache, tree)))
        os.utime(places[-1], (1e9 + number, 1e9 + number))
    os.utime(used.paths[0], (0, 0))
    (tree / "lib" / "number.txt").write_text("last")
    found(published(cache, tree))
    assert Path(used.paths[0]).exists()
    assert [Path(place).exists() for place in places] == [False] * 3 + [True] * (code.NUM_KEPT - 1)
    assert not list((node / f"seeker-code-{os.getuid()}").glob("*.part"))


def test_a_service_runs_the_archived_code(
    session: Session, cache: ObjectCache, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = published(cache, Path(ROOT), ("seeker", "tests"))
    monkeypatch.chdir(ROOT)  # which holds the same modules
    executor = session.executor(code=wanted)
    path = executor.value("path")
    place = node / f"seeker-code-{os.getuid()}" / wanted["digest"]
    assert Path(path).is_relative_to(place)
    assert not _is_free(f"{place}.use")
    executor.call("exit", 0)
    assert _is_free(f"{place}.use")
    assert session.executor("ex-1", code={**wanted, "roots": [ROOT]}).value("path").startswith(f"{ROOT}/tests")


def _is_free(path: str) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


# -- devices -----------------------------------------------------------------------------------------------------------


def test_devices_are_taken_all_or_none(node: Path) -> None:
    devices = ["0", "1", "2"]
    first = gpus.take_devices(2, devices, running())
    assert list(first) == ["0", "1"]
    with pytest.raises(Stranger, match="2 GPUs are asked for, 1 of 3 are free"):
        gpus.take_devices(2, devices, running(), wait_s=0.3)
    second = gpus.take_devices(1, devices, running())
    assert list(second) == ["2"]
    gpus.release(second)
    threading.Timer(0.3, gpus.release, (first,)).start()
    third = gpus.take_devices(3, devices, running())
    assert list(third) == devices
    gpus.release(third)


def test_a_process_holds_its_devices(session: Session, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    monkeypatch.setenv(gpus.OVERRIDE, "0,1")
    executors = [session.executor(f"ex-{number}", resources={"gpu": 1}) for number in range(2)]
    assert [each.value("variable", gpus.VARIABLE) for each in executors] == ["0", "1"]
    executors[0].value("start_child")
    locks = [str(node / f"seeker-gpu-{os.getuid()}" / f"{index}.lock") for index in range(2)]
    assert [_is_free(lock) for lock in locks] == [False, False]
    assert executors[0].call("sleep", 600, seconds=0.3)["kind"] == "deadline"
    assert [_is_free(lock) for lock in locks] == [True, False]
    assert executors[0].value("variable", gpus.VARIABLE) == "0"
    monkeypatch.setenv(gpus.VARIABLE, "7")
    assert session.executor("ex-2", resources={"gpu": 1}).value("variable", gpus.VARIABLE) == "7"


def test_what_is_assigned_to_several_is_shared_out(
    session: Session, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpus.VARIABLE, "4,5,6,7")
    executors = [session.executor(f"ex-{number}", resources={"gpu": number}) for number in (1, 2)]
    assert [each.value("variable", gpus.VARIABLE) for each in executors] == ["4", "5,6"]


def test_which_devices_there_are(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "sda1"):
        (tmp_path / name).touch()
    assert gpus.node_devices({}, str(tmp_path)) == ["0", "2", "10"]
    assert gpus.node_devices({gpus.OVERRIDE: "3, 4"}, str(tmp_path)) == ["3", "4"]
    assert gpus.node_devices({gpus.OVERRIDE: ""}, str(tmp_path)) == []
    assert gpus.assigned_devices({}) is None
    assert gpus.assigned_devices({gpus.VARIABLE: ""}) == []
    assert gpus.assigned_devices({gpus.VARIABLE: "0,MIG-1f,-1,2"}) == ["0", "MIG-1f"]


# -- sources -----------------------------------------------------------------------------------------------------------


def test_sources_are_shipped_whole_and_need_the_standard_library() -> None:
    shipped = sessions.starter_sources()
    files = {path.stem for path in STARTER.glob("*.py")} - {"__init__", "boot", "leash"}
    assert {name.rpartition(".")[2] for name in shipped} == files | {"archive"}
    assert list(shipped)[-1] == "starter.starter"
    seen: set[str] = set()
    for name, source in {**shipped, "boot": (STARTER / "boot.py").read_text()}.items():
        module = ast.parse(source, feature_version=(3, 10))
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                assert all(alias.name.partition(".")[0] in sys.stdlib_module_names for alias in node.names), name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").partition(".")[0] in sys.stdlib_module_names, name
            elif isinstance(node, ast.ImportFrom):
                wanted = [node.module] if node.module else [alias.name for alias in node.names]
                assert set(wanted) <= seen, f"{name} needs {wanted} before it"
        seen.add(name.rpartition(".")[2])


PROBE = """
import json, pickle, sys
space = {}
exec(json.load(open(sys.argv[1]))["boot"], space)
starter = space["load"](json.load(open(sys.argv[1]))["sources"])
setup = {"name": "probe", "cache_endpoint": "grpc://127.0.0.1:9", "cancel_key": "a/b/cancel", "prefix": "a/b",
         "code": {"digest": "x", "key": "a/b/code", "endpoint": "grpc://127.0.0.1:9", "packages": ["a"], "roots": []},
         "target": "a:B", "log_dir": None}
made = starter.configured(setup)()
kinds = [made.call({"method": "@about", "arguments": b"", "seconds": 5.0})["kind"], made.call(3)["kind"]]
reply = made.call({"method": "echo", "arguments": b"", "seconds": 0.5})
print(json.dumps([*kinds, reply["kind"], reply["message"]]))
"""


def _pythons() -> Iterator[str]:
    yield sys.executable
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")):
        version = tuple(int(part) for part in path.parents[1].name.split(".")[:2] if part.isdecimal())
        if version >= (3, 10) and version != sys.version_info[:2]:
            yield str(path)


@pytest.mark.parametrize("python", list(_pythons()))
def test_sources_run_on_other_pythons(python: str, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    sources = {"boot": (STARTER / "boot.py").read_text(), "sources": sessions.starter_sources()}
    (tmp_path / "sources.json").write_text(json.dumps(sources))
    line = [python, "-I", str(tmp_path / "probe.py"), str(tmp_path / "sources.json")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *kinds, message = json.loads(done.stdout)
    assert kinds[:2] == ["value", "starter"]
    assert "fetching its code, did not finish" in message or "No module named 'pyarrow'" in message
