"""What resuming costs on the laptop preset, and what writing full states costs its loop.

    python -m tests.benchmarks.bench_resume

A run is left as a kill leaves it at the worst moment, right before a checkpoint: every update since the one before is
replayed. Then it goes on with a checkpoint every other step. What is measured of the resume begins when the processes
are up: reading and checking the run directory, restoring, replaying, publishing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flows.environment import flow_environment
from seeker.presets import load_config
from seeker.runs import checkpoint_versions, load_run, read_metrics

RESUME_LIMIT_S = 10.0
STALL_LIMIT = 0.05
MORE_STEPS = 7


class Watch:
    """Adds up the seconds spent in functions that are given it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.num_calls = 0

    def on(self, name: str, function: Callable[..., Any], before: Callable[..., Any] | None = None) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args)
            self.num_calls += name == "begin"
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

        return watched


def main() -> int:
    """Print both; 1 when a limit is missed."""
    with flow_environment("flows.train") as flows, scratch() as folder:
        root = Path(folder) / "run"
        every = load_config("laptop").checkpoint.every
        done = every - 1
        train(flows, root, "checkpoint.every=1000", done + MORE_STEPS, pause_after=done)
        watch = watch_resume(flows)
        train(flows, root, "checkpoint.every=2", done + MORE_STEPS)
        rows = [row for row in read_metrics(root) if row["step"] >= done]
        resumed = watch.seconds["open"] + watch.seconds["publish"]
        stall = tell_stall(watch, root, rows)
    print(f"resumed {done} steps after the last checkpoint: {resumed:.1f} s once the processes are up")
    print(
        f"  run directory {watch.seconds['open']:.2f} s, {done} updates and publishing {watch.seconds['publish']:.2f} s"
    )
    print(f"  limit {RESUME_LIMIT_S:.0f} s: {'kept' if resumed <= RESUME_LIMIT_S else 'MISSED'}")
    return resumed > RESUME_LIMIT_S or stall > STALL_LIMIT


def scratch() -> AbstractContextManager[str]:
    return tempfile.TemporaryDirectory()


def train(flows: Any, root: Path, override: str, steps: int, **limits: Any) -> None:
    config = load_config("laptop", [override, "evaluation.every=0", f"out={root}"], steps=steps)
    flows.train(config=config, **limits)


def watch_resume(flows: Any) -> Watch:
    """From here on the parts that the loop waits for are timed."""
    from tasks import updates  # Prefect is imported where its environment is

    watch = Watch()
    flows.open_run = watch.on("open", flows.open_run)
    flows.publish_held = watch.on(
        "publish", flows.publish_held, before=lambda session, _: session.trainers.run("describe")
    )
    flows.begin_checkpoint = watch.on("begin", flows.begin_checkpoint)
    updates.settle_checkpoints = watch.on("stall", updates.settle_checkpoints)
    updates.PendingCheckpoint.await_copy = watch.on("stall", updates.PendingCheckpoint.await_copy)
    return watch


def tell_stall(watch: Watch, root: Path, rows: list[dict[str, Any]]) -> float:
    """Prints what a checkpoint costs; the share of a step that the loop waits for one."""
    versions = checkpoint_versions(load_run(root))
    size = sum(path.stat().st_size for path in load_run(root).checkpoint_path(versions[-1]).iterdir())
    after = [row["seconds/step"] for row in rows if row["step"] % 2 == 0]  # of an even version, which was written
    others = [row["seconds/step"] for row in rows if row["step"] % 2]
    step, waited_s = statistics.median(others), (watch.seconds["begin"] + watch.seconds["stall"]) / watch.num_calls
    share = waited_s / step
    print(f"{watch.num_calls} checkpoints of {size / 1e6:.0f} MB, steps of {step:.1f} s")
    print(f"  the loop waited {1e3 * waited_s:.0f} ms for each: {share:.1%} of a step", end="")
    print(f"; limit {STALL_LIMIT:.0%}: {'kept' if share <= STALL_LIMIT else 'MISSED'}")
    print(f"  steps beside a writing take {statistics.median(after) / step:.2f} of the others")
    return share


if __name__ == "__main__":
    sys.exit(main())
