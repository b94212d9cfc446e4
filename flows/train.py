"""The training loop: step after step of rollout, advantage, update and publish, with evaluation in between.

The order and the decisions are here; the work is in the tasks. A run that was interrupted goes on from its last commit
when it is named again.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import flow

from flows.due import is_checkpoint_due, modes_due
from flows.names import flow_run_name
from flows.orders import Order
from flows.prepare import prepare
from flows.progress import StepProgress, outlive_readers, start_lines
from flows.stopping import Limits, Reason, Stops, end_flow_run
from seeker.config import RunConfig
from seeker.questions import read_questions
from seeker.runs import Json, RunDirectory, open_run, read_latest, telling_state, write_metrics, writer_lock
from seeker.runs.pausing import clear_pause
from tasks.advantages import advantage
from tasks.cluster import (
    ROLLOUT_SERVICE,
    Session,
    check_cluster,
    describe_rollouts,
    open_flow_cluster,
    start_rollouts,
    start_trainers,
    use_session,
)
from tasks.evaluation import evaluate_version
from tasks.identity import run_digests
from tasks.naming import forget_phases, whole_handle
from tasks.publishing import publish, publish_held
from tasks.reports import report
from tasks.rollouts import rollout
from tasks.updates import begin_checkpoint, settle_checkpoints, update


@flow(name="train", flow_run_name=flow_run_name, persist_result=True, result_serializer="json")
def train(
    preset: str | None = None,
    run_id: str | None = None,
    steps: int | None = None,
    overrides: tuple[str, ...] = (),
    pause_after: int | None = None,
    max_steps_per_run: int | None = None,
    resume: bool = True,
    config: RunConfig | None = None,
    prepared: Json | None = None,
    rollout_target: str = ROLLOUT_SERVICE,
) -> Any:
    """Begin a training run, or go on with one from its last commit.

    The result is ``{"run": "runs/demo", "run_id": "demo", "policy_version": 30, "finished": true}``.

    Args:
        preset: Name of a preset, or a TOML file. Needed to begin a run; one that is there has its own configuration.
        run_id: Name of the run in runs/, or the path of a run directory. A run that is there goes on.
        steps: Training steps of the whole run.
        overrides: Any other field, as rollout.group_size=4.
        pause_after: Stop when so many steps of the run are committed.
        max_steps_per_run: Hand over to another flow run of this deployment after so many steps.
        resume: Switch off to refuse a run that is there.
        config: A whole configuration instead of a preset.
        prepared: What is prepared already (set by other flows).
        rollout_target: Another rollout service (set by tests).
    """
    outlive_readers()
    config, run_id = Order(preset, run_id, steps, overrides, config).resolve()
    limits = Limits(pause_after, max_steps_per_run).check()
    check_cluster(config)
    root = config.out_path(run_id)
    with writer_lock(root):
        run = open_run(root, config, run_id, resume=resume)
        clear_pause(root)
        with telling_state(run) as ending:
            done, reason = _train(run, prepared or prepare(config=config), rollout_target, limits)
            if reason is not None:
                ending.state, ending.reason = "paused", f"after step {done} of {config.steps} ({reason})"
    return end_flow_run(run, done, reason, limits)


def _train(run: RunDirectory, prepared: Json, rollout_target: str, limits: Limits) -> tuple[int, Reason | None]:
    with open_flow_cluster(run.config, run.root / "logs") as cluster:
        told = {"digests": run_digests(run.config, prepared), "cluster": cluster.describe(), "prepared": prepared}
        run.amend(told)
        with _session(run, cluster, prepared, rollout_target) as session:
            return _loop(session, limits)


@contextmanager
def _session(run: RunDirectory, cluster: Any, prepared: Json, rollout_target: str) -> Generator[Session]:
    """The services of this run, closed at its end whatever happens."""
    rollouts = start_rollouts(cluster, run.config, Path(prepared["index"]), f"rollout-{run.run_id}", rollout_target)
    try:
        trainers = start_trainers(cluster, run, f"trainer-{run.run_id}")
        try:
            train_questions, heldout = read_questions(prepared["train"]), read_questions(prepared["heldout"])
            with use_session(Session(run, cluster, rollouts, trainers, train_questions, heldout)) as session:
                yield session
        finally:
            trainers.close()
    finally:
        rollouts.close()


def _loop(session: Session, limits: Limits) -> tuple[int, Reason | None]:
    """Step after step; how many are done, and why no more are when the run is not at its end."""
    run, steps = session.run, session.config.steps
    latest = read_latest(run)
    first = 0 if latest is None else latest.next_step
    # Executors load while the trainer does.
    described = describe_rollouts(session.rollouts, session.config.cluster.start_deadline_s)
    publish_held(session, first)
    run = session.run  # of another lineage when the policy could not be rebuilt bit for bit
    template = described.result()["template"]
    run.amend({"template": template})
    with StepProgress(run.run_id, first, steps) as progress:
        progress.say([*run.notes, *start_lines(run.config, template)])
        if first:
            progress.say([f"going on from step {first} of {steps}, the last commit of {run.root}"])
        session.step_started = time.perf_counter()
        _after_commit(session, first, progress)
        done, reason, stops = first, None, Stops(run, limits, first)
        while done < steps and reason is None:
            progress.begin(done)
            metrics = _step(session, done)
            progress.end(done, metrics)
            done += 1
            _after_commit(session, done, progress)
            reason = stops.reason(done)
    settle_checkpoints(session, wait=True)
    if not modes_due(run.config, done):  # else it was told after the evaluation
        report(str(run.root))
    return done, reason


def _step(session: Session, step: int) -> Json:
    at = {"run_key": session.run.cache_key, "lineage": session.run.lineage, "step": step}
    rollouts = whole_handle(session.run, rollout, **at)
    advantages = whole_handle(session.run, advantage, **at, rollouts=rollouts)
    updated = update(**at, advantages=advantages)
    metrics = publish(**at, rollouts=rollouts, advantages=advantages, update=updated)["metrics"]
    forget_phases(**at)
    return metrics


def _after_commit(session: Session, version: int, progress: StepProgress) -> None:
    """What is due after a version and was not done before an interruption; its time belongs to no step."""
    spent = time.perf_counter()
    if is_checkpoint_due(session.config, version) and not session.run.checkpoint_path(version).is_dir():
        begin_checkpoint(session, version)
    modes = modes_due(session.config, version)
    for mode in modes:
        progress.evaluating(version)
        progress.note(evaluate_version(version, mode))
    if modes:
        write_metrics(session.run)
        report(str(session.run.root))
    session.step_started += time.perf_counter() - spent
