"""Processes that wait for work as trainer ranks do: each runs the functions that it is told to.

A function is named as ``module:function``, or as ``function`` when it is of this module.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from seeker.engines.joined_ranks import JoinedRanks, join_ranks
from seeker.engines.meeting import Rendezvous

_ANSWER_S = 120.0
_channels: list[Connection] = []  # in a process: the one to the test


@dataclass(frozen=True)
class Place:
    """Which rank of how many, and where they meet."""

    rank: int
    world: int
    rendezvous: Rendezvous

    def join(self) -> JoinedRanks:
        names = [f"executor e{rank}" for rank in range(self.world)]
        return join_ranks(self.rank, names, self.rendezvous, torch.device("cpu"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def rendezvous(generation: str, port: int | None = None, *, join_s: float = 60.0, sum_s: float = 30.0) -> Rendezvous:
    return Rendezvous("127.0.0.1", port or free_port(), generation, join_s, sum_s)


@dataclass
class Processes:
    """`size` processes, started when first needed and again when they were killed."""

    size: int
    _running: dict[int, tuple[Any, Connection]] = field(default_factory=dict)

    def begin(self, function: str, world: int, meeting: Rendezvous, *args: Any) -> None:
        """Let the first `world` processes call `function(place, *args)`."""
        self.start(world)
        for rank in range(world):
            self.send(rank, function, Place(rank, world, meeting), *args)

    def start(self, world: int) -> None:
        for rank in range(world):
            self._process(rank)

    def send(self, rank: int, function: str, *args: Any) -> None:
        self._process(rank)[1].send((function, args))

    def answer(self, rank: int) -> Any:
        """What the function returned; an exception as (type name, text)."""
        _, channel = self._running[rank]
        assert channel.poll(_ANSWER_S), f"rank {rank} has not answered within {_ANSWER_S:g} s"
        return channel.recv()

    def call(self, function: str, world: int, meeting: Rendezvous, *args: Any) -> list[Any]:
        self.begin(function, world, meeting, *args)
        return [self.answer(rank) for rank in range(world)]

    def signal(self, rank: int, number: int) -> None:
        os.kill(self._running[rank][0].pid, number)

    def forget(self, rank: int) -> None:
        """End a process; the next work for this rank gets a new one."""
        process, channel = self._running.pop(rank)
        process.kill()
        process.join()
        channel.close()

    def close(self) -> None:
        for rank in list(self._running):
            self.forget(rank)

    def _process(self, rank: int) -> tuple[Any, Connection]:
        if rank not in self._running:
            ours, theirs = multiprocessing.Pipe()
            spawn = multiprocessing.get_context("spawn")
            process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._running[rank] = process, ours
        return self._running[rank]


def _serve(channel: Connection) -> None:
    torch.set_num_threads(1)
    _channels.append(channel)
    while True:
        try:
            function, args = channel.recv()
        except EOFError:
            return
        try:
            module, _, name = function.rpartition(":")
            channel.send(getattr(importlib.import_module(module or __name__), name)(*args))
        except Exception as error:
            channel.send((type(error).__name__, str(error)))


# ---- what the processes do


def values(place: Place, sizes: Sequence[int]) -> list[list[float]]:
    """Sums of (rank + 1) over all ranks, begun together."""
    ranks = place.join()
    tensors = [torch.full((size,), float(place.rank + 1)) for size in sizes]
    ranks.sum_(tensors)
    ranks.leave("done")
    return [tensor.unique().tolist() for tensor in tensors]


def sum_for_ever(place: Place, size: int) -> tuple[str, str, float]:
    """Says "joined", then sums until another rank is lost: the error, and the seconds that the failing sum took."""
    ranks = place.join()
    tensor = torch.zeros(size)
    ranks.sum_([tensor])
    _channels[0].send("joined")
    while True:
        started = time.monotonic()
        try:
            ranks.sum_([tensor])
        except Exception as error:
            return type(error).__name__, str(error), time.monotonic() - started


def gradients(place: Place, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    from tests.learning.builders import rank_gradients

    ranks = place.join()
    found = [rank_gradients(ranks, **case) for case in cases]
    ranks.leave("done")
    return found


def updates(place: Place, steps: int) -> tuple[dict[str, bytes], list[dict[str, float]]]:
    """Some updates: the trainer's whole state and the metrics."""
    from tests.learning.builders import make_batch, make_llama_trainer, state_bytes

    ranks = place.join()
    trainer = make_llama_trainer(ranks=ranks)
    metrics = [trainer.update(make_batch(7, step=step, seed=step)).metrics for step in range(steps)]
    ranks.leave("done")
    return state_bytes(trainer), metrics


class Dying:
    """Ranks of which this one is lost when it begins its `at`-th sum."""

    def __init__(self, ranks: JoinedRanks, at: int) -> None:
        self._ranks = ranks
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def begin_sum_(self, tensor: torch.Tensor) -> Any:
        self._at -= 1
        if self._at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._ranks.begin_sum_(tensor)


def update_beside_a_death(place: Place, victim: int, again: Rendezvous) -> dict[str, Any]:
    """An update in which `victim` dies; then the others join again and do it without it."""
    from tests.learning.builders import make_batch, make_llama_trainer, state_bytes

    ranks: Any = place.join()
    trainer = make_llama_trainer(ranks=Dying(ranks, 3) if place.rank == victim else ranks)
    before = state_bytes(trainer)
    try:
        trainer.update(make_batch(7))
        error = ""
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    untouched = state_bytes(trainer) == before and trainer.version == 0
    idle = all(not bool(gradient.any()) for gradient in trainer._masters.gradients)
    survivors = [rank for rank in range(place.world) if rank != victim]
    place = Place(survivors.index(place.rank), len(survivors), again)
    trainer.ranks = place.join()
    trainer.update(make_batch(7))
    trainer.ranks.leave("done")
    return {"error": error, "untouched": untouched, "idle": idle, "state": state_bytes(trainer)}


def update_that_fails(place: Place, victim: int) -> str:
    """An update in which `victim` raises in its pass."""
    from tests.learning.builders import make_batch, make_llama_trainer

    trainer = make_llama_trainer(ranks=place.join())
    if place.rank == victim:
        trainer.model.base_model.norm.register_forward_hook(_raise)
    try:
        trainer.update(make_batch(7))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _raise(*_: Any) -> None:
    raise MemoryError("no memory left for the pass")
