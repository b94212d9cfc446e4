"""What a command says last when its run is interrupted.

1. Ctrl-C and SIGTERM name the step of the last commit and the command that goes on, also where Prefect has its own
   handler of SIGTERM meanwhile; exit codes 130 and 143.
2. A run that has no commit yet, was not begun, or cannot be read, says so.
3. The command is the one that works from here: `seeker` where the shell finds it, else its path.
4. Afterwards SIGTERM has the handler that it had before.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.utilities.engine import capture_sigterm

from flows.interruption import Terminated, telling_how_to_go_on, where_it_stopped
from seeker.program import program, resume_command
from tests.surface.fake_run import make_run


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_inside_a_flow() -> None:
    with capture_sigterm():
        terminate()


@pytest.mark.parametrize(
    ("end", "kind", "word"),
    [
        (interrupt, KeyboardInterrupt, "interrupted"),
        (terminate, Terminated, "terminated"),
        (terminate_inside_a_flow, Terminated, "terminated"),
    ],
)
def test_the_last_line(end: Callable[[], None], kind: type[BaseException], word: str, tmp_path: Path) -> None:
    root = tmp_path / "a run"
    make_run(root, steps=2, planned=4)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(kind) as stopped, telling_how_to_go_on(root):
        end()
    assert type(stopped.value) is kind
    assert str(stopped.value) == (
        f"{word}; {root} stopped at its last commit, after step 2 of 4; go on with: {program()} resume '{root}'"
    )
    assert signal.getsignal(signal.SIGTERM) is before


def test_runs_without_a_commit(tmp_path: Path) -> None:
    assert where_it_stopped(tmp_path / "run") == f"nothing of {tmp_path}/run was begun: give the same command again"
    make_run(tmp_path / "run", steps=0, planned=4)
    assert "stopped before the first of its 4 steps was committed; go on with: " in where_it_stopped(tmp_path / "run")
    (tmp_path / "run" / "LATEST").write_text("{")
    assert f"try: {resume_command(tmp_path / 'run')}" in where_it_stopped(tmp_path / "run")


def test_the_command_works_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my env" / "bin" / "seeker"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(tmp_path)
    assert program() == "'my env/bin/seeker'"
    assert resume_command(Path("runs/demo")) == "'my env/bin/seeker' resume runs/demo"
    monkeypatch.chdir("/usr")
    assert program() == f"'{script}'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert shutil.which("seeker") == str(script)
    assert program() == "seeker"
    script.unlink()
    assert program() == "seeker"
