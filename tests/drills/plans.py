"""Which kills a drilled run gets, and when."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

# Server and worker come back within 10 s of processor time each, so they get half as many as the others.
DECK = ("flow", "cluster", "executor", "trainer", "worker", "flow", "cluster", "executor", "trainer", "server")
RECOVERS = ("executor", "trainer")  # the cluster and the loop replace these while the flow goes on
STEP_S = 1.5
START_S = 8.0  # from the start of a flow run to its first step, roughly


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill. Example: ``Strike("trainer", after=4, delay_s=0.7)``: 0.7 s after four steps are committed.

    One whose steps are committed already strikes as soon as its target is there: while the run is being resumed.
    """

    target: str
    after: int
    delay_s: float


def targets(first: int, number: int, draw: random.Random) -> list[str]:
    """The `first`th and those after it, of all kills of a drill: every kind about as often as `DECK` has it."""
    chosen = list(itertools.islice(itertools.cycle(DECK), first, first + number))
    draw.shuffle(chosen)
    return chosen


def plan(chosen: Sequence[str], steps: int, draw: random.Random) -> list[Strike]:
    """Random moments for the targets, in their order, so early that the run cannot end before its last kill.

    Executors and trainers are not struck twice after one commit: what is lost three times gives up, by design.
    """
    moments = sorted(draw.sample(range(steps - 1), min(len(chosen), steps - 1)))
    strikes: list[Strike] = []
    for number, target in enumerate(chosen):
        resuming = target not in RECOVERS and draw.random() < 0.3
        after = 0 if resuming else moments[min(number, len(moments) - 1)]
        strikes.append(Strike(target, after, draw.uniform(0.0, START_S if resuming else STEP_S)))
    return strikes
