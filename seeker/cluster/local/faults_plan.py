"""What the real engine's scheduler decides in one cycle of 100 ms, with all its looseness. Pure.

Idle executors are bound first (`dispatch`), whatever their size, whoever they were made for, and past a session's
maximum; then new ones are made (`allocate`). One pending call is reason enough to go to the maximum, one batch a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seeker.cluster.local.plan import Standing
from seeker.cluster.resources import Resources


def dispatch(standings: Sequence[Standing], num_idle: int) -> list[tuple[str, int]]:
    """Which sessions get how many of the idle executors: a batch each, all or nothing.

    Example: 15 idle, one session of batch 1 with a pending call: ``[("s", 1)]``, and again in every cycle in which a
    call is pending.
    """
    bound: list[tuple[str, int]] = []
    for each in _in_turn(standings):
        wanted = each.pending > 0 or each.held < each.minimum
        if wanted and each.batch <= num_idle:
            bound.append((each.id, each.batch))
            num_idle -= each.batch
    return bound


def allocate(standings: Sequence[Standing], free: Resources) -> list[tuple[str, int]]:
    """For which sessions how many executors are made: a batch each. `idle` counts those made for it and not yet bound.

    Example: one pending call, maximum 4, held 1: ``[("s", 1)]``, until it has four.
    """
    made: list[tuple[str, int]] = []
    for each in _in_turn(standings):
        target = each.maximum if each.pending > 0 else each.minimum
        needs = (each.each.cpu * each.batch, each.each.memory_bytes * each.batch, each.each.gpu * each.batch)
        left = (free.cpu, free.memory_bytes, free.gpu)
        if each.held + each.idle + each.batch <= target and all(
            need <= there for need, there in zip(needs, left, strict=True)
        ):
            made.append((each.id, each.batch))
            free = Resources(*(there - need for need, there in zip(needs, left, strict=True)))
    return made


def _in_turn(standings: Sequence[Standing]) -> Iterator[Standing]:
    """Higher priority first, older first; a lower priority is passed over while a higher one has pending calls."""
    top = max((each.priority for each in standings if each.pending), default=0)
    ordered = sorted(standings, key=lambda each: -each.priority)
    return (each for each in ordered if each.priority >= top or not any(other.pending for other in standings))
