"""A service as its caller sees it: one session, its outstanding calls, and the watch over its executors."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from typing import Any

from seeker.cluster import wire
from seeker.cluster.bind_watch import BindWatch
from seeker.cluster.calls import Call, CancelledCallError, LostError, value_of
from seeker.cluster.embedded import EmbeddedCluster
from seeker.cluster.frontend import FrontendClient, RefusedError
from seeker.cluster.objects import FlightObjects, ObjectHandle
from seeker.cluster.resources import resources_of
from seeker.cluster.session import CANCEL_NAME, SessionPlan, pickle_request, unpickle_reply
from seeker.cluster.untyped import bson
from seeker.errors import ClusterError, DeadlineError, PayloadError

_log = logging.getLogger("seeker.cluster")

INLINE_BYTES = 128 * 1024
MAX_RETRIES = 2  # of an idempotent call whose executor was lost
GRACE_S = 3.0  # after a call's deadline: the starter's own report of it is on its way
WATCH_SLICE_S = 15.0
BROKEN_WATCH_PAUSE_S = 0.2
EVENTS_POLL_S = 0.5
CLOSE_DEADLINE_S = 10.0


class Service:
    """Calls go to any free executor of the session, one at a time each."""

    def __init__(
        self,
        name: str,
        plan: SessionPlan,
        frontend: FrontendClient,
        objects: FlightObjects,
        *,
        embedded: EmbeddedCluster | None,
        on_close: Callable[[Service], None],
    ) -> None:
        self.name = name
        self.plan = plan
        self.prefix = plan.prefix
        self._frontend = frontend
        self._objects = objects
        self._embedded = embedded  # its clock is ours, and its end is seen at once
        self._on_close = on_close
        self._outstanding: dict[Call, Any] = {}  # the watch stream of each, to cancel it
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._calling = threading.Event()
        self._num_calls = 0
        threading.Thread(target=self._watch_events, name=f"seeker-{name}-events", daemon=True).start()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, *args: Any, deadline_s: float, idempotent: bool = False, **kwargs: Any) -> Call:
        """Submit one call; it answers or fails within `deadline_s` (waiting for a free executor included)."""
        if self._closed.is_set():
            raise ClusterError(f"service {self.name} is closed")
        arguments = pickle.dumps((args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
        if len(arguments) > INLINE_BYTES:
            raise PayloadError(
                f"{self.name}.{method}: {len(arguments)} bytes of pickled arguments, above {INLINE_BYTES}; "
                "put large data as an object and pass its handle"
            )
        with self._lock:
            self._num_calls += 1
            call = Call(f"{self.name}.{method}#{self._num_calls}", deadline_s)
            self._outstanding[call] = None
        self._calling.set()
        run = threading.Thread(
            target=self._run, args=(call, method, arguments, idempotent), name=f"seeker-{call.label}", daemon=True
        )
        run.start()
        return call

    # -- one call, on its own thread: no call's news waits for another's -------------------------------------------

    def _run(self, call: Call, method: str, arguments: bytes, idempotent: bool) -> None:
        end = time.monotonic() + call.deadline_s
        wall_end = time.time() + call.deadline_s if self._embedded is not None else None
        try:
            while True:
                try:
                    seconds = max(0.0, end - time.monotonic())
                    request = {"method": method, "arguments": arguments, "seconds": seconds, "end": wall_end}
                    self._settle(call, value=self._attempt(call, pickle_request(request), end + GRACE_S))
                    return
                except LostError as error:
                    if not idempotent or call.num_retries >= MAX_RETRIES or self._closed.is_set():
                        raise
                    call.num_retries += 1
                    _log.warning("%s is done again (%d of %d): %s", call.label, call.num_retries, MAX_RETRIES, error)
        except BaseException as error:
            self._settle(call, error=error)

    def _attempt(self, call: Call, request: bytes, end: float) -> Any:
        spec = wire.types.TaskSpec(session_id=self.plan.id, input=request)
        created = self._frontend.request("CreateTask", wire.frontend.CreateTaskRequest(task=spec))
        task = self._await_end(call, created.metadata.id, end)
        state = task.status.state
        if state == wire.TASK_SUCCEED:
            return value_of(self._take_reply(call, task), call.label)
        if state == wire.TASK_CANCELLED:
            raise CancelledCallError(f"{call.label} was cancelled before it started: its session was closed")
        raise LostError(f"{call.label}: {self._failure_text(task)}")

    def _await_end(self, call: Call, task_id: str, end: float) -> Any:
        """The call in a terminal state: watched in slices, with a look at the call itself after each.

        A stream that breaks, ends early or falls silent (the session manager restarted, a connection lost without a
        word) so costs one slice at most.
        """
        while (left := end - time.monotonic()) > 0 and not call.done():
            task = self._watch(call, task_id, min(left, WATCH_SLICE_S)) or self._get_task(task_id, end)
            if task is not None and task.status.state in wire.TASK_TERMINAL:
                return task
        raise DeadlineError(f"{call.label} has no result within its deadline of {call.deadline_s:g} s{self._state()}")

    def _watch(self, call: Call, task_id: str, seconds: float) -> Any:
        stream = self._frontend.watch(self.plan.id, task_id, seconds)
        with self._lock:
            self._outstanding[call] = stream
        try:
            for task in self._frontend.states(stream):
                if task.status.state in wire.TASK_TERMINAL:
                    return task
        except DeadlineError:
            return None
        except RefusedError as error:
            _log.info("%s: its watch broke: %s", call.label, error)
        time.sleep(BROKEN_WATCH_PAUSE_S)
        return None

    def _get_task(self, task_id: str, end: float) -> Any:
        """None while the session manager is away; a task that it does not know is lost."""
        request = wire.frontend.GetTaskRequest(task_id=task_id, session_id=self.plan.id)
        try:
            return self._frontend.request("GetTask", request, max(0.01, min(5.0, end - time.monotonic())))
        except DeadlineError:
            return None
        except RefusedError as error:
            if error.status == "UNAVAILABLE":
                self._check_alive()
                return None
            raise LostError(f"the cluster lost the call: {error}") from error

    def _check_alive(self) -> None:
        if self._embedded is not None and not self._embedded.is_alive():
            raise ClusterError(f"the embedded cluster has ended: {self._embedded.end_text()}")

    def _take_reply(self, call: Call, task: Any) -> dict[str, Any]:
        handle = ObjectHandle(**bson.decode(task.spec.output))
        reply = unpickle_reply(self._objects.get(handle))
        self._objects.delete(handle.key)  # results pile up otherwise
        call.executor = reply.get("executor", "")
        call.set_up_count = reply.get("set_up_count", 0)
        return reply

    def _failure_text(self, task: Any) -> str:
        """The engine keeps the text in events that its watch streams do not carry."""
        if not task.status.events:
            task = self._get_task(task.metadata.id, time.monotonic() + 5.0) or task
        texts: list[str] = [event.message for event in task.status.events if event.code == wire.TASK_FAILED]
        return texts[0] if texts else "failed without a reason"

    def _state(self) -> str:
        """What the session and the cluster look like, for the text of a deadline error."""
        try:
            status = self._session().status
            executors = self._frontend.request("ListExecutor", wire.frontend.ListExecutorRequest(), 5.0).executors
            nodes = self._frontend.request("ListNodes", wire.frontend.ListNodesRequest(), 5.0).nodes
        except ClusterError as error:
            return f" (and the cluster does not answer: {error})"
        num_own = sum(each.status.session_id == self.plan.id for each in executors)
        free = "; ".join(str(resources_of(node.status.allocatable)) for node in nodes)
        events = f"; {status.events[-1].message}" if status.events else ""
        return (
            f" (session: {status.pending} calls pending, {status.running} running, {num_own} of "
            f"{self.plan.executors} executors of {self.plan.resources} there, free: {free}{events})"
        )

    def _settle(self, call: Call, value: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            self._outstanding.pop(call, None)
            if not self._outstanding:
                self._calling.clear()
        try:
            if error is None:
                call.future.set_result(value)
            else:
                call.future.set_exception(error)
        except InvalidStateError:
            return  # it was failed meanwhile, by a bind failure or by closing

    # -- bind failures never reach a call: poll for them -----------------------------------------------------------

    def _session(self) -> Any:
        return self._frontend.request("GetSession", wire.frontend.GetSessionRequest(session_id=self.plan.id), 5.0)

    def _watch_events(self) -> None:
        watch = BindWatch()
        while not self._closed.is_set():
            self._calling.wait()
            if self._closed.wait(EVENTS_POLL_S):
                return
            try:
                text = watch.observe(self._session().status, time.monotonic())
            except ClusterError as error:
                _log.info("service %s: cannot look at its session: %s", self.name, error)
                continue
            if text is not None:
                self._fail_all(ClusterError(f"service {self.name}: no executor could be started: {text}"))

    def _fail_all(self, error: ClusterError) -> None:
        with self._lock:
            streams = dict(self._outstanding)
        for call, stream in streams.items():
            self._settle(call, error=error)
            if stream is not None:
                stream.cancel()

    # -- closing ---------------------------------------------------------------------------------------------------

    def close(self, patient: bool = True) -> None:
        """Cancel what runs, close the session, delete its objects. `patient=False`: the cluster is ending anyway."""
        if self._closed.is_set():
            return
        self._closed.set()
        running = bool(self._outstanding)
        self._calling.set()
        try:
            if patient:
                if running:
                    cancel = {"all": True, "calls": [], "generations": []}
                    self._objects.put(self.prefix, pickle.dumps(cancel), CANCEL_NAME)
                self._close_session()
                self._objects.delete(self.prefix)
        finally:
            self._fail_all(CancelledCallError(f"service {self.name} was closed"))
            self._on_close(self)

    def _close_session(self) -> None:
        """Refused while a call runs: until the cancel object has ended it, or the session is given up."""
        request = wire.frontend.CloseSessionRequest(session_id=self.plan.id)
        end = time.monotonic() + CLOSE_DEADLINE_S
        while True:
            try:
                self._frontend.request("CloseSession", request)
                return
            except RefusedError as error:
                if error.status == "NOT_FOUND":
                    return
                if time.monotonic() > end:
                    raise ClusterError(
                        f"session {self.plan.id} of service {self.name} cannot be closed and is abandoned: {error}"
                    ) from error
            time.sleep(0.1)
