"""A served Prefect, its worker and real trainings: the life of a run as its user sees it.

1. A run begins by preset, is cancelled within 30 s with all its processes, and goes on by its id alone.
2. `flow-run retry` of a flow run that was killed goes on from the last commit; a killed worker and server come back.
3. What was missing is evaluated after a training by itself; setting up again changes nothing.
4. The flow run shows six artifacts, one row a key; the link leads to the report; the pages show them (with a browser).
5. Ctrl-C leaves no process behind; a second serve of the same home is refused.
6. `deployment run … --watch` shows the error of a flow run that fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.missing import find_missing
from flows.serving.children import all_processes, children_of, environment_of
from seeker.presets import project_root
from seeker.runs import load_run, read_latest
from seeker.runs.state import read_state
from tests.deployments.served import ServedPrefect, serving
from tests.deployments.waiting import wait_until

LONG = int(os.environ.get("SEEKER_DRILL_ROUNDS", "20")) > 20  # CI has tests/drills, which kill the same processes
pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not LONG, reason="three minutes: part of `make drill` (SEEKER_DRILL_ROUNDS above 20)"),
]
NAMES = ("configuration", "curve", "evaluation", "evaluations", "phases", "report")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPrefect]:
    with serving(tmp_path_factory.mktemp("serve")) as served:
        yield served
    wait_until(lambda: not processes_of(PREFECT_API_URL=served.url), "the end of everything that was served", 30)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A run in the project's runs/, where the deployments work."""
    root = project_root() / "runs" / f"test-served-{os.getpid()}"
    yield root
    shutil.rmtree(root, ignore_errors=True)


def test_watching_shows_why_a_flow_run_failed(served: ServedPrefect) -> None:
    line = ["deployment", "run", "train/train", "--param", "preset=mircro", "--watch"]
    environ = {**os.environ, "PREFECT_API_URL": served.url, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *line], env=environ, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 1
    assert "ConfigError: unknown preset 'mircro', did you mean 'micro'? (presets: " in done.stdout


def test_cancelled_and_gone_on_with(served: ServedPrefect, root: Path) -> None:
    flow_run = served.start("train", preset="micro", run_id=root.name, steps=400)
    await_steps(root, 2)
    assert len(processes_of(PREFECT__FLOW_RUN_ID=flow_run)) > 3
    started = time.monotonic()
    assert served.set_state(flow_run, type="CANCELLING") == "ACCEPT"
    wait_until(lambda: executors_of(flow_run) == [], "the end of its executors", 30)
    assert served.await_end(flow_run)["type"] == "CANCELLED"
    print(f"cancelled in {time.monotonic() - started:.1f} s")
    assert read_state(root).state == "cancelled"
    before = steps_of(root)
    second = served.start("train", run_id=root.name, steps=400)
    await_steps(root, before + 1)
    os.kill(flow_process(second), signal.SIGKILL)
    assert served.await_end(second)["type"] == "CRASHED"
    before = steps_of(root)
    wait_until(lambda: processes_of(PREFECT__FLOW_RUN_ID=second) == [], "the end of its executors", 30)
    retry = [sys.executable, "-m", "prefect", "flow-run", "retry", second]
    subprocess.run(
        retry, env={**os.environ, "PREFECT_API_URL": served.url}, check=True, capture_output=True, timeout=120
    )
    await_steps(root, before + 1)


def test_a_killed_worker_and_a_killed_server_come_back(served: ServedPrefect, root: Path) -> None:
    worker = child_of(served, "flows.serving.worker")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: "the worker is up again" in served.log.read_text(), "another worker", 180)
    wait_until(lambda: read_state(root).state != "running", "the end of its flow run", 60)
    before = steps_of(root)
    third = served.start("train", run_id=root.name, steps=before + 8)
    await_steps(root, before + 1)
    os.kill(child_of(served, "flows.server"), signal.SIGKILL)
    wait_until(lambda: "the server is up again" in served.log.read_text(), "another server", 300)
    assert served.await_end(third)["type"] == "COMPLETED"
    assert steps_of(root) == before + 8
    wait_until(lambda: not find_missing(root).wanted, "the evaluations that were missing", 300)
    shown = served.artifacts(third)
    assert sorted(shown) == [f"run-{root.name}-{name}" for name in NAMES]
    link = shown[f"run-{root.name}-report"]["data"]
    assert f"{served.url.removesuffix('/api')}/reports/{root.name}/report.html" in link


def test_setting_up_again_changes_nothing(served: ServedPrefect) -> None:
    done = subprocess.run(
        [sys.executable, "deployments/setup.py"],
        env={**os.environ, "PREFECT_API_URL": served.url},
        cwd=project_root(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("no change"), done.stdout + done.stderr


def test_a_second_serve_is_refused(served: ServedPrefect) -> None:
    command = [sys.executable, "-m", "flows.cli", "serve", "--home", str(served.log.parent / "home")]
    done = subprocess.run(command, cwd=project_root(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"served already by process {served.process.pid}" in done.stderr


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine (the system's package `chromium`)")
def test_the_pages_show_the_artifacts(served: ServedPrefect, root: Path, tmp_path: Path) -> None:
    curve = served.artifact(f"run-{root.name}-curve")
    pages = served.url.removesuffix("/api")
    listed = look_at(f"{pages}/v2/runs/flow-run/{curve['flow_run_id']}?tab=Artifacts", tmp_path / "flow-run.png")
    assert [name for name in NAMES if f"run-{root.name}-{name}" not in listed] == []
    assert "data:image/png;base64," in look_at(f"{pages}/artifacts/artifact/{curve['id']}", tmp_path / "curve.png")
    assert root.name in look_at(f"{pages}/reports/{root.name}/report.html", tmp_path / "report.png")


def look_at(address: str, picture: Path) -> str:
    """What a browser shows, as a picture and as a document."""
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--virtual-time-budget=20000"]
    command = [BROWSER, *flags, f"--user-data-dir={picture.parent / 'profile'}"]
    subprocess.run([*command, f"--screenshot={picture}", address], check=True, capture_output=True, timeout=180)
    assert picture.stat().st_size > 20_000
    shown = subprocess.run([*command, "--dump-dom", address], check=True, capture_output=True, text=True, timeout=180)
    return shown.stdout


def steps_of(root: Path) -> int:
    latest = read_latest(load_run(root)) if (root / "run.json").is_file() else None
    return 0 if latest is None else latest.next_step


def await_steps(root: Path, number: int) -> None:
    wait_until(lambda: steps_of(root) >= number, f"{number} steps", 300)


def processes_of(**variables: str) -> list[int]:
    """Processes that were started with these variables; not this one."""
    return [pid for pid in all_processes() if pid != os.getpid() and variables.items() <= environment_of(pid).items()]


def flow_process(flow_run: str) -> int:
    (found,) = [pid for pid in processes_of(PREFECT__FLOW_RUN_ID=flow_run) if "prefect.engine" in command_of(pid)]
    return found


def executors_of(flow_run: str) -> list[int]:
    return [pid for pid in processes_of(PREFECT__FLOW_RUN_ID=flow_run) if "prefect.engine" not in command_of(pid)]


def child_of(served: ServedPrefect, module: str) -> int:
    (found,) = [pid for pid in children_of(served.process.pid) if f" {module}" in command_of(pid)]
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
