"""One session's calls on one executor, one at a time: who may be served, the process that serves, what is reported."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from . import node
from .code import find_code
from .gang import Membership, join, meet, park
from .gpus import VARIABLE, assigned_devices, release, take_devices
from .log import Log, log_path
from .process import ServiceProcess
from .processes import reap_orphans
from .running import Failure, RunningCall, Stranger, Unbegun, parse_request
from .store import MissingError, Store
from .watch import Watch

NUM_GENERATIONS = 16  # remembered, to tell a loss from a stranger

_log = logging.getLogger("seeker.starter")


class Host:
    """Serves the calls of a session. `call` answers whatever comes, and may be called from several threads."""

    def __init__(self, setup: dict[str, Any], executor: str, is_executor: bool) -> None:
        """`is_executor`: this whole process is one, so that every process below it is ours to end."""
        self._setup = setup
        self._executor = executor
        self._adopted = is_executor
        self._ca_file = os.environ.get("FLAME_CA_FILE")
        self._store = Store(setup["cache_endpoint"], self._ca_file)
        self._process: ServiceProcess | None = None
        self._num_set_up = 0
        self._members: dict[str, Membership] = {}  # by generation
        self._lock = threading.Lock()  # one call at a time
        self._watch = Watch(
            self._store,
            setup["cancel_key"],
            setup.get("lease_key"),
            float(setup.get("lease_s", 30.0)),
            on_stop=self._kill,
            on_idle=self._end_idle,
            on_tick=self._tidy,
        )

    def call(self, raw: Any) -> dict[str, Any]:
        """The reply to a request, or its failure as data."""
        try:
            request = parse_request(raw)
            if request.method == "@about":
                return self._reply({"kind": "value", "value": pickle.dumps(self._about())})
            call = RunningCall(request, f"{self._setup['name']}.{request.method}")
            with self._turn(call):
                return self._serve(call)
        except Failure as failure:
            return self._reply(_report(failure))

    def end(self, seconds: float = 10.0) -> None:
        """End the watch and the process; a call that is in the way for so long does not keep it."""
        self._watch.end()
        if self._lock.acquire(timeout=seconds):
            try:
                self._end_process()
            finally:
                self._lock.release()
        else:
            self._kill()

    # -- one call --------------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, call: RunningCall) -> Generator[None, None, None]:
        """The executor to this call alone; the wait for an earlier one counts."""
        unbegun = f"{call.what} was not begun within its deadline: executor {self._executor} had an earlier call"
        if not self._lock.acquire(timeout=max(0.0, call.left())):
            raise Failure("deadline", unbegun, kills=False)
        try:
            if call.left() <= 0:
                raise Failure("deadline", unbegun, kills=False)
            self._watch.start()
            self._watch.call = call
            yield
        finally:
            self._watch.call = None
            self._lock.release()

    def _serve(self, call: RunningCall) -> dict[str, Any]:
        try:
            refusal = self._watch.refusal(call.request)
            if refusal is not None:
                raise Failure(refusal.kind, f"{call.what} {refusal}", kills=False)
            return self._reply(self._answer(call), call)
        except BaseException as error:
            failure = error if isinstance(error, Failure) else _unforeseen(error)
            report = _report(failure)
            if failure.kills and self._process is not None:
                report.update(self._end_process())
            return self._reply(report, call)

    def _answer(self, call: RunningCall) -> dict[str, Any]:
        try:
            if call.request.method == "@join":
                return self._join(call)
            if call.request.method.startswith("@"):
                raise Failure("starter", f"this executor has no method {call.request.method!r}", kills=False)
            try:
                return self._run(call)
            except Unbegun:  # it died between two calls, so late that it looked alive
                if call.request.generation is not None:
                    raise
                self._end_process()
                return self._run(call)
        except Stranger as stranger:
            self._park(call, stranger)
            raise

    def _run(self, call: RunningCall) -> dict[str, Any]:
        member = self._member(call)
        process = self._warm_process(call)
        if member is not None and call.request.barrier is not None:
            meet(self._store, member, call, lambda: self._check_process(call, process))
        return process.run(call, None if member is None else member.to_wire())

    def _member(self, call: RunningCall) -> Membership | None:
        """This executor's place in the generation that the call is for; a stranger is no part of it."""
        generation = call.request.generation
        if generation is None:
            if call.request.barrier is not None:
                raise Failure("starter", f"{call.what}: a barrier without a generation", kills=False)
            return None
        member = self._members.get(generation)
        if member is None:
            raise Stranger("stranger", f"executor {self._executor} is no member of generation {generation}")
        call.rank = member.rank
        process = self._process
        if process is None or process.count != member.set_up_count or not process.is_alive():
            text = f"{call.what}: the process of rank {member.rank} that joined generation {generation} is gone"
            raise Failure("lost", text, kills=False)
        return member

    def _join(self, call: RunningCall) -> dict[str, Any]:
        """Become a member of the call's generation; a process of one that has ended makes room for a new one."""
        generation = call.request.generation
        if generation is None:
            raise Failure("starter", f"{call.what}: no generation is named", kills=False)
        if self._process is not None and self._watch.look_again() is not None:
            self._end_process()
        process = self._warm_process(call)
        self._watch.generation = generation
        host = socket.gethostname()
        me = {"executor": self._executor, "host": host, "pid": process.pid, "set_up_count": process.count}
        try:
            member = join(self._store, self._setup["prefix"], call, me, lambda: self._check_process(call, process))
        except MissingError as error:
            raise Failure("cancelled", f"{call.what} was cancelled: {error}") from error
        self._members[generation] = member
        for old in list(self._members)[:-NUM_GENERATIONS]:
            del self._members[old]
        call.rank = member.rank
        return {"kind": "value", "value": pickle.dumps(member.to_wire())}

    def _check_process(self, call: RunningCall, process: ServiceProcess) -> None:
        if not process.is_alive():
            call.check(call.what)
            raise Failure("died", f"{call.what}: the service process ended while it waited for the others")

    def _park(self, call: RunningCall, stranger: Stranger) -> None:
        """Ends by raising: as cancelled, or as the reason itself where that tells the driver more."""
        try:
            park(self._store, self._setup.get("parked_key"), call, self._executor, stranger)
        except Failure as failure:
            if stranger.kind == "unfit":
                raise stranger from failure
            raise Failure(failure.kind, str(failure), kills=False) from failure

    # -- the process -----------------------------------------------------------------------------------------------

    def _warm_process(self, call: RunningCall) -> ServiceProcess:
        if self._process is not None and not self._process.is_alive():  # it died between two calls: start anew
            self._end_process()
        if self._process is None:
            self._process = self._start_process(call)
        self._process.make_ready(call)
        return self._process

    def _start_process(self, call: RunningCall) -> ServiceProcess:
        wanted: dict[str, Any] = self._setup.get("resources", {})
        lack = node.misfit(wanted)
        if lack is not None:
            raise Stranger("unfit", lack)
        code = find_code(self._setup["code"], call, self._ca_file)
        gpus: dict[str, int] = {}
        try:
            num_gpus, assigned = int(wanted.get("gpu", 0)), assigned_devices(os.environ)
            if num_gpus > 0 and (assigned is None or len(assigned) > num_gpus):
                gpus = take_devices(num_gpus, node.devices(), call)
            held = list(gpus.values()) + ([] if code.descriptor is None else [code.descriptor])
            return self._new_process(code.paths, {VARIABLE: ",".join(gpus)} if gpus else {}, held)
        finally:  # the process holds them from now on
            release(gpus)
            if code.descriptor is not None:
                os.close(code.descriptor)

    def _new_process(self, paths: list[str], environment: dict[str, str], held: list[int]) -> ServiceProcess:
        self._num_set_up += 1
        name = f"{self._setup['name']}-{self._executor[:8]}.log"
        log = Log(log_path(name, self._setup.get("log_dir")))
        setup = {**self._setup, "executor": self._executor, "set_up_count": self._num_set_up}
        return ServiceProcess(setup, paths, environment, held, log, self._adopted)

    def _end_process(self) -> dict[str, Any]:
        """The report of its end."""
        process, self._process = self._process, None
        self._watch.generation = None
        return {} if process is None else process.end()

    # -- on the watch's thread -------------------------------------------------------------------------------------

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def _end_idle(self, reason: str) -> None:
        if self._process is None or not self._lock.acquire(blocking=False):
            return
        try:
            _log.warning("the idle process of service %s %s", self._setup["name"], reason)
            self._end_process()
        finally:
            self._lock.release()

    def _tidy(self) -> None:
        process = self._process
        if process is not None:
            process.log.bound()
            if self._adopted:
                reap_orphans(process.pid)

    # -- replies ---------------------------------------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        process = self._process
        return {**node.about(), "executor": self._executor, "service_pid": None if process is None else process.pid}

    def _reply(self, reply: dict[str, Any], call: RunningCall | None = None) -> dict[str, Any]:
        reply["executor"], reply["host"], reply["set_up_count"] = self._executor, socket.gethostname(), self._num_set_up
        if call is not None and call.rank is not None:
            reply["rank"] = call.rank
        return reply


def _report(failure: Failure) -> dict[str, Any]:
    return {"kind": failure.kind, "message": str(failure), **failure.more}


def _unforeseen(error: BaseException) -> Failure:
    return Failure("starter", f"{type(error).__name__}: {error}")
