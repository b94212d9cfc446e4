"""A cluster as a process of its own, which outlives its drivers, and drivers as processes that tests may kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seeker.cluster.client import ClusterSettings

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def served_cluster(*options: str) -> Iterator[dict[str, Any]]:
    """The description of a cluster that is nobody's child to end: endpoint, cache_endpoint, pid, root."""
    line = [sys.executable, "-m", "seeker.cluster.local", "--serve", *options]
    line += ["--python", ClusterSettings().executor_python()]
    process = subprocess.Popen(
        line,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def settings_of(served: dict[str, Any], **more: Any) -> ClusterSettings:
    return ClusterSettings(endpoint=served["endpoint"], cache_endpoint=served["cache_endpoint"], **more)


def start_driver(code: str, served: dict[str, Any], cwd: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A driver that runs `code` against a served cluster, and the line of JSON that it prints when it is ready."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {"FLAME_ENDPOINT": served["endpoint"], "FLAME_CACHE_ENDPOINT": served["cache_endpoint"]}
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    return driver, json.loads(driver.stdout.readline())
