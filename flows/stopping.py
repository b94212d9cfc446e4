"""Where a flow run ends before its training run does: paused, or so long that another flow run takes over.

Both end after a commit, so nothing is lost: the next flow run goes on from there. (A flow run that is suspended in
Prefect's pages is ended by Prefect itself before its next task; resuming it there starts a process that goes on.)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from prefect.deployments import run_deployment
from prefect.states import Completed

from flows.own_run import deployed_flow_run, deployment_name
from seeker.errors import ConfigError
from seeker.runs import RunDirectory
from seeker.runs.pausing import clear_pause, is_pause_requested

Reason = Literal["paused", "chunk"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one flow run goes. Example: ``Limits(pause_after=20, max_steps_per_run=500)``."""

    pause_after: int | None = None  # committed steps of the run
    max_steps_per_run: int | None = None  # steps of one flow run, where it was started from a deployment

    def check(self) -> Limits:
        for name in ("pause_after", "max_steps_per_run"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: expected a whole number from 1 on, found {value}")
        return self


@dataclass(frozen=True, slots=True)
class Stops:
    """Decides after each commit whether this flow run ends there."""

    run: RunDirectory
    limits: Limits
    first: int  # committed steps when the flow run began

    def reason(self, done: int) -> Reason | None:
        """Why the flow run ends after `done` steps of the run; None when it goes on, or is at its end anyway."""
        if done >= self.run.config.steps:
            return None
        if done == self.limits.pause_after or is_pause_requested(self.run.root):
            clear_pause(self.run.root)
            return "paused"
        most = self.limits.max_steps_per_run
        return "chunk" if most is not None and done - self.first >= most and deployed_flow_run() else None


def end_flow_run(run: RunDirectory, done: int, reason: Reason | None, limits: Limits) -> Any:
    """The result of a flow run that ends after `done` steps of its run, when nobody writes the run any more."""
    told = {"run": str(run.root), "run_id": run.run_id, "policy_version": done, "finished": reason is None}
    where = f"after step {done} of {run.config.steps}"
    if reason == "paused":
        return Completed(name="Paused", message=f"paused {where}; {how_to_go_on(run)}", data=told)
    if reason == "chunk":
        return Completed(name="Continued", message=f"{where}, {_start_next(run, done, limits)} goes on", data=told)
    return told


def _start_next(run: RunDirectory, done: int, limits: Limits) -> str:
    """Start the flow run that goes on; its name. Asked twice, it is the same flow run."""
    started: Any = run_deployment(
        str(deployment_name()),
        parameters={"run_id": _name(run), "steps": run.config.steps, **asdict(limits)},
        timeout=0,
        idempotency_key=f"{run.cache_key}-{run.lineage}-{done}",
        as_subflow=False,
    )
    return str(started.name)


def how_to_go_on(run: RunDirectory) -> str:
    name = _name(run)
    return (
        f"go on with `seeker resume {name}`, or `prefect deployment run 'train/train' --param run_id={name}` "
        "(with --param steps=N for another end)"
    )


def _name(run: RunDirectory) -> str:
    """How another process finds the run: its id, or the path of a directory elsewhere."""
    usual = run.root.resolve() == (Path("runs") / run.root.name).resolve()
    return run.root.name if usual else str(run.root.resolve())
