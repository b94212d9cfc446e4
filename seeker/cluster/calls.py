"""Calls: their outcome, waiting for them, and the errors they end with."""

from __future__ import annotations

import itertools
import math
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, as_completed
from dataclasses import dataclass
from typing import Any

from seeker.errors import CallError, ClusterError, ConfigError, DeadlineError, PayloadError

INLINE_BYTES = 128 * 1024
SLACK_S = 30.0  # for the news of a call that has ended by its own deadline

_EXECUTOR_IN_TEXT = re.compile(r"executor <([^>]+)>")


class LostError(ClusterError):
    """An executor or its service process was lost in the call; an idempotent call is done again.

    `executor` is empty where the cluster does not say which one it was; `transport`: the executor's own process.
    """

    def __init__(self, message: str, executor: str = "", transport: bool = False) -> None:
        self.executor = executor
        self.transport = transport
        super().__init__(message)

    @classmethod
    def of_transport(cls, message: str) -> LostError:
        """From the cluster's text, which names the executor on the local cluster only."""
        named = _EXECUTOR_IN_TEXT.search(message)
        return cls(message, named[1] if named else "", transport=True)


class CancelledCallError(ClusterError):
    """The call was cancelled: by its caller, or because its service was closed while it ran."""


class BarrierError(ClusterError):
    """The ranks of a gang did not meet for a call: one came twice, or not at all."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a call asks of the starter. A method that begins with "@" is the starter's own.

    Example: ``Request("rollout", pickle.dumps((([1, 2],), {})), idempotent=True)``.
    """

    method: str
    arguments: bytes
    idempotent: bool = False
    generation: str | None = None  # of the gang that the call is for
    barrier: str | None = None  # key of the object where the gang's ranks meet


class Call:
    """One method call. `num_retries` counts how often it was done again after its executor was lost."""

    def __init__(self, label: str, deadline_s: float, on_cancel: Callable[[Call], object] | None = None) -> None:
        if not math.isfinite(deadline_s):
            raise ConfigError(f"{label}: deadline_s is {deadline_s}, expected a number of seconds: every call ends")
        self.label = label
        self.deadline_s = deadline_s
        self.num_retries = 0
        self.executor = ""  # where it was done
        self.rank = -1  # which member of a gang did it
        self.set_up_count = 0  # which process of that executor did it
        self.future: Future[Any] = Future()
        self._on_cancel = on_cancel

    def __repr__(self) -> str:
        return f"<Call {self.label} {'done' if self.done() else 'outstanding'}>"

    def done(self) -> bool:
        return self.future.done()

    def result(self, deadline_s: float | None = None) -> Any:
        """The value, or the typed error. Waits at most `deadline_s`; the call ends by its own deadline in any case."""
        wait_s = self.deadline_s + SLACK_S if deadline_s is None else deadline_s
        try:  # never without a timeout: Arrow's signal handling makes an endless wait deaf to Ctrl-C
            return self.future.result(timeout=wait_s)
        except TimeoutError:
            if self.future.done():
                raise
            raise DeadlineError(f"{self.label} is not done after a wait of {wait_s:g} s") from None

    def error(self) -> BaseException | None:
        """What a call that is done ended with; None for a value."""
        return self.future.exception(timeout=0)

    def cancel(self) -> None:
        """End it with `CancelledCallError` now; the process that runs it is killed within a second or so."""
        if self._on_cancel is not None and not self.done():
            self._on_cancel(self)

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """The first outcome counts."""
        try:
            if error is None:
                self.future.set_result(value)
            else:
                self.future.set_exception(error)
        except InvalidStateError:
            return


def gather(calls: Iterable[Call], deadline_s: float) -> Iterator[Call]:
    """Calls as they complete. Past the deadline `DeadlineError` names what is outstanding."""
    outstanding = {call.future: call for call in calls}
    total = len(outstanding)
    try:
        for future in as_completed(list(outstanding), timeout=deadline_s):
            yield outstanding.pop(future)
    except TimeoutError:
        some = ", ".join(call.label for call in itertools.islice(outstanding.values(), 3))
        text = f"{len(outstanding)} of {total} calls not done within {deadline_s:g} s: {some}"
        raise DeadlineError(text) from None


def pickled_arguments(label: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        arguments = pickle.dumps((args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # a class may raise anything there
        text = f"its arguments cannot be pickled: {type(error).__name__}: {error}"
        raise PayloadError(f"{label}: {text}; pass plain data, or an object's handle") from error
    if len(arguments) > INLINE_BYTES:
        raise PayloadError(
            f"{label}: {len(arguments)} bytes of pickled arguments, above {INLINE_BYTES}; "
            "put large data as an object and pass its handle"
        )
    return arguments


def value_of(reply: dict[str, Any], label: str) -> Any:
    """The value in a starter's reply, or the typed error that it stands for."""
    kind = reply["kind"]
    if kind == "value":
        return _unpickled(reply, label)
    text = f"{label}: {_sentence(reply)}{_place(reply)}"
    if kind in ("raised", "setup"):
        raise CallError(text, reply.get("type", ""), reply.get("traceback", ""))
    if kind in ("died", "lost", "starter"):
        raise LostError(text, reply.get("executor", ""))
    errors: dict[str, type[ClusterError]] = {
        "deadline": DeadlineError,
        "payload": PayloadError,
        "cancelled": CancelledCallError,
        "barrier": BarrierError,
    }
    raise errors.get(kind, ClusterError)(text)


def _unpickled(reply: dict[str, Any], label: str) -> Any:
    try:
        return pickle.loads(reply["value"])
    except Exception as error:  # of a class that is not here, most likely
        text = f"{label}: its value cannot be unpickled here: {type(error).__name__}: {error}{_place(reply)}"
        raise CallError(text, type(error).__qualname__, traceback.format_exc()) from error


def _sentence(reply: dict[str, Any]) -> str:
    return ": ".join(filter(None, (reply.get("type"), reply["message"])))


def _place(reply: dict[str, Any]) -> str:
    """Executor, traceback and log tail, each where there is one."""
    rank = f", rank {reply['rank']}" if reply.get("rank", -1) >= 0 else ""
    parts = [f" [executor {reply['executor']}{rank}]" if reply.get("executor") else ""]
    for title, key in (("remote traceback", "traceback"), ("end of the service's log", "log")):
        if reply.get(key, "").strip():
            parts.append(f"\n--- {title} ---\n{reply[key].strip()}")
    return "".join(parts)
