"""What durability costs: the commit of a step, and a checkpoint against a plain write and fsync of the same bytes.

    python -m tests.benchmarks.bench_commit [--folder DIR] [--megabytes 256]

Run it on the disk that will hold the runs: the cost of a commit is that of its fsyncs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from seeker.engines.checkpoint import write_checkpoint
from seeker.runs import (
    RunDirectory,
    append_metrics,
    commit_step,
    open_run,
    write_checkpoint_summary,
    write_file,
)
from seeker.runs.disk import Disk, use_disk
from seeker.runs.files import dump_json
from tests.runs.scripted_run import next_step, play, scripted_config

STEPS = 400
METRICS = {f"metric/{number}": number / 7 for number in range(60)}


class CountingDisk(Disk):
    """Counts flushes and their seconds."""

    def __init__(self) -> None:
        self.syncs, self.seconds = 0, 0.0

    def sync(self, path: Path) -> None:
        started = time.perf_counter()
        super().sync(path)
        self.seconds += time.perf_counter() - started
        self.syncs += 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one step."""

    seconds: float
    syncs: int
    sync_s: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--megabytes", type=int, default=256)
    arguments = parser.parse_args()
    with scratch(arguments.folder) as folder:
        measure_commits(Path(folder) / "run")
        measure_checkpoints(Path(folder), arguments.megabytes)


def scratch(folder: Path | None) -> AbstractContextManager[str]:
    return tempfile.TemporaryDirectory(dir=folder)


def measure_commits(root: Path) -> None:
    """The commit alone, early and late in a run with evaluations, and everything that a small step writes."""
    play(root, scripted_config(steps=10, checkpoint={"every": 10}))
    run = open_run(root, scripted_config(steps=STEPS + 50, checkpoint={"every": 10}), "scripted")
    costs = []
    for step in range(10, STEPS):
        costs.append(spent(lambda: commit(run, step)))  # noqa: B023
    early, late = costs[:20], costs[-20:]
    print(f"commit of a step (policy manifest, manifest, LATEST, views): {tell(early)}")
    print(f"the same at step {STEPS}: {tell(late)}; at most 50 ms")
    whole = spent(lambda: next_step(run))
    print(f"everything that a step of two rollout calls writes: {tell([whole])}")


def commit(run: RunDirectory, step: int) -> None:
    policy = write_file(run.root, f"policy/{step + 1:06d}.json", dump_json({"digest": "x" * 32}))
    manifest = {"rollouts": [], "batch": {}, "metrics": METRICS}
    commit_step(run, step, policy, manifest)
    append_metrics(run, step)
    write_checkpoint_summary(run)


def spent(work: Callable[[], object]) -> Cost:
    disk = CountingDisk()
    started = time.perf_counter()
    with use_disk(disk):
        work()
    return Cost(time.perf_counter() - started, disk.syncs, disk.seconds)


def tell(costs: list[Cost]) -> str:
    seconds = statistics.median(cost.seconds for cost in costs)
    sync_s = statistics.median(cost.sync_s for cost in costs)
    return f"{1e3 * seconds:.1f} ms with {costs[0].syncs} fsyncs ({1e3 * sync_s:.1f} ms of it)"


def measure_checkpoints(folder: Path, megabytes: int) -> None:
    """Each beside the other, so that both meet the same disk; the median of five ratios."""
    tensors = {f"masters.{number}": torch.randn(megabytes * 1024 * 32) for number in range(8)}
    data = b"".join(tensor.numpy().tobytes() for tensor in tensors.values())
    plain, ours = [], []
    for number in range(5):
        plain.append(timed(lambda: write_plain(folder / f"plain-{number}", data)))  # noqa: B023
        ours.append(timed(lambda: write_checkpoint(folder / "checkpoints" / f"{number:06d}", tensors, {})))  # noqa: B023
    rate = megabytes / statistics.median(ours)
    ratio = statistics.median(a / b for a, b in zip(plain, ours, strict=True))
    print(f"checkpoint of {megabytes} MB (serialised, hashed, written, flushed, read back): {rate:.0f} MB/s")
    print(f"ratio to a plain write and fsync of the same bytes: {ratio:.2f}; at least 0.7")


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def write_plain(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
