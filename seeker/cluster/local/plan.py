"""Which sessions get executors next, which wait for room, and who is asked to make room. Pure.

The order: higher priority first; sessions with calls before those that only keep a minimum; batches that lost a member
first; then whoever holds the smallest share of the node, and of equals whoever waits longest.

A session that waits keeps others from taking what it waits for, so that a stream of small ones cannot starve a large
one. That lapses when nothing has become free for a while (`patience_s`), or calls that wait for calls of a younger
session would wait for ever.

Where executors can be given up so that a waiting session's whole batch fits, their sessions are asked, down to their
minimum: idle ones first (the engine's scheduler does so in its shuffle), then, between two calls, those of a session
that holds more than its share or, for a session that has nothing and has waited for `STARVED_S`, any.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from seeker.cluster.resources import Resources

STARVED_S = 2.0
_PATIENCE_S = (2.0, 120.0)


@dataclass(frozen=True, slots=True)
class Standing:
    """One open session as a pass sees it.

    Example: ``Standing("s", each=Resources(cpu=2), calls=5, minimum=2, maximum=4, held=3, idle=1)`` wants a fourth.
    """

    id: str
    each: Resources = field(default_factory=Resources)
    priority: int = 0
    calls: int = 0  # pending and running
    pending: int = 0
    minimum: int = 0
    maximum: int = 1_000_000
    batch: int = 1
    held: int = 0  # executors, those on their way out included
    idle: int = 0  # of them ready and without a call
    leaving: int = 0  # of them on their way out
    waited_s: float = 0.0  # since there was no room for its next batch

    @property
    def demand(self) -> int:
        """One executor per call in whole batches, between minimum and maximum."""
        wanted = max(self.calls // self.batch * self.batch, self.minimum)
        return min(wanted, self.maximum // self.batch * self.batch)

    @property
    def is_incomplete(self) -> bool:
        """A batch or the minimum has lost an executor."""
        return 0 < self.held < self.minimum or self.held % self.batch != 0

    @property
    def is_growth(self) -> bool:
        """Its next batch is beyond the minimum, so that it may wait for those that are starting."""
        return self.held >= self.minimum and not self.is_incomplete


@dataclass(frozen=True, slots=True)
class Room:
    """The node: what it has, what is free, what is about to be, and how long ago something became free."""

    capacity: Resources
    free: Resources
    coming: Resources = field(default_factory=lambda: Resources(0, 0, 0))  # of executors on their way out
    quiet_s: float = 0.0
    starting: int = 0
    max_starting: int = 1_000_000  # more at once, beyond minima, would only delay each other


@dataclass(slots=True)
class Plan:
    """Example: ``Plan(starts=[("a", 2)], waits={"b": "why"}, claims={"c": 1})``: one of c's shall go for b."""

    starts: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    waits: dict[str, str] = field(default_factory=dict[str, str])
    claims: dict[str, int] = field(default_factory=dict[str, int])


def next_batch(standing: Standing) -> int:
    """How many executors to make next, all or nothing.

    Example: minimum 2, batch 1, nothing held, 5 calls: first 2 (the minimum together), then 1 at a time.
    """
    if standing.held >= standing.demand:
        return 0
    if standing.held < standing.minimum:
        return standing.minimum - standing.held
    return standing.batch - standing.held % standing.batch


def patience_s(waited_s: float) -> float:
    """How long a waiting session may hold others off while nothing becomes free. Example: 10 s after waiting 20 s."""
    low, high = _PATIENCE_S
    return min(max(waited_s / 2, low), high)


def make_plan(standings: Sequence[Standing], room: Room) -> Plan:
    plan = Plan()
    now = {each.id: each for each in standings}
    left, starting = room.free, room.starting  # left: what no session that was passed over waits for
    waiting: list[_Wish] = []
    todo = [(_rank(each, room.capacity), place, each.id) for place, each in enumerate(standings) if next_batch(each)]
    heapq.heapify(todo)
    while todo:
        _, place, key = heapq.heappop(todo)
        wish = _Wish(now[key], next_batch(now[key]))
        if wish.fits(left) and wish.may_start(starting, room.max_starting):
            plan.starts.append((key, wish.count))
            starting += wish.count
            now[key] = replace(wish.standing, held=wish.standing.held + wish.count)
            if next_batch(now[key]):
                heapq.heappush(todo, (_rank(now[key], room.capacity), place, key))
        elif not wish.fits(left):
            waiting.append(wish)
        if now[key].held > wish.standing.held or wish.reserves(room):
            left = _less(left, wish.needs)
    free = _less(room.free, _total(_times(now[key].each, count) for key, count in plan.starts))
    plan.waits = {wish.standing.id: _reason(wish, room, free) for wish in waiting}
    plan.claims = _claims(waiting, now, _plus(free, room.coming), room)
    return plan


def why_stuck(standing: Standing) -> str | None:
    """Why a session with pending calls wants no executor, though it has none."""
    if standing.held or not standing.pending or standing.demand:
        return None
    batch, maximum = standing.batch, standing.maximum
    if maximum < batch:
        return f"{standing.pending} calls pending: its maximum of {maximum} executors is below its batch of {batch}"
    return f"{standing.pending} calls pending: executors are made in batches of {batch}, one for each call"


