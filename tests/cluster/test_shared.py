"""A cluster that several flows share, as its user types it.

1.  `start` returns when it is ready and leaves a cluster behind; `status` shows it; `stop` ends it, all of it.
2.  A second `start` says that the first is there (exit code 2); `start --env` prints the exports alone, new or not.
3.  Drivers reach it by the exports, one after the other and together; what one closes does not end the others' work.
4.  Killed with -9 it leaves no process and no directory, and the next `start` works; `stop` without one is fine.
5.  What a crashed driver left on it is found by `doctor` and removed by `clean`; a living driver's work is spared.
6.  `stop` signals only the process that wrote the state.
7.  Any address but this machine's own is refused, and so are capacities that are none and directories
    that cannot be made.
8.  The commands load neither Prefect nor torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli import main
from seeker.cluster import shared
from seeker.cluster.client import ClusterSettings, open_cluster
from seeker.errors import ClusterError
from tests.cluster.conftest import descendants, is_running, wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory; a cluster that a failed test leaves in it is ended."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path / ".seeker-cluster"
    shared.stop_shared(tmp_path / ".seeker-cluster")


def seeker(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "flows.cli", "cluster", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)


def test_start_status_and_stop(place: Path) -> None:
    first = seeker("start", "--slots", "3", "--memory", "5g", "--gpus", "0")
    assert (first.returncode, first.stderr) == (0, "")
    state = shared.running_state(place)
    assert state is not None
    assert state.exports() in first.stdout
    second = seeker("start")
    assert (second.returncode, second.stdout) == (2, "")
    assert f"a cluster is running already in .seeker-cluster (process {state.pid}" in second.stderr
    exports = seeker("start", "--env")
    assert (exports.stdout, exports.stderr) == (f"{state.exports()}\n", "")
    assert "with 3 slots, not 16" in seeker("start", "--env", "--slots", "16").stderr
    (node,) = json.loads(seeker("status", "--json").stdout)["nodes"]
    assert node["capacity"] == {"cpu": 3, "memory_bytes": 5 * 2**30, "gpu": 0}
    family = {state.pid, *descendants(state.pid)}
    assert seeker("stop").returncode == 0
    assert not any(map(is_running, family))
    assert not Path(state.facts["root"]).exists()
    assert "no cluster is running" in seeker("stop").stdout
    missing = seeker("status")
    assert missing.returncode == 2
    assert "start one by `seeker cluster start`" in missing.stderr


@pytest.mark.drill
def test_drivers_share_it(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    state, _ = shared.start_shared(place, ClusterSettings(slots=2))
    monkeypatch.setenv("FLAME_ENDPOINT", state.address.endpoint)
    monkeypatch.setenv("FLAME_CACHE_ENDPOINT", state.address.cache_endpoint)
    with open_cluster(ClusterSettings(run_id="one")) as one:
        service = one.start("a", "tests.cluster.services:Echo", {})
        assert service.call("echo", 1, deadline_s=60).result() == 1
        with open_cluster(ClusterSettings(run_id="two")) as two:
            assert two.start("b", "tests.cluster.services:Echo", {}).call("echo", 2, deadline_s=60).result() == 2
        assert service.call("echo", 3, deadline_s=60).result() == 3
        assert main(["cluster", "status"]) == 0
        output = capsys.readouterr().out
        assert "local development cluster" in output
        assert "one-a-" in output
        family = descendants(state.pid)
        assert len(family) >= 3
    assert shared.stop_shared(place) is not None
    assert not any(map(is_running, family))


CRASHING = """
import os
from seeker.cluster.client import ClusterSettings, open_cluster
cluster = open_cluster(ClusterSettings(run_id="crashed"))
service = cluster.start("x", "tests.cluster.services:Echo", {})
service.call("echo", 1, deadline_s=60).result()
cluster.objects.put(service.prefix, bytes(10_000))
os._exit(9)
"""


@pytest.mark.drill
def test_what_a_crashed_driver_left_is_removed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, _ = shared.start_shared(place, ClusterSettings(slots=2))
    address = state.address
    monkeypatch.setenv("FLAME_ENDPOINT", address.endpoint)
    monkeypatch.setenv("FLAME_CACHE_ENDPOINT", address.cache_endpoint)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with open_cluster(ClusterSettings(run_id="alive", lease_s=3.0)) as alive:
        service = alive.start("y", "tests.cluster.services:Echo", {})
        assert subprocess.run([sys.executable, "-c", CRASHING], timeout=60).returncode == 9
        assert main(["cluster", "doctor", "--wait", "0.1"]) == 1
        assert "run crashed" in capsys.readouterr().out
        assert main(["cluster", "clean"]) == 0
        output = capsys.readouterr().out
        assert "removed what run crashed" in output
        assert "run alive" not in output
        assert service.call("echo", 3, deadline_s=60).result() == 3
        (session,) = [each["id"] for each in _listed(capsys)["sessions"] if each["is_open"]]
        assert session.startswith("alive-y-")
    told = _listed(capsys)
    assert (told["sessions"], told["objects"], told["applications"]) == ([], [], ["flmrun"])
    assert main(["cluster", "doctor", "--wait", "0.1"]) == 0


def _listed(capsys: pytest.CaptureFixture[str]) -> dict:
    capsys.readouterr()
    assert main(["cluster", "status", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_killed_and_started_again(place: Path) -> None:
    state, is_new = shared.start_shared(place, ClusterSettings())
    assert is_new
    family = {state.pid, *descendants(state.pid)}
    os.kill(state.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, family)), 5, "the cluster and its guardian end")
    assert not Path(state.facts["root"]).exists()
    assert shared.running_state(place) is None
    again, is_new = shared.start_shared(place, ClusterSettings())
    assert is_new
    assert again.pid != state.pid
    assert shared.start_shared(place, ClusterSettings()) == (again, False)


def test_stop_spares_other_processes(place: Path) -> None:
    state, _ = shared.start_shared(place, ClusterSettings())
    path = place / shared.STATE_NAME
    text = path.read_text()
    with subprocess.Popen(["sleep", "60"]) as other:
        path.write_text(json.dumps({**state.facts, "pid": other.pid}))
        with pytest.raises(ClusterError, match=f"process {other.pid} is not the cluster that wrote it"):
            shared.stop_shared(place)
        assert other.poll() is None
        other.kill()
    path.write_text(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host", "0.0.0.0"], "which run code where they are read"),
        (["--slots", "0"], "--slots: expected 1 or more, found 0"),
        (["--memory", "much"], "--memory 'much': expected bytes, for example 8g"),
        (["--object-memory", "1g"], "--object-memory and --spill-dir go together"),
        (["--python", "/none"], "--python /none: no such interpreter"),
        (["--dir", f"{__file__}/x"], "x: cannot be used (Not a directory); name another directory by --dir"),
        (["--slot", "3"], "unknown flag '--slot', did you mean '--slots'?"),
    ],
)
def test_what_start_refuses(place: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not place.exists()


def test_a_cluster_that_cannot_start_says_why(place: Path) -> None:
    settings = ClusterSettings(spill_dir=str(place / shared.LOCK_NAME / "x"), memory_limit_bytes=1)
    with pytest.raises(ClusterError, match=r"(?s)ended while starting; the end of .*/x: no directory can be made here"):
        shared.start_shared(place, settings)
    assert shared.running_state(place) is None


def test_commands_are_light() -> None:
    code = (
        "import sys, seeker.cluster.commands, seeker.cluster.probes, flows.cli\n"
        "print([n for n in ('prefect', 'torch', 'transformers', 'flamepy.core') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
