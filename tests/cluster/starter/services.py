"""A scripted service that ends, hangs and leaves processes behind in every way that we know of."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from seeker.cluster.objects import ServiceContext

SLEEP = "import time; time.sleep(600)"


class Service:
    """Answers, or misbehaves on request."""

    def __init__(self, config: dict[str, Any], context: ServiceContext) -> None:
        self.context = context
        if config.get("hang"):
            time.sleep(600)
        if config.get("exit"):
            print("no use", flush=True)
            os._exit(config["exit"])
        if config.get("fail"):
            raise RuntimeError("no engine on this machine")

    def echo(self, value: Any) -> Any:
        return value

    def pid(self) -> int:
        return os.getpid()

    def gang(self) -> dict[str, Any] | None:
        return None if self.context.gang is None else asdict(self.context.gang)

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def path(self) -> str:
        return __file__

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def touch(self, path: str) -> None:
        open(path, "w").close()

    def raise_error(self, text: str) -> None:
        raise ValueError(text)

    def raise_exit(self, code: int) -> None:
        sys.exit(code)

    def exit(self, code: int) -> None:
        print("last words", flush=True)
        os._exit(code)

    def kill(self, signum: int) -> None:
        os.kill(os.getpid(), signum)
        time.sleep(600)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def close_channel(self) -> None:
        for end in _sockets():
            end.close()
        time.sleep(600)

    def write_garbage(self, data: bytes) -> None:
        for end in _sockets():
            end.send(data)
        time.sleep(600)

    def print_much(self, num_bytes: int) -> None:
        sys.stdout.write("x" * num_bytes)
        sys.stdout.flush()

    def exit_later(self, seconds: float) -> None:
        threading.Timer(seconds, os._exit, (7,)).start()

    # -- processes that the service starts -------------------------------------------------------------------------

    def start_child(self) -> int:
        return subprocess.Popen([sys.executable, "-c", SLEEP]).pid

    def start_fork(self) -> int:
        """A fork has all our open files, the channel's too."""
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        return pid

    def start_daemon(self, bare: bool = False) -> int:
        """Not our child any more, of another process group; `bare`: with an empty environment."""
        options = "stdout=subprocess.DEVNULL, " + ("env={}" if bare else "")
        code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}], {options}).pid)"
        line = [sys.executable, "-c", code]
        return int(subprocess.run(line, stdout=subprocess.PIPE, text=True, start_new_session=True, check=True).stdout)


def _sockets() -> list[socket.socket]:
    """Our channel."""
    found: list[socket.socket] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            end = socket.socket(fileno=int(name))
            if end.family == socket.AF_UNIX:
                found.append(end)
            else:
                end.detach()
    return found
