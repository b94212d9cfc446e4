"""Killed between any two file operations, a run goes on to the same end.

1. For every operation of a run of two steps: gone before it (that is: after the one before), in the middle of a write,
   or with the power (what was not flushed is lost): started again, every file is byte for byte that of a run without
   trouble.
2. Gone twice in a row, the second time while it is being opened: the same.
3. The same with kill -9 of a real process.
4. Full at any operation: a `StorageError` that names the file and the remedy, no temporary file is left, and when there
   is room again the run goes on to the same end.
5. What is written is flushed before what names it: a step's files before its manifest, that before LATEST.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from seeker.errors import StorageError
from seeker.runs.disk import use_disk
from tests.runs.faults import Killed, ScriptedDisk
from tests.runs.scripted_run import outcome, play


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[str]]:
    """Files and operations of a run without trouble."""
    root = tmp_path_factory.mktemp("whole")
    with use_disk(disk := ScriptedDisk()):
        play(root)
    return outcome(root), disk.operations


def killed(root: Path, at: int, how: str) -> ScriptedDisk:
    """Play until operation `at` strikes; the disk, which was struck unless the run ended before."""
    disk = ScriptedDisk(at, how)
    with use_disk(disk):
        try:
            play(root)
        except Killed:
            assert disk.struck
    return disk


@pytest.fixture
def root() -> Iterator[Path]:
    """Where a run is played again and again; in memory where there is such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder) / "run"


@pytest.mark.parametrize("how", ["before", "torn", "power"])
def test_gone_at_any_operation(how: str, whole: tuple[dict[str, bytes], list[str]], root: Path) -> None:
    expected, operations = whole
    for at, operation in enumerate(operations):
        if how == "torn" and not operation.startswith(("write", "append")):
            continue
        root.mkdir()
        assert killed(root, at, how).struck, operation
        with use_disk(ScriptedDisk()):
            play(root)
        assert differences(root, expected) == [], f"{how} {at}: {operation}"
        shutil.rmtree(root)


def test_gone_twice_in_a_row(whole: tuple[dict[str, bytes], list[str]], root: Path) -> None:
    """The second time early: while the run is opened and mended."""
    expected, operations = whole
    for at in range(0, len(operations), 11):
        for again in range(at % 3, 15, 3):
            root.mkdir()
            killed(root, at, ("before", "torn", "after", "power")[at % 4])
            killed(root, again, ("power", "before", "after", "torn")[again % 4])
            with use_disk(ScriptedDisk()):
                play(root)
            assert differences(root, expected) == [], f"{at}, then {again}"
            shutil.rmtree(root)


@pytest.mark.drill
def test_kill_9_at_operations_of_a_real_process(whole: tuple[dict[str, bytes], list[str]], tmp_path: Path) -> None:
    expected, operations = whole
    code = (
        "import sys; from pathlib import Path; from seeker.runs.disk import use_disk\n"
        "from tests.runs.faults import ScriptedDisk; from tests.runs.scripted_run import play\n"
        "with use_disk(ScriptedDisk(int(sys.argv[2]), 'kill')): play(Path(sys.argv[1]))"
    )
    for at in range(3, len(operations), len(operations) // 9):
        root = tmp_path / f"run-{at}"
        done = subprocess.run([sys.executable, "-c", code, str(root), str(at)], capture_output=True, timeout=120)
        assert done.returncode == -9, done.stderr
        play(root)
        assert differences(root, expected) == [], operations[at]


def test_full_at_any_operation(whole: tuple[dict[str, bytes], list[str]], root: Path) -> None:
    expected, operations = whole
    for at, operation in enumerate(operations):
        if not operation.startswith(("make_folder", "write", "append")):
            continue
        root.mkdir()
        with use_disk(ScriptedDisk(at, "full")), pytest.raises(StorageError) as caught:
            play(root)
        told = str(caught.value)
        assert told.startswith(str(root)), operation
        assert "No space left on device" in told
        assert "free some space and resume the run" in told
        assert not [path for path in root.rglob("*") if path.name.endswith(".tmp")], operation
        with use_disk(ScriptedDisk()):
            play(root)
        assert differences(root, expected) == [], operation
        shutil.rmtree(root)


def test_what_is_named_is_flushed_before_what_names_it(whole: tuple[dict[str, bytes], list[str]]) -> None:
    _, operations = whole
    told = [operation.replace("/private", "") for operation in operations]

    def flushed(name: str) -> int:
        """Number of the operation that made `name` survive a power cut."""
        renamed = max(i for i, each in enumerate(told) if each.startswith("rename") and each.endswith(name))
        folder = told[renamed].removeprefix("rename ").rpartition("/")[0]
        return next(i for i in range(renamed, len(told)) if told[i] == f"sync {folder}")

    latest = [i for i, each in enumerate(told) if each.startswith("rename") and each.endswith("LATEST")]
    assert len(latest) == 3  # the start and two steps
    for step, commit in enumerate(latest[1:]):
        manifest = flushed(f"steps/{step:06d}/manifest.json")
        named = [flushed(f"steps/{step:06d}/{name}") for name in ("batch.bin", "rollouts/call-000.parquet")]
        assert max([*named, flushed(f"policy/{step + 1:06d}.json")]) < manifest < commit


def differences(root: Path, expected: dict[str, bytes]) -> list[str]:
    """Names of files that are missing, too many, or not the same."""
    found = outcome(root)
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
