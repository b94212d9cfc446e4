"""Pinned behaviour of scheduling on one node, as pure decisions and with scripted executors.

1.  The node is never oversubscribed; batches and minima start whole or not at all.
2.  Sessions of equal priority share the node: whoever holds least comes first, of equals whoever waits longest.
3.  Higher priority comes first; a batch that lost a member comes before new ones; calls come before bare minima.
4.  A waiting session keeps others from what it waits for, resource by resource, until nothing was freed for a while.
5.  What the node never has is told as such, and keeps nobody waiting.
6.  Idle executors beyond a minimum make room for a session with calls, in whole batches, if that is enough for it.
7.  Between calls a session gives up what is beyond its share, and more to one that has had nothing for 2 s; never its
    minimum.
8.  What is left of a broken batch without calls makes room too.
9.  32 gangs of random sizes in random order all finish; a large gang gets its turn in a stream of small sessions; two
    gangs of two take turns on three cores. Never a partial hold.
10. A session takes more executors as calls pile up, and calls alone never take it past its maximum.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.cluster import wire
from seeker.cluster.local.plan import Room, Standing, make_plan, patience_s, why_stuck
from seeker.cluster.local.records import SessionRecord
from seeker.cluster.local.scheduler import Scheduler
from seeker.cluster.local.state import State
from seeker.cluster.resources import Resources

MEMORY = 2**20


def _cores(number: int, gpu: int = 0) -> Resources:
    return Resources(number, number * MEMORY, gpu)


def _room(capacity: int, free: int, gpus: int = 0, **fields: Any) -> Room:
    return Room(_cores(capacity, gpus), _cores(free, gpus), **fields)


def _standing(name: str, **fields: Any) -> Standing:
    fields.setdefault("each", _cores(1))
    fields.setdefault("pending", fields.get("calls", 0))
    return Standing(name, **fields)


standings = st.builds(
    lambda cores, calls, low, more, batch, priority, waited: _standing(
        "x",
        each=_cores(cores),
        calls=calls,
        minimum=low * batch,
        maximum=max((low + more) * batch, batch),
        batch=batch,
        priority=priority,
        waited_s=waited,
    ),
    *(st.integers(1, 4), st.integers(0, 9), st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)),
    *(st.integers(0, 2), st.floats(0, 9)),
)


@given(st.lists(standings, max_size=6), st.integers(0, 16), st.floats(0, 9))
def test_never_oversubscribed_and_never_partial(found: list[Standing], free: int, quiet: float) -> None:
    named = [replace(each, id=str(place)) for place, each in enumerate(found)]
    plan = make_plan(named, _room(16, free, quiet_s=quiet))
    by_name = {each.id: each for each in named}
    started: dict[str, int] = {}
    for name, count in plan.starts:
        started[name] = started.get(name, 0) + count
    assert sum(by_name[name].each.cpu * count for name, count in started.items()) <= free
    for name, count in started.items():
        each = by_name[name]
        assert each.minimum <= count <= each.demand
        assert count % each.batch == 0


def test_turns() -> None:
    rich, poor = _standing("rich", calls=9, held=2), _standing("poor", calls=9)
    assert make_plan([rich, poor], _room(4, 2)).starts == [("poor", 1), ("poor", 1)]
    assert make_plan([rich, poor], _room(8, 4)).starts == [("poor", 1), ("poor", 1), ("rich", 1), ("poor", 1)]
    late, early = _standing("late", calls=1), _standing("early", calls=1, waited_s=1)
    assert make_plan([late, early], _room(4, 1)).starts == [("early", 1)]


def test_order() -> None:
    plain, urgent = _standing("plain", calls=1, waited_s=9), _standing("urgent", calls=1, priority=1)
    assert make_plan([plain, urgent], _room(4, 1)).starts == [("urgent", 1)]
    bare, called = _standing("bare", minimum=1), _standing("called", calls=1)
    assert make_plan([bare, called], _room(4, 1)).starts == [("called", 1)]
    gang = {"calls": 2, "minimum": 2, "maximum": 2, "batch": 2}
    new, broken = _standing("new", waited_s=9, **gang), _standing("broken", held=1, **gang)
    assert make_plan([new, broken], _room(3, 2)).starts == [("broken", 1)]


def test_starting_takes_turns_beyond_the_minimum() -> None:
    growing = _standing("a", calls=9, held=1)
    assert len(make_plan([growing], _room(9, 8, max_starting=2)).starts) == 2
    assert make_plan([growing], _room(9, 8, starting=2, max_starting=2)).starts == []
    least = _standing("b", minimum=4)
    assert make_plan([growing, least], _room(9, 8, starting=2, max_starting=2)).starts == [("b", 4)]


def test_reservations() -> None:
    gang = _standing("gang", calls=4, minimum=4, maximum=4, batch=4, waited_s=10)
    small = _standing("small", calls=1)
    assert make_plan([small, gang], _room(4, 2, quiet_s=1)).starts == []
    assert (
        make_plan([small, gang], _room(4, 2, quiet_s=1)).waits["small"].endswith("kept for sessions that wait longer")
    )
    assert make_plan([small, gang], _room(4, 2, quiet_s=6)).starts == [("small", 1)]
    assert make_plan([small, gang], _room(6, 5, quiet_s=1)).starts == [("gang", 4), ("small", 1)]
    assert [patience_s(waited) for waited in (0, 10, 1000)] == [2, 5, 120]
    device = _standing("device", calls=1, each=_cores(1, gpu=1), waited_s=5)
    room = Room(_cores(4, 1), _cores(2, 0))
    assert make_plan([device, small], room).starts == [("small", 1)]  # a core is left beside the one it waits for


def test_what_the_node_never_has() -> None:
    large, small = _standing("large", calls=1, each=_cores(99), waited_s=1), _standing("small", calls=1)
    plan = make_plan([large, small], _room(4, 4))
    assert plan.starts == [("small", 1)]
    assert "1 calls pending: waits for room for 1 x cpu=99" in plan.waits["large"]
    assert "which the node never has: its capacity is cpu=4" in plan.waits["large"]
    assert why_stuck(_standing("half", calls=1, batch=2)) is not None
    never = why_stuck(_standing("never", calls=2, maximum=1, batch=2))
    assert "maximum of 1 executors is below its batch of 2" in str(never)
    assert why_stuck(_standing("fine", calls=1)) is None


def test_idle_executors_make_room() -> None:
    idle = _standing("idle", minimum=1, held=4, idle=4)
    wanting = _standing("wanting", calls=2, minimum=2, maximum=2, batch=2)
    assert make_plan([idle, wanting], _room(4, 0)).claims == {"idle": 2}
    assert make_plan([idle, replace(wanting, pending=0)], _room(4, 0)).claims == {}
    assert make_plan([replace(idle, minimum=3), wanting], _room(4, 0)).claims == {}  # one would not be enough
    assert make_plan([replace(idle, minimum=3), wanting], _room(5, 1)).claims == {"idle": 1}
    assert make_plan([replace(idle, leaving=2, idle=2), wanting], _room(4, 0, coming=_cores(2))).claims == {}
    assert make_plan([replace(idle, priority=1), wanting], _room(4, 0)).claims == {}
    pairs = _standing("pairs", batch=2, held=4, idle=4)
    assert make_plan([pairs, _standing("one", calls=1)], _room(4, 0)).claims == {"pairs": 2}
    other = Room(_cores(4, 1), _cores(0, 0))
    device = _standing("device", calls=1, each=Resources(0, 0, 1))
    assert make_plan([idle, device], other).claims == {}  # none of them has a GPU to give


def test_busy_sessions_make_room_between_calls() -> None:
    busy = _standing("busy", calls=9, held=4)
    other = _standing("other", calls=9)
    assert make_plan([busy, other], _room(4, 0)).claims == {"busy": 1}
    assert make_plan([replace(busy, held=2), replace(other, held=2)], _room(4, 0)).claims == {}
    assert make_plan([replace(busy, held=3), replace(other, held=1)], _room(4, 0)).claims == {"busy": 1}
    gang = _standing("gang", calls=4, minimum=4, maximum=4, batch=4)
    assert make_plan([busy, gang], _room(4, 0)).claims == {}
    assert make_plan([busy, replace(gang, waited_s=2)], _room(4, 0)).claims == {"busy": 4}
    assert make_plan([replace(busy, minimum=1), replace(gang, waited_s=2)], _room(4, 0)).claims == {}


def test_what_is_left_of_a_batch_makes_room() -> None:
    broken = _standing("broken", minimum=2, maximum=2, batch=2, held=1, idle=1)
    assert make_plan([broken, _standing("one", calls=2, minimum=2, batch=2)], _room(2, 1)).claims == {"broken": 1}


# -- with scripted executors ---------------------------------------------------------------------------------------


class ScriptedExecutor:
    """Bound after a moment; a call is its input as seconds."""

    num_alive = 0

    def __init__(
        self,
        session: SessionRecord,
        resources: Resources,
        gpus: tuple[int, ...],
        on_bound: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.session, self.resources, self.gpus = session, resources, gpus
        self.state = wire.EXECUTOR_BINDING
        self.born_s = time.monotonic()
        self.is_idle = self.is_leaving = False
        self._on_bound, self._on_idle = on_bound, on_idle
        self._wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def give_up(self) -> None:
        self.is_leaving = True
        if not self._wake.done():
            self._wake.set_result(None)

    def to_wire(self) -> Any:
        raise NotImplementedError

    async def run(self) -> None:
        await asyncio.sleep(0.001)
        self.state = wire.EXECUTOR_BOUND
        self._on_bound()
        while not self.is_leaving:
            taker = self.session.take()
            self.is_idle = not taker.done()
            if self.is_idle:
                self._on_idle()
            await asyncio.wait([taker, self._wake], return_when=asyncio.FIRST_COMPLETED)
            self.is_idle = False
            if not taker.done():
                self.session.give_back(taker)
                return
            task = taker.result()
            if task is None:
                return
            self.session.move(task, wire.TASK_RUNNING)
            await asyncio.sleep(float(task.input or b"0"))
            self.session.move(task, wire.TASK_SUCCEED)


class Node:
    """A scheduler of scripted executors that watches that the node is never oversubscribed."""

    def __init__(self, cores: int) -> None:
        self.state = State()
        self.state.register("app", wire.types.ApplicationSpec(shim=0))
        self.scheduler = Scheduler(self.state, _cores(cores), ScriptedExecutor)
        self._number = 0

    def open(self, calls: int, seconds: float = 0.005, **fields: Any) -> SessionRecord:
        self._number += 1
        fields.setdefault("batch_size", 1)
        resreq = wire.types.ResourceRequirement(cpu=1, memory=MEMORY)
        spec = wire.types.SessionSpec(application="app", resreq=resreq, **fields)
        session = self.state.create_session(str(self._number), spec)
        for _ in range(calls):
            session.submit(str(seconds).encode())
        self.scheduler.kick()
        return session

    def gang(self, size: int, calls: int, seconds: float = 0.005) -> SessionRecord:
        return self.open(calls, seconds, min_instances=size, max_instances=size, batch_size=size)

    def held(self, session: SessionRecord) -> int:
        return sum(executor.session is session for executor in self.scheduler.executors)

    async def finish(self, session: SessionRecord, calls: int) -> None:
        while session.counts[wire.TASK_SUCCEED] < calls:
            assert self.scheduler.free().cpu >= 0
            if session.spec.min_instances:
                assert self.held(session) in (0, session.spec.min_instances)
            await asyncio.sleep(0.002)
        self.state.close_session(session.id)
        self.scheduler.kick()


def on_node(cores: int, work: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(cores)
        try:
            await asyncio.wait_for(work(node), 60)
        finally:
            await node.scheduler.stop()

    asyncio.run(run())


def test_32_gangs_all_finish() -> None:
    async def run(node: Node) -> None:
        rng = random.Random(3)
        gangs = [node.gang(size, 2 * size) for size in (rng.randint(1, 8) for _ in range(32))]
        await asyncio.gather(*(node.finish(gang, 2 * gang.spec.min_instances) for gang in gangs))

    on_node(8, run)


def test_two_gangs_of_two_on_three_cores_take_turns() -> None:
    async def run(node: Node) -> None:
        first, second = node.gang(2, 40), node.gang(2, 40)
        await asyncio.sleep(0.05)
        assert [node.held(first), node.held(second)] == [2, 0]
        assert "waits for room for 2 x" in node.scheduler.waiting()[second.id]
        await asyncio.gather(node.finish(first, 40), node.finish(second, 40))
        assert node.scheduler.waiting() == {}

    on_node(3, run)


@pytest.mark.parametrize("seconds", [0.01, 0.3])
def test_a_large_gang_gets_its_turn_in_a_stream_of_small_sessions(seconds: float) -> None:
    async def run(node: Node) -> None:
        done = asyncio.Event()

        async def stream(place: int) -> None:
            await asyncio.sleep(place * seconds / 4)  # never all free at once
            while not done.is_set():
                await node.finish(node.open(1, seconds, max_instances=1), 1)

        streams = [asyncio.create_task(stream(place)) for place in range(6)]
        await asyncio.sleep(3 * seconds)
        await node.finish(node.gang(4, 4), 4)
        done.set()
        await asyncio.gather(*streams)

    on_node(4, run)


def test_calls_that_wait_for_calls_of_a_younger_session_end() -> None:
    async def run(node: Node) -> None:
        outer = node.open(1, 0, min_instances=1, max_instances=1)
        await asyncio.sleep(0.05)
        gang = node.gang(4, 4)  # waits for the outer session, whose call waits for the inner one
        await asyncio.sleep(0.05)
        await node.finish(node.open(1, max_instances=1), 1)
        await node.finish(outer, 1)
        await node.finish(gang, 4)

    on_node(4, run)


def test_growth_up_to_the_maximum() -> None:
    async def run(node: Node) -> None:
        session = node.open(0, min_instances=1, max_instances=4)
        await asyncio.sleep(0.05)
        assert node.held(session) == 1
        for _ in range(14):
            session.submit(b"0.2")
        node.scheduler.kick()
        largest = 0
        while session.counts[wire.TASK_SUCCEED] < 14:
            largest = max(largest, node.held(session))
            await asyncio.sleep(0.01)
        assert largest == 4

    on_node(16, run)


def test_two_sessions_share() -> None:
    async def run(node: Node) -> None:
        first = node.open(400)
        while node.held(first) < 4:
            await asyncio.sleep(0.01)
        second = node.open(400)
        while (node.held(first), node.held(second)) != (2, 2):
            await asyncio.sleep(0.01)
        assert first.counts[wire.TASK_SUCCEED] < 400

    on_node(4, run)
