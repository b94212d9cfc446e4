"""The engine's own end-to-end check against the embedded cluster: `python -m tests.benchmarks.bench_e2e`.

It runs as its users run it, `python -m flamepy.runner.e2e`: three services of a new application, each in processes
that are started for it. The target is 4 s for the whole command on two quiet cores; beside it stands a process that
only imports flamepy, as the command itself and each of its executors must.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from rich.console import Console

from seeker.cluster.client import ClusterSettings, open_cluster

TARGET_S = 4.0
NUM_RUNS = 3


def main() -> None:
    """Print the median of the command and its ratio to a process that imports flamepy."""
    with open_cluster(ClusterSettings(run_id="bench-e2e")) as cluster, tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ,
            "HOME": home,
            "FLAME_ENDPOINT": cluster.endpoint,
            "FLAME_CACHE_ENDPOINT": cluster.describe()["cache_endpoint"],
        }
        imports, runs = [], []
        for _ in range(NUM_RUNS):
            imports.append(_seconds(["-c", "import flamepy.runner"], environment, home))
            runs.append(_seconds(["-m", "flamepy.runner.e2e"], environment, home))
    note = "" if median(runs) <= TARGET_S else ": MISSED"
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"python -m flamepy.runner.e2e, median of {NUM_RUNS}: {median(runs):.2f} s (target {TARGET_S:g} s{note})"
    )
    console.print(
        f"a process that imports flamepy: {median(imports):.2f} s; ratio {median(runs) / median(imports):.1f}"
    )


def _seconds(arguments: list[str], environment: dict[str, str], directory: str) -> float:
    start = time.monotonic()
    subprocess.run([sys.executable, *arguments], env=environment, cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


if __name__ == "__main__":
    main()
