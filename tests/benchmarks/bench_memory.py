"""What 500 steps add to the memory of the process that trains, and to Prefect's database.

    python -m tests.benchmarks.bench_memory [--steps 500]

The flow as a command runs it, on its own embedded cluster and its own Prefect; the services answer at once, so that
their work is not waited for.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from flows.environment import flow_environment
from seeker.presets import load_config, project_root
from tests.benchmarks.processes import usage_of

WARM = 20  # steps, after which everything that is loaded once has been
LIMIT_MB = 30.0
SERVICES = "tests.benchmarks.canned_services"
DATABASE = project_root() / ".prefect" / "prefect.db"


def main() -> int:
    """Print the growth; 1 when it is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    with flow_environment("flows.train") as flows, tempfile.TemporaryDirectory() as folder:
        at = run(flows, Path(folder) / "run", WARM + steps)
    grown = at[WARM + steps].megabytes - at[WARM].megabytes
    seconds = (at[WARM + steps].time - at[WARM].time) / steps
    tenths = [at[WARM + steps * part // 50 * 10].megabytes - at[WARM].megabytes for part in range(6)]
    print(f"memory of the training process after {WARM} steps: {at[WARM].megabytes:.0f} MB")
    print(f"{steps} steps later: {grown:+.1f} MB (each fifth: {', '.join(f'{each:+.1f}' for each in tenths)})")
    print(f"limit {LIMIT_MB:.0f} MB for 500 steps: {'kept' if grown < LIMIT_MB * steps / 500 else 'MISSED'}")
    print(f"Prefect's database: {(at[WARM + steps].database - at[WARM].database) / steps / 1000:.0f} kB a step")
    print(f"a step without its services: {1e3 * seconds:.0f} ms")
    return grown >= LIMIT_MB * steps / 500


class Moment:
    """After a commit."""

    def __init__(self) -> None:
        gc.collect()
        self.megabytes = usage_of(os.getpid()).resident_bytes / 2**20
        self.database = DATABASE.stat().st_size if DATABASE.is_file() else 0
        self.time = time.perf_counter()


def run(flows: Any, root: Path, steps: int) -> dict[int, Moment]:
    """Train; what was measured at every tenth version."""
    at: dict[int, Moment] = {}
    after_commit, start_trainers = flows._after_commit, flows.start_trainers

    def measured(session: Any, version: int, progress: Any) -> None:
        after_commit(session, version, progress)
        if version % 10 == 0:
            at[version] = Moment()

    flows._after_commit = measured
    flows.start_trainers = partial(start_trainers, target=f"{SERVICES}:CannedTrainer")
    config = load_config("micro", ["evaluation.every=100", f"out={root}"], steps=steps)
    flows.train(config=config, rollout_target=f"{SERVICES}:CannedRollouts")
    return at


if __name__ == "__main__":
    sys.exit(main())
