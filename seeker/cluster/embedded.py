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

from seeker.cluster.settings import ClusterSettings
from seeker.errors import ClusterError, DeadlineError

_STOP_DEADLINE_S = 10.0


class EmbeddedCluster:
    """The process ends when the pipe to its stdin does: on `stop`, and whenever this process is gone."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._log_dir = Path(settings.log_dir or tempfile.mkdtemp(prefix="seeker-logs-")).absolute()
        self._owns_log_dir = settings.log_dir is None
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self.log_dir = str(self._log_dir)
        line = [sys.executable, "-m", "seeker.cluster.local", "--python", settings.executor_python()]
        line += ["--slots", str(settings.slots), "--log-dir", self.log_dir]
        environment = dict(os.environ)
        paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with (self._log_dir / "cluster.log").open("ab") as log:
            self.process = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # a Ctrl-C reaches us first, and we end it in order
            )

    def wait_ready(self, deadline_s: float) -> dict[str, Any]:
        """The cluster's own description: endpoints, pid, private directory."""
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
        self._root = Path(description["root"])
        return description

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end_text(self) -> str:
        return f"exit code {self.process.poll()}{self._log_tail()}"

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
        root = getattr(self, "_root", None)
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)  # left only when it was killed
        if self._owns_log_dir:
            shutil.rmtree(self._log_dir, ignore_errors=True)

    def _log_tail(self) -> str:
        text = (self._log_dir / "cluster.log").read_text(errors="replace")[-2000:].strip()
        return f"\n{text}" if text else ""