# -- parts of a pass -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wish:
    """A session's next batch."""

    standing: Standing
    count: int

    @property
    def needs(self) -> Resources:
        return _times(self.standing.each, self.count)

    def fits(self, free: Resources) -> bool:
        return not any(self.lacks(free))

    def lacks(self, free: Resources) -> tuple[bool, bool, bool]:
        """Of cores, memory and GPUs: what it needs and is not there. What it does not need is never lacking."""
        pairs = zip(_parts(self.needs), _parts(free), strict=True)
        cpu, memory, gpu = (need > 0 and need > there for need, there in pairs)
        return cpu, memory, gpu

    def may_start(self, starting: int, max_starting: int) -> bool:
        return not self.standing.is_growth or not starting or starting + self.count <= max_starting

    def reserves(self, room: Room) -> bool:
        waited_s = self.standing.waited_s
        return self.fits(room.capacity) and min(room.quiet_s, waited_s) < patience_s(waited_s)


def _rank(each: Standing, capacity: Resources) -> tuple[float, ...]:
    share = _share(_times(each.each, each.held), capacity)
    return (-each.priority, each.calls == 0, not each.is_incomplete, share, -each.waited_s)


def _reason(wish: _Wish, room: Room, free: Resources) -> str:
    wants = f"{wish.standing.pending} calls pending: waits for room for {wish.count} x {wish.standing.each}"
    if not wish.fits(room.capacity):
        return f"{wants}, which the node never has: its capacity is {room.capacity}"
    kept = ", kept for sessions that wait longer" if wish.fits(free) else ""
    return f"{wants}; free: {free} of {room.capacity}{kept}"


# -- who makes room ------------------------------------------------------------------------------------------------


def _claims(waiting: list[_Wish], now: dict[str, Standing], free: Resources, room: Room) -> dict[str, int]:
    """For the first waiting session with calls for which enough can be given up: who gives up how many."""
    for wish in waiting:
        if wish.standing.pending == 0 or wish.fits(free):
            continue
        others = [each for each in now.values() if each.id != wish.standing.id and not _outranks(each, wish.standing)]
        others.sort(key=lambda each: (each.priority, -_share(_times(each.each, each.held), room.capacity)))
        for with_busy in (False, True):
            left, claims = free, dict[str, int]()
            for other in others:
                spare = _busy_spare(other, wish, room) if with_busy else _idle_spare(other)
                claims[other.id] = _useful(spare, other, wish, left)
                left = _plus(left, _times(other.each, claims[other.id]))
            if wish.fits(left):
                return {key: number for key, number in claims.items() if number}
    return {}


def _outranks(one: Standing, other: Standing) -> bool:
    return one.priority > other.priority


def _useful(spare: int, other: Standing, wish: _Wish, free: Resources) -> int:
    """How many of `other`'s `spare` executors, in whole batches, bring the wish nearer."""
    step = other.batch if spare % other.batch == 0 else spare
    number = 0
    while number < spare:
        lacks = wish.lacks(_plus(free, _times(other.each, number)))
        if not any(lack and part for lack, part in zip(lacks, _parts(other.each), strict=True)):
            break
        number += step
    return number


def _idle_spare(other: Standing) -> int:
    if other.held % other.batch and other.calls == 0:  # what is left of a batch is of no use to its session
        return other.idle
    spare = min(other.idle, max(other.held - other.leaving - other.demand, 0))
    return spare - spare % other.batch


def _busy_spare(other: Standing, wish: _Wish, room: Room) -> int:
    waiting = wish.standing
    starved = waiting.held == 0 and waiting.waited_s >= STARVED_S
    wanted = _share(_times(waiting.each, waiting.held + wish.count), room.capacity)
    left = staying = other.held - other.leaving
    while left - other.batch >= other.minimum:
        after = _share(_times(other.each, left - other.batch), room.capacity)
        if not (starved or _outranks(waiting, other) or after >= wanted):
            break
        left -= other.batch
    return max(staying - left, _idle_spare(other))


# -- resources -----------------------------------------------------------------------------------------------------


def _parts(each: Resources) -> tuple[int, int, int]:
    return each.cpu, each.memory_bytes, each.gpu


def _share(held: Resources, capacity: Resources) -> float:
    """The largest part of any resource of the node. Example: 8 of 16 cores and 1 of 64 GiB: 0.5."""
    return max((part / there for part, there in zip(_parts(held), _parts(capacity), strict=True) if there), default=0.0)


def _plus(one: Resources, other: Resources) -> Resources:
    return Resources(one.cpu + other.cpu, one.memory_bytes + other.memory_bytes, one.gpu + other.gpu)


def _total(parts: Iterable[Resources]) -> Resources:
    total = Resources(0, 0, 0)
    for each in parts:
        total = _plus(total, each)
    return total


def _less(one: Resources, other: Resources) -> Resources:
    return _plus(one, _times(other, -1))


def _times(each: Resources, count: int) -> Resources:
    return Resources(each.cpu * count, each.memory_bytes * count, each.gpu * count)
