"""Where Prefect is served, and by whom.

1. One process serves a home; a second is told who and where; a process that died holds nothing.
2. Commands use what is served in the project's home.
3. Children end when their starter's end of the pipe closes, and are killed with their session when they do not.
4. A report of a run is answered, and nothing else of the disk.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows import environment
from flows.serving.app import report
from flows.serving.children import children_of, descendants, has_ended, session_members, start_child
from flows.serving.place import Place, Served
from flows.serving.supervisor import choose_port
from seeker.errors import ConfigError, LockedError
from tests.deployments.waiting import wait_until

HOLD = """
import sys
from pathlib import Path
from flows.serving.place import Place, Served
place = Place(Path(sys.argv[1]))
with place.hold():
    place.tell(Served(4711, "http://127.0.0.1:1/api"))
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_serves_and_the_second_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.served() is None
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert place.served() == Served(4711, "http://127.0.0.1:1/api")
    with pytest.raises(LockedError, match=r"process 4711, at http://127\.0\.0\.1:1;"), place.hold():
        pass
    holder.kill()
    holder.wait()
    assert place.served() is None
    with place.hold():
        assert place.served() is None  # nothing told yet, and what the dead one told is gone


def test_commands_use_what_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    monkeypatch.setattr(environment, "default_place", lambda: place)
    environ: dict[str, str] = {"PREFECT_API_AUTH_STRING": "admin:pw"}
    with place.hold():
        place.tell(Served(os.getpid(), "http://127.0.0.1:4300/api"))
        assert environment.prepare_environment(environ) is None
        assert environ["PREFECT_API_URL"] == "http://127.0.0.1:4300/api"
        assert environ["PREFECT_API_AUTH_STRING"] == "admin:pw"
    alone: dict[str, str] = {"PREFECT_API_AUTH_STRING": "admin:pw"}
    assert environment.prepare_environment(alone) == tmp_path
    assert "PREFECT_API_URL" not in alone
    assert "PREFECT_API_AUTH_STRING" not in alone


@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_children_end_with_their_starter(tmp_path: Path, manner: str) -> None:
    child = start_child("probe", "tests.deployments.probe", [manner], os.environ, tmp_path / "log")
    wait_until(lambda: len(descendants(child.process.pid)) == 1, "its child")
    grandchild = children_of(child.process.pid)[0]
    assert set(session_members(child.process.pid)) == {child.process.pid, grandchild}
    assert child.stop(20.0 if manner == "polite" else 0.5) is (manner == "polite")
    wait_until(lambda: has_ended(grandchild), "its end")
    assert not child.is_alive


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    free = choose_port(None)
    assert choose_port(free) == free
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: cannot be taken"):
            choose_port(port)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/reports/demo/report.html", 200),
        ("/reports/demo/curve.png", 404),
        ("/reports/demo/../../secret", 404),
        ("/reports/../report.html", 404),
        ("/reports/demo", 404),
    ],
)
def test_reports_and_nothing_else(tmp_path: Path, path: str, status: int) -> None:
    (tmp_path / "demo" / "report").mkdir(parents=True)
    (tmp_path / "demo" / "report" / "report.html").write_text("<html>")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("not a run's")
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(report(path, tmp_path)(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == status
