"""Server and worker of `seeker serve`: started, watched, started again when they die, stopped in their order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from flows.environment import FOREIGN
from flows.serving.children import Child, start_child
from flows.serving.place import Place, Served
from flows.settings import server_settings
from seeker.errors import ConfigError, InfrastructureError
from seeker.presets import project_root

APPLICATION = "flows.serving.app:create"
USUAL_PORT = 4200
SERVER_START_S = 180.0
SERVER_STOP_S = 10.0
WORKER_STOP_S = 60.0
MAX_DEATHS = 5  # within `DEATHS_WITHIN_S`, of server and worker together
DEATHS_WITHIN_S = 600.0


@dataclass
class Supervisor:
    """Everything that is served from one home.

    Example: ``Supervisor(Place(Path(".prefect")), 4200).run()`` returns when it was told to stop.
    """

    place: Place
    port: int
    say: Callable[[str], None] = print
    stopping: threading.Event = field(default_factory=threading.Event)
    _children: dict[str, Child] = field(default_factory=dict)
    _deaths: list[float] = field(default_factory=list)

    @property
    def served(self) -> Served:
        return Served(os.getpid(), f"http://127.0.0.1:{self.port}/api")

    def run(self) -> None:
        """Serve until a signal asks for the end."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.stopping.set())
        try:
            self._start("server")
            self._set_up()
            self._start("worker")
            if not self.stopping.is_set():
                self.place.tell(self.served)
                self._introduce()
            while not self.stopping.wait(0.5):
                self._look_after()
        finally:
            self._stop()

    def _start(self, name: str) -> None:
        if self.stopping.is_set():
            return
        log = self.place.logs / f"{name}.log"
        if name == "worker":
            for line in self._run("flows.serving.leftovers"):
                self.say(line)
            self._children[name] = start_child(name, "flows.serving.worker", ["seeker"], self.environ, log)
            return
        with socket.create_server(("127.0.0.1", self.port)) as listener:
            descriptor = listener.fileno()
            arguments = [str(descriptor), APPLICATION]
            environ = {**self.environ, "PREFECT__SERVER_FINAL": "1"}
            self._children[name] = start_child(name, "flows.server", arguments, environ, log, [descriptor])
        self._await_server()

    def _await_server(self) -> None:
        deadline = time.monotonic() + SERVER_START_S
        while not self.stopping.is_set() and not is_healthy(self.served.url):
            server = self._children["server"]
            if not server.is_alive:
                raise InfrastructureError(f"Prefect's server did not start ({server.how_it_ended()}); see {server.log}")
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"Prefect's server did not answer in {SERVER_START_S:.0f} s; see {server.log}"
                )
            self.stopping.wait(0.2)

    def _set_up(self) -> None:
        for line in self._run("flows.serving.deploy"):
            self.say(line)

    def _run(self, module: str) -> list[str]:
        """Run a module that talks to the server, in a process of its own since Prefect is large; what it says."""
        if self.stopping.is_set():
            return []
        done = subprocess.run(
            [sys.executable, "-m", module],
            env=self.environ,
            cwd=project_root(),
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        if done.returncode != 0 and not self.stopping.is_set():
            raise InfrastructureError(done.stderr.strip()[-2000:] or f"{module} ended with {done.returncode}")
        return done.stdout.splitlines()

    def _introduce(self) -> None:
        command = f"{_program('prefect')} deployment run 'train/train' --param run_id=demo"
        self.say(f"Prefect's pages: {self.served.ui}   (logs: {self.place.logs}; Ctrl-C stops everything)")
        self.say("start a run, or go on with one, from another terminal:")
        self.say(f"  export PREFECT_API_URL={self.served.url}")
        self.say(f"  {command} --param preset=laptop --watch")
        self.say(f"  {command} --param steps=80")

    def _look_after(self) -> None:
        """Start again what has died; give up when that happens too often."""
        for name, child in list(self._children.items()):
            if child.is_alive:
                continue
            self.say(f"{time.strftime('%H:%M:%S')} the {name} died ({child.how_it_ended()}), see {child.log}")
            child.kill()  # what it left of its session
            self._deaths = [at for at in self._deaths if time.monotonic() - at < DEATHS_WITHIN_S] + [time.monotonic()]
            if len(self._deaths) > MAX_DEATHS:
                raise InfrastructureError(
                    f"server and worker died {len(self._deaths)} times in {DEATHS_WITHIN_S / 60:.0f} minutes; "
                    f"{self.place.logs} says why"
                )
            self._start(name)
            self.say(f"{time.strftime('%H:%M:%S')} the {name} is up again")

    def _stop(self) -> None:
        """The worker and its flow runs first, while the server can still be told how they ended."""
        worker, server = self._children.get("worker"), self._children.get("server")
        if worker is not None and worker.is_alive:
            self.say("stopping: flow runs are told, their runs can be resumed …")
            if not worker.stop(WORKER_STOP_S):
                self.say(f"the worker did not stop in {WORKER_STOP_S:.0f} s and was killed")
        if server is not None and server.is_alive:
            server.stop(SERVER_STOP_S)
        for child in self._children.values():
            child.kill()
        self.say("stopped")

    @property
    def environ(self) -> dict[str, str]:
        return child_environ(os.environ, self.place, self.port)


def child_environ(environ: Mapping[str, str], place: Place, port: int) -> dict[str, str]:
    """The environment of server, worker and flow runs; a user's own settings win over those of the project."""
    url = f"http://127.0.0.1:{port}/api"
    kept = {name: value for name, value in environ.items() if name not in FOREIGN}
    secret = environ.get("PREFECT_SERVER_API_AUTH_STRING")
    return {
        **server_settings(),
        **kept,
        "PREFECT_HOME": str(place.home),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(place.home / "storage"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_UI_API_URL": url,
        "PREFECT_SERVER_API_PORT": str(port),
        **(
            {"PREFECT_API_AUTH_STRING": secret}
            if secret
            else {"SEEKER_REPORTS_URL": f"http://127.0.0.1:{port}/reports"}
        ),
    }


def choose_port(wanted: int | None) -> int:
    """The wanted port, else Prefect's usual one, else any that is free."""
    for port in [wanted] if wanted is not None else [USUAL_PORT, 0]:
        try:
            with socket.create_server(("127.0.0.1", port)) as listener:
                return int(listener.getsockname()[1])
        except OSError as error:
            if wanted is not None:
                raise ConfigError(
                    f"--port {port}: cannot be taken ({error.strerror}); leave it out, or choose another"
                ) from error
    raise InfrastructureError("no free port on this machine")


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def _program(name: str) -> str:
    """How the user types a program of this environment."""
    path = os.path.join(os.path.dirname(sys.executable), name)
    return os.path.relpath(path) if os.path.relpath(path).count("..") == 0 else path
