"""Starts the embedded cluster as a process of its own, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from seeker.cluster.named import Address
from seeker.cluster.settings import ClusterSettings
from seeker.errors import ClusterError, DeadlineError

_STOP_DEADLINE_S = 10.0
_GOING_S = 0.5
_LOG_TAIL_BYTES = 2000


def server_line(settings: ClusterSettings) -> list[str]:
    """The command that serves a cluster of these settings."""
    line = [sys.executable, "-m", "seeker.cluster.local", "--python", settings.executor_python()]
    options = {
        "--slots": settings.slots,
        "--memory": settings.memory_bytes,
        "--gpus": settings.gpus,
        "--spill-dir": settings.spill_dir,
        "--object-memory": settings.memory_limit_bytes,
        "--faults": settings.faults,
    }
    line += [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return line + ["--grpc-only"] * settings.grpc_only


def server_environment() -> dict[str, str]:
    """Ours, with this source tree on the path."""
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class EmbeddedCluster:
    """The process ends when the pipe to its stdin does: on `stop`, and whenever this process is gone.

    Its log is ``cluster.log`` in the log directory, beside those of executors and services; without a log directory
    all logs are private and go with the cluster.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        line = server_line(settings)
        if settings.log_dir is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `stop`)
        else:
            directory = Path(settings.log_dir).absolute()
            directory.mkdir(parents=True, exist_ok=True)
            self._log = open(directory / "cluster.log", "ab+")  # noqa: SIM115
            line += ["--log-dir", str(directory)]
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=server_environment(),
            start_new_session=True,  # a Ctrl-C reaches us first, and we end it in order
        )
        self.root: Path | None = None  # its private directory
        self.log_dir = ""
        self.frames: str | None = None  # the socket at which it takes requests without gRPC

    def wait_ready(self, deadline_s: float) -> Address:
        """Wait for the cluster's own description of itself; its endpoints."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + deadline_s
        data = b""
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise DeadlineError(f"the embedded cluster did not start within {deadline_s:g} s{self._log_tail()}")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                raise ClusterError(f"the embedded cluster ended while starting{self._log_tail()}")
            data += chunk
        description: dict[str, Any] = json.loads(data)
        self.root = Path(description["root"])
        self.log_dir = description["log_dir"]
        self.frames = description["frames"]
        return Address(description["endpoint"], description["cache_endpoint"], source="the embedded cluster")

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def has_ended(self) -> bool:
        """Asked after a connection to it has failed, which a killed process's do a moment before it is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GOING_S)
        return not self.is_alive()

    def end_text(self) -> str:
        """``the embedded cluster has ended: exit code -9`` with the end of its log."""
        return f"the embedded cluster has ended: exit code {self.process.poll()}{self._log_tail()}"

    def stop(self) -> None:
        """Close its stdin and wait; kill it if it does not end. Nothing of it is left after."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._log.close()
        if self.root is not None:
            shutil.rmtree(self.root, ignore_errors=True)  # left only when it was killed

    def _log_tail(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_TAIL_BYTES))
        text = self._log.read().decode("utf-8", "replace").strip()
        return f"\n{text}" if text else ""
