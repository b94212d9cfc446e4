"""A gang's meeting points: shared objects to which each member appends itself, and then waits for the others.

Patches have one order for all readers, so all members come to the same decision from them.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .running import Failure, RunningCall, Stranger
from .store import AwayError, MissingError, Store

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.005, 0.05
_PARKED_PAUSE_S = 3600.0
_AWAY_PAUSE_S = 0.25
_READ_S = 2.0

Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Membership:
    """This executor's place in one generation of a gang.

    Example: ``Membership("g-1", 1, 2, ("0a1f", "77c2"), ("node-a", "node-b"), 3)``: the process that joined was the
    third behind this executor.
    """

    generation: str
    rank: int
    world: int
    executors: tuple[str, ...]  # by rank
    hosts: tuple[str, ...]  # by rank
    set_up_count: int

    def to_wire(self) -> dict[str, Any]:
        names = ("generation", "rank", "world", "executors", "hosts")
        return {name: getattr(self, name) for name in names}


class Meeting:
    """One shared object: its base names how many are expected, its patches who came."""

    def __init__(self, store: Store, key: str, call: RunningCall, doing: str) -> None:
        self._store, self._key, self._call, self._doing = store, key, call, doing
        self._world = 0
        self._came: Entries = []
        self._version = 0
        self._trouble = ""

    def arrive(self, who: dict[str, Any]) -> None:
        """Append `who`; again when the cache was away, so that an entry may be there twice, with the same "id"."""
        _append(self._store, self._key, {**who, "id": uuid.uuid4().hex}, self._call, self._doing)

    def wait(self, is_over: Callable[[int, Entries], bool], absent: Callable[[int, list[Any]], str]) -> None:
        """Until `is_over(world, came)`; `absent` says who is missing, for the text of the deadline."""
        pause_s = _FIRST_PAUSE_S
        while True:
            self._look()
            if self._world and is_over(self._world, self._came):
                return
            missing = f": {absent(self._world, self._came)}{self._trouble}"
            self._call.pause(pause_s, self._doing, missing)
            pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)

    @property
    def world(self) -> int:
        return self._world

    @property
    def came(self) -> Entries:
        return self._came

    def _look(self) -> None:
        try:
            parts = self._store.read(self._key, self._version, max(0.01, min(self._call.left(), _READ_S)))
        except MissingError as error:
            raise Failure("cancelled", f"{self._doing} was cancelled: {error}") from error
        except AwayError as error:
            self._trouble = f"; {error}"
            return
        self._trouble, self._version = "", parts.version
        if parts.base is not None:
            self._world, self._came = int(pickle.loads(parts.base)["world"]), []
        ids = {entry["id"] for entry in self._came}
        for entry in map(pickle.loads, parts.patches):
            if entry["id"] not in ids:
                ids.add(entry["id"])
                self._came.append(entry)


def join(store: Store, prefix: str, call: RunningCall, me: dict[str, Any], look: Callable[[], None]) -> Membership:
    """Meet the other members of the call's generation. `me`: executor, host, pid, set_up_count; `look` may raise."""
    generation = call.request.generation
    assert generation is not None
    doing = f"{call.what}: forming generation {generation}"
    meeting = Meeting(store, f"{prefix}/gang-{generation}", call, doing)
    meeting.arrive(me)

    def is_over(world: int, came: Entries) -> bool:
        look()
        return len(_distinct(came)) >= world

    def absent(world: int, came: Entries) -> str:
        return f"{len(_distinct(came))} of {world} members came: {', '.join(_distinct(came))}"

    meeting.wait(is_over, absent)
    members = dict(sorted(list(_distinct(meeting.came).items())[: meeting.world]))
    if me["executor"] not in members:
        raise Stranger("stranger", f"generation {generation} is complete without executor {me['executor']}")
    if members[me["executor"]]["set_up_count"] != me["set_up_count"]:
        raise Failure("lost", f"{doing}: an earlier process of executor {me['executor']} is the member")
    hosts = tuple(str(member["host"]) for member in members.values())
    rank = list(members).index(me["executor"])
    return Membership(generation, rank, meeting.world, tuple(members), hosts, me["set_up_count"])


def _distinct(came: Entries) -> dict[str, dict[str, Any]]:
    """The first entry of each executor, in the order of arrival."""
    first: dict[str, dict[str, Any]] = {}
    for entry in came:
        first.setdefault(entry["executor"], entry)
    return first


def meet(store: Store, member: Membership, call: RunningCall, look: Callable[[], None]) -> None:
    """Wait at the call's barrier until every rank is there; `Failure` "barrier" when one comes twice."""
    key = call.request.barrier
    assert key is not None
    meeting = Meeting(store, key, call, f"{call.what}: rank {member.rank} at the barrier")
    meeting.arrive({"rank": member.rank, "executor": member.executors[member.rank]})

    def is_over(world: int, came: Entries) -> bool:
        look()
        ranks = [entry["rank"] for entry in came]
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1 or not 0 <= rank < world})
        if twice:
            text = f"{call.what}: the barrier of {world} ranks was reached twice, or from outside, by ranks {twice}"
            raise Failure("barrier", text, kills=False)
        return len(ranks) >= world

    def absent(world: int, came: Entries) -> str:
        missing = sorted(set(range(world)) - {entry["rank"] for entry in came})
        return f"ranks that did not come: {', '.join(f'{rank} ({_executor(member, rank)})' for rank in missing)}"

    meeting.wait(is_over, absent)


def _executor(member: Membership, rank: int) -> str:
    return member.executors[rank] if rank < len(member.executors) else "no executor"


def park(store: Store, key: str | None, call: RunningCall, executor: str, why: Stranger) -> None:
    """Hold the call, so that its executor takes no other, after telling the driver. Always ends by raising."""
    doing = f"{call.what}, parked on executor {executor} ({why}),"
    if key is None:
        raise why
    entry = {"call": call.request.call, "executor": executor, "reason": why.kind, "detail": str(why)}
    try:
        _append(store, key, entry, call, doing)
    except MissingError:
        raise why from None
    while True:
        call.pause(_PARKED_PAUSE_S, doing)


def _append(store: Store, key: str, entry: dict[str, Any], call: RunningCall, doing: str) -> None:
    data = pickle.dumps(entry)
    while True:
        try:
            return store.append(key, data, max(0.01, min(call.left(), _READ_S)))
        except AwayError as error:
            call.pause(_AWAY_PAUSE_S, doing, f"; {error}")
