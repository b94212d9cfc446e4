"""The one thread that looks whether a driver still wants what runs here: its cancel object and its lease.

A cache that does not answer stops nothing: then the deadline of the call decides.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from .running import Failure, Request, RunningCall
from .store import AwayError, MissingError, Store

BUSY_LOOK_S = 0.5
IDLE_LOOK_S = 1.0
_READ_S = 2.0
_LEASE_LOOKS = 6  # in the time that a lease lasts

_log = logging.getLogger("seeker.starter")


class Lease:
    """Decides when a lease has lapsed. Pure.

    Example: lasting 30 s, seen at count 7 at 0, 10, 20 and 31 s: lapsed. Had the cache been away between 10 and
    20 s, those would not count: lapsed at 41 s. Seen at 8: renewed.
    """

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._count: object = None
        self._stale_s = 0.0
        self._seen: float | None = None  # None: nothing is known about the time before now

    def observe(self, count: object, now: float) -> bool:
        """`count` as read, None where the object is missing. True: lapsed."""
        if count is not None and count != self._count:
            self._count, self._stale_s = count, 0.0
        elif self._seen is not None:  # a gap in our own looks proves nothing about the driver
            self._stale_s += min(now - self._seen, self._lasts_s / 2)
        self._seen = now
        return self.has_lapsed

    def look_failed(self) -> None:
        self._seen = None

    @property
    def has_lapsed(self) -> bool:
        return self._stale_s >= self._lasts_s


def cancelled_text(cancel: dict[str, Any], call: str | None, generation: str | None) -> str | None:
    """Why the cancel object ends a call or an idle process, if it does.

    Example: ``cancelled_text({"all": False, "calls": ["f#7"], "generations": []}, "f#7", None)`` is "was cancelled".
    """
    if cancel.get("all"):
        return "was cancelled: its service is closed"
    if call is not None and call in cancel.get("calls", ()):
        return "was cancelled"
    if generation is not None and generation in cancel.get("generations", ()):
        return f"was cancelled: generation {generation} of its gang has ended"
    return None


class Watch:
    """Looks while a call runs, and more seldom when none does."""

    def __init__(
        self,
        store: Store,
        cancel_key: str,
        lease_key: str | None,
        lease_s: float,
        on_stop: Callable[[], None],
        on_idle: Callable[[str], None],
        on_tick: Callable[[], None],
    ) -> None:
        """`on_stop` ends the process behind the running call, `on_idle` one that no call uses."""
        self.call: RunningCall | None = None
        self.generation: str | None = None  # that the process belongs to
        self._store = store
        self._cancel_key, self._lease_key = cancel_key, lease_key
        self._lease = Lease(lease_s)
        self._lease_s = lease_s
        self._on_stop, self._on_idle, self._on_tick = on_stop, on_idle, on_tick
        self._cancel: dict[str, Any] = {}
        self._cancel_version = 0
        self._cancel_at = self._lease_at = float("-inf")
        self._lock = threading.Lock()  # one look at a time
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="seeker-watch", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._ended.set()

    def refusal(self, request: Request) -> Failure | None:
        """Why a call is not even begun, by what is known already; a lapsed lease gets one more look."""
        if self._lease.has_lapsed:
            self._look_at_lease()
        return self._reason(request.call or None, request.generation)

    def look_again(self) -> str | None:
        """Look at the cancel object now; why the generation that the process belongs to has ended, if it has."""
        self._look_at_cancel()
        return cancelled_text(self._cancel, None, self.generation)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.wait(BUSY_LOOK_S):
            try:
                self._look(time.monotonic())
                self._on_tick()
            except Exception:  # the thread must outlive any object that is not what it should be
                _log.exception("the watch over cancel object and lease failed once")

    def _look(self, now: float) -> None:
        call = self.call
        if now - self._lease_at >= self._lease_s / _LEASE_LOOKS:
            self._look_at_lease()
        if call is not None or (now - self._cancel_at >= IDLE_LOOK_S):
            self._look_at_cancel()
        if call is not None:
            self._stop(call)
        elif (reason := self._reason(None, self.generation)) is not None:
            self._on_idle(str(reason))

    def _stop(self, call: RunningCall) -> None:
        reason = self._reason(call.request.call or None, call.request.generation)
        if reason is not None and self.call is call:
            call.stop(reason)
            self._on_stop()

    def _reason(self, call: str | None, generation: str | None) -> Failure | None:
        if self._lease.has_lapsed:
            return Failure("lease", f"was ended: its driver's lease was not renewed for {self._lease_s:g} s")
        text = cancelled_text(self._cancel, call, generation)
        return None if text is None else Failure("cancelled", text)

    def _look_at_cancel(self) -> None:
        with self._lock:
            self._cancel_at = time.monotonic()
            try:
                parts = self._store.read(self._cancel_key, self._cancel_version, _READ_S)
            except (MissingError, AwayError):  # not needed so far, or the cache is away
                return
            if parts.base is not None:
                self._cancel_version = parts.version  # one that is damaged is complained about once
                self._cancel = _loaded(parts.base)

    def _look_at_lease(self) -> None:
        if self._lease_key is None:
            return
        with self._lock:
            self._lease_at = time.monotonic()
            try:
                base = self._store.read(self._lease_key, 0, _READ_S).base
            except MissingError:
                self._lease.observe(None, time.monotonic())
            except AwayError:
                self._lease.look_failed()
            else:
                self._lease.observe(_loaded(base).get("count"), time.monotonic())


def _loaded(base: Any) -> dict[str, Any]:
    found = pickle.loads(base)
    if not isinstance(found, dict):
        raise TypeError(f"a cancel object or lease holds a {type(found).__name__}, expected a dict")
    return cast("dict[str, Any]", found)
