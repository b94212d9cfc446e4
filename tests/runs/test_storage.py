"""A disk that refuses, and a second writer.

1. A file-size limit, a lost right, a run directory that is gone: a `StorageError` that names the file, the cause and
   the remedy; the run stops at its last commit, and goes on to the same end when it is mended.
2. A run directory that is gone is not begun anew as a ruin.
3. It is not trouble of the infrastructure: no task tries it again. The command exits with 1.
4. A second writer is refused at once and told who writes, where and since when; kill -9 frees the run. One who only
   looks keeps no writer out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from flows.cli import describe
from seeker.errors import InfrastructureError, StorageError
from seeker.runs import current_writer, load_run, open_run, read_latest, read_state, writer_lock
from seeker.runs.disk import Buffer, Disk, use_disk
from tests.runs.scripted_run import CALLS, outcome, play, scripted_config

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_a_file_size_limit(tmp_path: Path) -> None:
    """Python's own SIGXFSZ is ignored, so that a write past the limit fails as on a full disk."""
    code = (
        "import resource, sys; from pathlib import Path; from tests.runs.scripted_run import play\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)); play(Path(sys.argv[1]))"
    )
    done = python(code, str(tmp_path / "run"))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()
    assert any("StorageError" in line and "File too large" in line and "ulimit -f" in line for line in last), last
    assert list(tmp_path.rglob("*.tmp")) == []
    play(tmp_path / "run")
    play(tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


class Denying(Disk):
    """Refuses to write below a folder, as without the right to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: Path, data: Sequence[Buffer]) -> None:
        if path.is_relative_to(self.folder):
            raise PermissionError(13, "Permission denied", str(path))
        super().write(path, data)


def test_a_lost_right(tmp_path: Path) -> None:
    play(tmp_path / "whole")
    root = tmp_path / "run"
    with use_disk(Denying(root / "steps/000001")), pytest.raises(StorageError) as caught:
        play(root)
    told = str(caught.value)
    assert "steps/000001/rollouts/.call-000.parquet." in told
    assert "Permission denied" in told
    assert "give this user the right to write there and resume the run" in told
    latest = read_latest(load_run(root))
    assert latest is not None
    assert latest.step == 0
    assert read_state(root).state == "failed"
    assert "Permission denied" in read_state(root).reason
    play(root)
    assert outcome(root) == outcome(tmp_path / "whole")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    play(tmp_path, scripted_config(steps=1))
    (tmp_path / "steps").chmod(0o500)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            play(tmp_path)
    finally:
        (tmp_path / "steps").chmod(0o700)
    play(tmp_path)


class Vanishing(Disk):
    """The run directory is moved away when the first call of step 1 is written."""

    def __init__(self, root: Path, target: Path) -> None:
        self.root, self.target = root, target

    def write(self, path: Path, data: Sequence[Buffer]) -> None:
        if "000001" in str(path.relative_to(self.root)) and CALLS[0] in path.name:
            self.root.rename(self.target)
        super().write(path, data)


def test_a_run_directory_that_is_gone(tmp_path: Path) -> None:
    play(tmp_path / "whole")
    root = tmp_path / "run"
    with use_disk(Vanishing(root, tmp_path / "elsewhere")), pytest.raises(StorageError) as caught:
        play(root)
    assert "put the run directory back" in str(caught.value)
    assert "state.json could not be written either" in caught.value.__notes__[0]
    assert not root.exists()
    (tmp_path / "elsewhere").rename(root)
    play(root)
    assert outcome(root) == outcome(tmp_path / "whole")


def test_a_refusing_disk_is_nothing_to_try_again() -> None:
    error = StorageError("/runs/demo/LATEST: cannot be written")
    assert not isinstance(error, InfrastructureError)
    assert describe(error) == (str(error), 1)


def test_a_second_writer_that_comes_while_the_first_works(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from seeker.runs import writer_lock\n"
        "with writer_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        started = time.monotonic()
        second = python("import sys; from tests.runs.scripted_run import *; play(Path(sys.argv[1]))", str(tmp_path))
        assert "LockedError" in second.stderr
        assert f"is being written by process {first.pid} on {os.uname().nodename}, since 20" in second.stderr
        assert time.monotonic() - started < 60
        writer = current_writer(tmp_path)
        assert writer is not None
        assert (writer.pid, writer.run) == (first.pid, str(tmp_path))
        assert abs(writer.since - time.time()) < 100
        assert read_state(tmp_path).state == "running"
        first.kill()
    assert current_writer(tmp_path) is None
    play(tmp_path)


def test_looking_keeps_no_writer_out(tmp_path: Path) -> None:
    """One who looks may hold the lock for an instant just when a writer comes."""
    code = (
        "import sys; from pathlib import Path; from seeker.runs import current_writer\n"
        "print('on', flush=True)\nwhile True: current_writer(Path(sys.argv[1]))"
    )
    with writer_lock(tmp_path):
        pass
    (tmp_path / ".lock").write_text(
        f'{{"run": "x", "pid": {os.getpid()}, "host": "{os.uname().nodename}", "since": 1}}'
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as looking:
        try:
            assert looking.stdout is not None
            looking.stdout.readline()
            for _ in range(200):
                with writer_lock(tmp_path):
                    open_run(tmp_path, scripted_config(), "x")
        finally:
            looking.kill()


def test_the_run_directory_is_moved_and_goes_on(tmp_path: Path) -> None:
    play(tmp_path / "a", scripted_config(steps=1))
    shutil.move(tmp_path / "a", tmp_path / "b")
    play(tmp_path / "b")
    play(tmp_path / "whole")
    same = {name: data for name, data in outcome(tmp_path / "whole").items() if "evaluations" not in name}
    assert {name: outcome(tmp_path / "b").get(name) for name in same} == same
