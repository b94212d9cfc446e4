"""The server that a command starts for its flows.

1. Requests made at once wait until it is up; a server that does not come up is an error that names its log.
2. It is in a session of its own: Ctrl-C in the terminal does not reach it before the flow has reported.
3. It goes when the command goes, also when the command is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from flows.server import await_server
from seeker.errors import InfrastructureError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = """
import sys, time
from pathlib import Path
from flows.server import await_server, start_server
log = Path(sys.argv[1])
url = start_server(log, "tests.surface.tiny_app:create")
await_server(url, log)
print(url, flush=True)
time.sleep(float(sys.argv[2]))
"""


def start(log: Path, seconds: float) -> tuple[subprocess.Popen[str], str]:
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(log), str(seconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert command.stdout is not None
    return command, command.stdout.readline().strip()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_it_goes_with_the_command(tmp_path: Path) -> None:
    command, url = start(tmp_path / "log", 0.0)
    assert url.startswith("http://127.0.0.1:")
    assert command.wait(timeout=30) == 0
    assert not answers(url)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_it_outlives_ctrl_c_and_goes_when_the_command_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    command, url = start(tmp_path / "log", 600.0)
    assert answers(url)
    if number is signal.SIGINT:
        server = _child(command.pid)
        assert os.getsid(server) != os.getsid(command.pid)
    os.killpg(command.pid, number)
    command.wait(timeout=30)
    deadline = time.monotonic() + 20
    while answers(url):
        assert time.monotonic() < deadline, "the server outlived its command"
        time.sleep(0.1)


def test_a_server_that_fails_names_its_log(tmp_path: Path) -> None:
    code = COMMAND.replace(":create", ":fail")
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", code, str(log), "0"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "did not start" in done.stderr
    assert str(log) in done.stderr
    assert "a database that cannot be opened" in log.read_text()


def test_nothing_listening_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="did not start"):
        await_server("http://127.0.0.1:9/api", tmp_path / "log")


def _child(parent: int) -> int:
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            return int(status.parent.name)
    raise AssertionError("no server process found")
