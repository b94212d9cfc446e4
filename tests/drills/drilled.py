"""A training run that is killed again and again, and resumed as its operator would do it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from seeker.runs import RunDirectory, load_run, read_latest, read_state
from tests.deployments.served import FINAL, ServedPrefect
from tests.deployments.waiting import wait_until
from tests.drills.plans import RECOVERS, Strike
from tests.drills.tally import tally
from tests.drills.targets import Scene, kill

PATIENCE_S = 400.0  # without a commit, an attempt's end or a kill
LEFTOVERS_S = 30.0
SILENT_S = 45.0  # of a flow run whose processes are gone, before its operator believes them rather than the pages


@dataclass
class DrilledRun:
    """Example: ``DrilledRun(served, root, draw, {"preset": "micro"}).play([Strike("flow", 3, 0.5)])``."""

    served: ServedPrefect
    root: Path
    draw: random.Random
    first: Mapping[str, Any]  # parameters of the first flow run; later ones name the run alone
    flow_runs: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)  # what was done, for the message of a failure
    _doomed: set[str] = field(default_factory=set)  # flow runs that a kill may end
    _finished_calls: dict[Path, int] = field(default_factory=dict)
    _struck: tuple[str, float] = ("", 0.0)  # what was killed last, and when
    _gone_since: float | None = None
    _moved: float = 0.0

    def play(self, strikes: Sequence[Strike] = ()) -> None:
        """Until the run is completed."""
        self._start()
        for strike in strikes:
            if not self._await_moment(strike):
                break
            self._strike(strike)
        while not self._is_completed():
            time.sleep(0.3)
        self._await_silence()
        self._count()

    @property
    def scene(self) -> Scene:
        return Scene(self.served, self.flow_runs[-1])

    @property
    def steps(self) -> int:
        run = self._run()
        latest = None if run is None else read_latest(run)
        return 0 if latest is None else latest.next_step

    def _run(self) -> RunDirectory | None:
        return load_run(self.root) if (self.root / "run.json").is_file() else None

    def _start(self) -> None:
        if self._run() is None:
            parameters = {**self.first, "overrides": [*self.first.get("overrides", []), f"out={self.root}"]}
            started = self.served.start("train", **parameters)
        elif len(self.flow_runs) == 1:
            started = self.served.start_by_command("train", run_id=str(self.root))
        else:
            started = self.served.start("train", run_id=str(self.root))
        self.flow_runs.append(started)
        self._say(f"flow run {started} started at {self.steps} steps")

    def _await_moment(self, strike: Strike) -> bool:
        """False when the run was completed before."""
        while self.steps < strike.after or not self.scene.find(strike.target):
            if self._is_completed():
                return False
            time.sleep(0.1)
        time.sleep(strike.delay_s)
        return not self._is_completed()

    def _strike(self, strike: Strike) -> None:
        found = self.scene.find(strike.target)
        if not found:  # it went while we waited for the moment
            return
        self._check_running()
        log_before = self._returns(strike.target)
        if strike.target not in RECOVERS:
            self._doomed.add(self.flow_runs[-1])
        if strike.target in ("flow", "worker"):  # the others' losses are events
            tally.lost += self._calls_under_way()
        pid = self.draw.choice(found)
        if not kill(pid):
            return
        tally.kills[strike.target] += 1
        self._struck = (strike.target, time.time())
        self._say(f"{strike.target} {pid} killed at {self.steps} steps")
        if strike.target in ("server", "worker"):
            back = f"another {strike.target}"
            wait_until(lambda: self._returns(strike.target) > log_before, back, PATIENCE_S)

    def _returns(self, target: str) -> int:
        return self.served.log.read_text().count(f"the {target} is up again")

    def _is_completed(self) -> bool:
        """Whether the run is at its end; resumes it where its flow run has ended before."""
        assert time.monotonic() - self._moved < PATIENCE_S, self._tell("nothing moves")
        state = self._state()
        if state["type"] == "COMPLETED":
            return True
        if state["type"] in FINAL or self._is_silent():
            self._check_ended(state)
            tally.resumes += 1
            self._start()
        return False

    def _state(self) -> dict[str, Any]:
        try:
            return self.served.state(self.flow_runs[-1])
        except httpx.HTTPError:
            return {"type": "UNKNOWN"}  # the server is away

    def _is_silent(self) -> bool:
        """True when the flow run had processes, a kill hit it, and they have been gone for a while."""
        if self.flow_runs[-1] not in self._doomed or self.scene.leftovers():
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = time.monotonic()
        return self._gone_since is not None and time.monotonic() - self._gone_since > SILENT_S

    def _check_ended(self, state: Mapping[str, Any]) -> None:
        self._say(f"flow run ended at {self.steps} steps: {state['type']}, {str(state.get('message'))[:200]}")
        assert self.flow_runs[-1] in self._doomed, self._tell("ended though only an executor or trainer was killed")
        self._await_silence()
        self._gone_since = None
        run = self._run()
        if run is None:
            return
        told = read_state(self.root)
        assert told.state in ("died", "failed", "cancelled", "stopped"), self._tell(str(told))
        assert told.reason, self._tell(str(told))
        target, at = self._struck
        if target == "cluster" and told.time > at:
            assert "embedded cluster" in told.reason, self._tell(str(told))
        self._say(f"state.json: {told.state}, {told.reason[:200]}")
        self._finished_calls.update({path: path.stat().st_mtime_ns for path in self._markers()})

    def _check_running(self) -> None:
        """What `state.json` and the lock say of a flow run at work is true."""
        told, flows = read_state(self.root), self.scene.find("flow")
        if told.state == "running" and flows:
            assert told.pid in flows, self._tell(f"{told} though the flow run is {flows}")

    def _await_silence(self) -> None:
        scene = self.scene
        wait_until(lambda: scene.leftovers() == [], self._tell("the end of the flow run's processes"), LEFTOVERS_S)

    def _markers(self) -> list[Path]:
        return list(self.root.glob("steps/*/rollouts/call-*.json"))

    def _calls_under_way(self) -> int:
        """Rollout calls of the next step without a result, where that step has begun."""
        run = self._run()
        folder = None if run is None else self.root / run.step_path(self.steps)
        if run is None or folder is None or (folder / "batch.bin").is_file():
            return 0
        number = -(-run.config.rollout.prompts_per_step // run.config.rollout.prompts_per_task)
        begun = folder.is_dir() or read_state(self.root).state == "running"
        return number - len(list(folder.glob("rollouts/call-*.json"))) if begun else 0

    def _count(self) -> None:
        events = load_run(self.root).events
        tally.runs += 1
        tally.lost += sum(each["event"] == "call_retried" and each["attempt"] == 1 for each in events.read())
        tally.kept += events.count("call_reused")
        tally.formed_again += events.count("trainers_lost")
        tally.repeated += sum(path.stat().st_mtime_ns != at for path, at in self._finished_calls.items())

    def _say(self, text: str) -> None:
        self._moved = time.monotonic()
        self.log.append(f"{time.strftime('%H:%M:%S')} {text}")
        print(self.log[-1], flush=True)

    def _tell(self, what: str) -> str:
        return "\n".join([what, str(self.root), *self.log])
