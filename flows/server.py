"""Prefect's API server for the flows of one command: in a process of its own, gone with the command.

Prefect would start one by itself, but inside the terminal's process group: Ctrl-C then stops the server before the
flow can report to it, and the flow waits minutes for it to come back. This one is started in a session of its own and
lives as long as its standard input: that pipe closes when the command ends, also by kill -9.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from seeker.errors import InfrastructureError

APPLICATION = "prefect.server.api.server:create_app"
# What Prefect gives a server that it starts for one process: no pages, and only the services that record runs.
SERVER_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
START_DEADLINE_S = 180.0  # a fresh database takes 17 s on two busy cores
STOP_DEADLINE_S = 5.0


def start_server(log: Path, application: str = APPLICATION) -> str:
    """Start the server and return the URL of its API at once; what it has to say goes into `log`.

    The socket listens already: requests wait in its queue until the server is up.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, open(log, "ab") as output:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server", str(listener.fileno()), application],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[listener.fileno()],
            env={**os.environ, **SERVER_ENVIRONMENT},
            start_new_session=True,
        )
    atexit.register(_stop, process)
    return f"http://127.0.0.1:{port}/api"


def await_server(url: str, log: Path) -> None:
    """Return when the server answers; an error that names its log when it does not."""
    import httpx

    try:
        httpx.get(f"{url}/health", timeout=START_DEADLINE_S).raise_for_status()
    except httpx.HTTPError as error:
        raise InfrastructureError(f"Prefect's server did not start ({error}); {log} says why") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(descriptor: int, application: str) -> None:
    """The server's process: serve on the inherited socket until the standard input ends."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(application, factory=True, log_level="error", lifespan="on"))
    threading.Thread(target=_leave_at_end_of_input, args=(server,), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])


def wait_for_end_of_input() -> None:
    """Return when whoever started this process is gone. Not through `sys.stdin`, whose lock spoils a sudden exit."""
    while os.read(0, 4096):
        pass


def _leave_at_end_of_input(server: object) -> None:
    wait_for_end_of_input()
    server.should_exit = True  # type: ignore[attr-defined]
    time.sleep(STOP_DEADLINE_S / 2)
    os._exit(0)  # open connections, or a start-up that has not come far enough to see the flag


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
