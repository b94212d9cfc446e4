"""A call on its executor: what it asks, how long it may take, and why it may have to end early."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Any, cast

MAX_SECONDS = 1e6  # eleven days; the kernel's waits take no more than 24


class Failure(Exception):
    """Ends a call: its kind, its message and `more` are the reply.

    `kills`: the service process goes with the call, as it may be in the middle of it.
    """

    def __init__(self, kind: str, message: str, kills: bool = True, more: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self.kills = kills
        self.more = more or {}
        super().__init__(message)


class Stranger(Failure):
    """A call that this executor cannot serve: it is parked, and the driver sends another in its place."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail, kills=False)


class Unbegun(Failure):
    """The service process had ended before it read the call: another can do it."""


@dataclass(frozen=True)
class Request:
    """What the driver sent.

    Example: ``Request("update", b"...", 60.0, None, "trainer.update#7-1f", "g-3", "app/run-7-trainer/barrier-9")``.
    """

    method: str
    arguments: bytes  # pickled (args, kwargs)
    seconds: float
    end: float | None  # the same moment on the node's clock, where the driver's clock is the node's
    call: str
    generation: str | None  # of the gang that the call is for
    barrier: str | None  # key of the object where the members of the gang meet before the method runs


def parse_request(raw: Any) -> Request:
    """Whatever came in as a `Request`; `Failure` names the field that is wrong."""
    if not isinstance(raw, dict):
        raise _wrong("a dict of a call's fields", raw)
    raw = cast("dict[Any, Any]", raw)
    return Request(
        method=_text(raw, "method"),
        arguments=bytes(_field(raw, "arguments", (bytes, bytearray), b"")),
        seconds=min(_number(raw, "seconds"), MAX_SECONDS),
        end=None if raw.get("end") is None else _number(raw, "end"),
        call=_text(raw, "call", ""),
        generation=_optional_text(raw, "generation"),
        barrier=_optional_text(raw, "barrier"),
    )


def _wrong(expected: str, found: Any) -> Failure:
    return Failure("starter", f"this executor expected {expected}, found {type(found).__name__}", kills=False)


def _field(raw: dict[Any, Any], name: str, types: tuple[type, ...], default: Any) -> Any:
    value = raw.get(name, default)
    if not isinstance(value, types) or isinstance(value, bool):
        raise _wrong(f"a request whose {name!r} is {' or '.join(each.__name__ for each in types)}", value)
    return value


def _text(raw: dict[Any, Any], name: str, default: str | None = None) -> str:
    return _field(raw, name, (str,), default)


def _optional_text(raw: dict[Any, Any], name: str) -> str | None:
    return None if raw.get(name) is None else _text(raw, name)


def _number(raw: dict[Any, Any], name: str) -> float:
    value = _field(raw, name, (int, float), None)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Failure("starter", f"this executor expected a request whose {name!r} is finite, found {number}", False)
    return number


class RunningCall:
    """One call's time. Waits end at its deadline, or at once when the watch stops it."""

    def __init__(self, request: Request, what: str) -> None:
        seconds = request.seconds
        if request.end is not None:  # the driver's clock is ours: what the call waited in the queue counts
            seconds = min(seconds, request.end - time.time())
        self.request = request
        self.what = what  # "service.method"
        self.end = time.monotonic() + seconds
        self.rank: int | None = None
        self._stopped = threading.Event()
        self._reason: Failure | None = None

    def left(self) -> float:
        return self.end - time.monotonic()

    def stop(self, reason: Failure) -> None:
        """Called by the watch, from its thread: the call ends with `reason`."""
        if self._reason is None:
            self._reason = reason
            self._stopped.set()

    @property
    def reason(self) -> Failure | None:
        return self._reason

    def check(self, doing: str, since: str = "") -> None:
        """Raise the reason to stop, or the deadline's failure, where there is one."""
        if self._reason is not None:
            raise Failure(self._reason.kind, f"{doing} {self._reason}", self._reason.kills)
        if self.left() <= 0:
            raise Failure("deadline", f"{doing} did not finish within its deadline and was killed{since}")

    def pause(self, seconds: float, doing: str, since: str = "") -> None:
        """Sleep, but not past the deadline or the reason to stop, which raise."""
        self.check(doing, since)
        self._stopped.wait(max(0.0, min(seconds, self.left())))
        self.check(doing, since)
