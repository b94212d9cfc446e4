"""Two writers of one run: the second refuses at once and names the first, which is not disturbed.

1. A second `seeker train` and a `seeker resume`: exit code 2 before anything is started, with the first one's process.
2. A flow run of the deployment while a command is training: it fails with the same words.
3. Interrupted, the first says so in `state.json`; then the deployment goes on with its run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seeker.presets import project_root
from seeker.runs import current_writer, load_run, read_latest, read_state
from tests.deployments.served import ServedPrefect
from tests.deployments.waiting import wait_until
from tests.drills.ends import check_order

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]
AT_ONCE_S = 20.0  # to import the command line on a busy machine, and to look; not to start Prefect or a cluster


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *arguments]


def steps_of(root: Path) -> int:
    latest = read_latest(load_run(root)) if (root / "run.json").is_file() else None
    return 0 if latest is None else latest.next_step


def test_the_second_writer_is_refused(served: ServedPrefect, tmp_path: Path) -> None:
    root = tmp_path / "run"
    environ = {**os.environ, "PREFECT_API_URL": served.url}
    train = command("train", "--preset", "micro", "--steps", "400", "--out", str(root))
    with open(tmp_path / "first.log", "wb") as log:
        first = subprocess.Popen(train, cwd=project_root(), env=environ, stdout=log, stderr=log)
    try:
        wait_until(lambda: steps_of(root) >= 1, "the first step", 300)
        for second in (train, command("resume", str(root))):
            started = time.monotonic()
            done = subprocess.run(
                second, cwd=project_root(), env=environ, capture_output=True, text=True, timeout=120, check=False
            )
            assert time.monotonic() - started < AT_ONCE_S
            assert done.returncode == 2
            assert f"{root}: this run is being written by process {first.pid} on " in done.stderr
        ended = served.await_end(served.start("train", run_id=str(root)))
        assert ended["type"] == "FAILED"
        assert f"is being written by process {first.pid} on " in ended["message"]
        writer, steps = current_writer(root), steps_of(root)
        assert writer is not None
        assert writer.pid == first.pid
        wait_until(lambda: steps_of(root) > steps, "another step of the first", 60)
    finally:
        first.send_signal(signal.SIGINT)
        first.wait(60)
    assert read_state(root).state == "cancelled"
    steps = steps_of(root) + 2
    assert served.await_end(served.start("train", run_id=str(root), steps=steps))["type"] == "COMPLETED"
    check_order(root, steps)
