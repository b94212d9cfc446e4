"""One event loop of this process, on a thread of its own, where everything waits that waits for a cluster.

A call that waits costs no thread there, so that hundreds of outstanding calls do not delay each other's news.
Blocking work (the object cache's client) goes to a small pool of threads.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from seeker.errors import DeadlineError

T = TypeVar("T")

_NUM_BLOCKING = 16
_STOP_DEADLINE_S = 2.0
_LONG_S = 365 * 24 * 3600.0  # never without a timeout: Arrow's signal handling makes an endless wait deaf to Ctrl-C

_log = logging.getLogger("seeker.cluster")


class Loop:
    """Spawn and wait from any thread but its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = concurrent.futures.ThreadPoolExecutor(_NUM_BLOCKING, thread_name_prefix="seeker-io")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="seeker-loop", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def soon(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run a plain function on the loop."""
        self._loop.call_soon_threadsafe(work, *arguments)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run to its end in the background; from any thread. What it raises is logged."""
        self._loop.call_soon_threadsafe(self.task, work)

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that is kept until it is done; on the loop's thread only."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def wait(self, work: Coroutine[Any, Any, T], deadline_s: float = _LONG_S) -> T:
        """The result of `work`, which is cancelled when the wait is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout=deadline_s)
        except BaseException:
            future.cancel()
            raise

    async def blocking(self, work: Callable[..., T], *arguments: Any, deadline_s: float = _LONG_S) -> T:
        """On a thread of the pool; past the deadline it is left to itself there."""
        running = self._loop.run_in_executor(self._pool, work, *arguments)
        try:
            return await asyncio.wait_for(running, deadline_s)
        except TimeoutError:
            raise DeadlineError(f"{getattr(work, '__name__', work)} did not return within {deadline_s:g} s") from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("background work ended with %r", error)

    def _stop(self) -> None:
        """Before the interpreter is taken down under the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_DEADLINE_S)


@cache
def shared_loop() -> Loop:
    """The one of this process: gRPC's asyncio channels do not share a process with a second loop in peace."""
    return Loop()
