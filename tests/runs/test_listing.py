"""What became of runs, read from their directories.

1. A run tells that it is running, and how it ended: completed, failed with the error, cancelled when interrupted.
2. Killed, it says running and nobody holds it: died, with the process that did.
3. `seeker runs` lists state, steps, last evaluation, size, why it stopped and the command that goes on, as a table and
   as JSON; a damaged run is a line, not an error. It loads neither Prefect nor torch.
4. `seeker resume` takes the stored configuration; flags change how it is executed; with --fork anything.
5. A run that is being written is refused with its writer, and how to stop it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import commands
from flows.cli import main
from seeker.errors import LostStepError, RunDirectoryError
from seeker.presets import load_config
from seeker.program import program, resume_command
from seeker.runs import load_run, open_run, read_state, telling_state, writer_lock
from seeker.runs.disk import use_disk
from seeker.runs.listing import list_runs
from tests.runs.faults import ScriptedDisk
from tests.runs.scripted_run import play, scripted_config
from tests.surface.fake_run import make_run

ROOT = Path(__file__).resolve().parents[2]


def end_with(root: Path, error: BaseException | None) -> None:
    """A run that ends at once, as told."""
    with writer_lock(root):
        run = open_run(root, scripted_config(), "scripted")
        with telling_state(run):
            assert read_state(root).state == "running"
            if error is not None:
                raise error


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (LostStepError("step 1: lost\nmore"), "failed", "LostStepError: step 1: lost"),
        (KeyboardInterrupt(), "cancelled", "interrupted (Ctrl-C)"),
        (SystemExit(1), "died", "SystemExit: 1"),
    ],
)
def test_how_a_run_ended(error: BaseException, state: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        end_with(tmp_path, error)
    told = read_state(tmp_path)
    assert (told.state, told.reason, told.pid) == (state, reason, os.getpid())
    end_with(tmp_path, None)
    assert read_state(tmp_path).state == "completed"


def test_a_killed_run_died(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from tests.runs.test_listing import *\n"
        "class Dies(BaseException):\n    def __str__(self): os.kill(os.getpid(), 9)\n"
        "end_with(pathlib.Path(sys.argv[1]), Dies())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    told = read_state(tmp_path)
    assert told.state == "died"
    assert f"process {told.pid} on {told.host}, started 20" in told.reason
    assert told.pid != os.getpid()


def test_a_folder_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(tmp_path / "whole")
    make_run(tmp_path / "half", steps=2, planned=4)
    with pytest.raises(LostStepError):
        end_with(tmp_path / "broken", LostStepError("no index"))
    (tmp_path / "ruin").mkdir()
    (tmp_path / "ruin" / "run.json").write_text("{")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "odd" / "run.json").mkdir(parents=True)
    lines = {line.path.rpartition("/")[2]: line for line in list_runs(tmp_path)}
    assert {name: (line.state, line.step, line.steps) for name, line in lines.items()} == {
        "whole": ("completed", 2, 2),
        "half": ("stopped", 2, 4),
        "broken": ("failed", 0, 2),
        "ruin": ("damaged", 0, 0),
        "odd": ("damaged", 0, 0),
    }
    assert (lines["half"].evaluated_version, lines["half"].exact_match) == (2, 0.625)
    files = [path for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert lines["whole"].num_bytes == sum(path.stat().st_size for path in files)
    assert main(["runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"scripted failed: LostStepError: no index; go on with: {resume_command(tmp_path / 'broken')}\n" in text
    assert text.count("go on with: ") == 2  # not the one that is completed, nor the damaged one
    assert "0.625 at 2" in text
    assert main(["runs", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {line["state"] for line in told} == {"completed", "stopped", "failed", "damaged"}
    assert main(["runs", str(tmp_path / "none")]) == 2


def test_listing_loads_nothing_heavy(tmp_path: Path) -> None:
    make_run(tmp_path / "a", steps=1)
    code = (
        f"import sys\nfrom flows.cli import main\nassert main(['runs', {str(tmp_path)!r}, '--json']) == 0\n"
        "print([n for n in ('prefect', 'torch', 'transformers', 'polars') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[]"


def resumed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code of `seeker resume` and what its flow was called with."""
    calls: list[dict[str, Any]] = []

    @contextmanager
    def environment(module: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(pipeline=lambda **given: calls.append(given) or {"run": arguments[0]})

    monkeypatch.setattr(commands, "flow_environment", environment)
    return main(["resume", *arguments]), calls


def test_resume_needs_nothing_but_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", steps=2, planned=4)
    stored = load_config("laptop", steps=4, out=str(tmp_path / "run"), seed=7)
    assert resumed(monkeypatch, str(tmp_path / "run")) == (0, [{"config": stored, "run_id": "laptop-7"}])
    paused = f"{tmp_path}/run stopped at its last commit, after step 2 of 4; go on with: "
    assert paused in capsys.readouterr().out  # its flow has not exported
    _, calls = resumed(monkeypatch, str(tmp_path / "run"), "--steps", "9", "--rollouts", "5")
    assert (calls[0]["config"].steps, calls[0]["config"].cluster.rollouts) == (9, 5)


def test_resume_refuses_other_settings_without_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    make_run(root, steps=2, planned=4)
    code, calls = resumed(monkeypatch, str(root), "--group-size", "4")
    assert (code, calls) == (2, [])
    assert "rollout.group_size: 8 -> 4" in (told := capsys.readouterr().err)
    assert "seeker resume RUN --fork STEPS" in told
    code, calls = resumed(monkeypatch, str(root), "--group-size", "4", "--fork", "1")
    assert (code, calls[0]["config"].rollout.group_size) == (0, 4)
    assert (load_run(root).lineage, load_run(root).config.rollout.group_size) == (1, 4)
    assert "lineage 1 begins after 1 steps" in capsys.readouterr().out


def test_a_run_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "a run"
    make_run(root, steps=1)
    with writer_lock(root):
        assert main(["resume", str(root)]) == 2
        told = capsys.readouterr().err
        assert f"{root}: this run is being written by process {os.getpid()} on {os.uname().nodename}, since 20" in told
        stopping = f"`{program()} pause '{root}'` after its next commit, `kill {os.getpid()}` at once"
        assert told.endswith(f"; wait for it, or stop it: {stopping}\n")
        assert main(["train", "--out", str(root)]) == 2
        assert capsys.readouterr().err.endswith(f"{stopping}; for another run choose another --out\n")


def test_a_new_run_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", steps=1)
    assert main(["train", "--new", "--out", str(tmp_path / "run"), "--steps", "4", "--seed", "7"]) == 2
    assert "a run is here already and a new one was asked for" in capsys.readouterr().err
    with pytest.raises(RunDirectoryError, match="a new one was asked for"):
        open_run(tmp_path / "run", load_run(tmp_path / "run").config, "x", resume=False)


def test_the_state_of_a_full_disk_is_told_with_the_error(tmp_path: Path) -> None:
    full = ScriptedDisk(at=0, how="full")
    with writer_lock(tmp_path), ExitStack() as stack:
        run = open_run(tmp_path, scripted_config(), "scripted")
        with pytest.raises(LostStepError) as caught, telling_state(run):  # noqa: PT012
            stack.enter_context(use_disk(full))
            raise LostStepError("no index")
    assert "No space left on device" in caught.value.__notes__[0]
