"""The engine's own end-to-end check, as its users run it, against the embedded cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from seeker.cluster.client import Cluster


def test_runner_e2e(cluster: Cluster, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "FLAME_ENDPOINT": cluster.endpoint,
        "FLAME_CACHE_ENDPOINT": cluster.describe()["cache_endpoint"],
    }
    start = time.monotonic()
    line = [sys.executable, "-m", "flamepy.runner.e2e"]
    done = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    print(f"flamepy.runner.e2e: {time.monotonic() - start:.1f} s")  # 4 s or less on two quiet cores
    assert done.returncode == 0, done.stderr
    assert "Flame Runner cluster e2e passed" in done.stdout
