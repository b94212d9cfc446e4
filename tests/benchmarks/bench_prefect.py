"""What Prefect costs the driver per step: four phase tasks around empty bodies, against the same bodies called plainly.

`python -m tests.benchmarks.bench_prefect`; the target is under 0.25 s a step. The cost is the client's (the loop
waits for it); the server records in its own process.
"""

from __future__ import annotations

import statistics
import time

from rich.console import Console

from flows.environment import flow_environment

NUM_STEPS = 30
TARGET_S = 0.25
PHASES = ("rollout", "advantage", "update", "publish")


def main() -> None:
    """Print the cost per step and what share of the target it is."""
    with flow_environment("tasks.naming"):
        orchestrated, plain = _measure(f"bench-{time.time_ns()}")
    cost = statistics.median(orchestrated) - statistics.median(plain)
    worst = max(orchestrated) - statistics.median(plain)
    console = Console(highlight=False)
    console.print(f"Prefect's client-side cost per step of {len(PHASES)} tasks, median of {NUM_STEPS}: {cost:.3f} s")
    console.print(f"ratio to the target of {TARGET_S} s: {cost / TARGET_S:.2f} (slowest step {worst / TARGET_S:.2f})")


def _measure(run_key: str) -> tuple[list[float], list[float]]:
    """Seconds per step, through tasks and called plainly, turn by turn in one flow."""
    from prefect import flow

    from tasks.naming import phase_task

    def body(run_key: str, lineage: int, step: int) -> dict[str, int]:
        return {"step": step}

    tasks = [phase_task(phase)(body) for phase in PHASES]
    orchestrated: list[float] = []
    plain: list[float] = []

    @flow(name="bench-prefect", persist_result=True, result_serializer="json")
    def loop() -> None:
        for step in range(NUM_STEPS):
            start = time.perf_counter()
            for phase in tasks:
                phase(run_key=run_key, lineage=0, step=step)
            middle = time.perf_counter()
            for _ in tasks:
                body(run_key, 0, step)
            orchestrated.append(middle - start)
            plain.append(time.perf_counter() - middle)

    loop()
    return orchestrated, plain


if __name__ == "__main__":
    main()
