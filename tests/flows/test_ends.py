"""Where a flow run ends before its training run does, on the scripted cluster.

1. `pause_after` stops after that commit: the flow run is completed and says how to go on, the run says paused.
2. A pause that is asked for while the run lives is obeyed after the next commit; where nobody writes it is refused.
3. The run goes on from there, also to another end, and is in the end what a run without a pause is.
4. Chunks are of deployments only: a plain command goes on in the same process.
5. A flow run of a deployment hands over to the next one after `max_steps_per_run` steps, with the run's name, end and
   limits, once also when it is retried; the chain stops at the run's end, which is that of a run in one piece.
6. A flow run that fails says in its state what was wrong, where and the remedy, as `--watch` and the pages show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.flow_engine import run_flow
from prefect.states import State

from flows.stopping import Limits, Stops, how_to_go_on
from flows.train import train
from seeker.errors import ConfigError, RunDirectoryError
from seeker.runs import load_run, read_latest
from seeker.runs.pausing import request_pause
from seeker.runs.state import read_state
from tasks.cluster import use_cluster
from tests.flows.fake_cluster import FakeCluster
from tests.flows.tiny_run import tiny_config
from tests.flows.whole import copy_inputs, outcome

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_paused_and_gone_on_with(uninterrupted: Path, tmp_path: Path) -> None:
    copy_inputs(uninterrupted.parent, tmp_path)
    config = tiny_config(tmp_path)
    root = tmp_path / "run"
    with use_cluster(FakeCluster()):  # type: ignore[arg-type]
        state = train(config=config, run_id="tiny", pause_after=1, return_state=True)
        assert (state.name, state.is_completed()) == ("Paused", True)
        assert state.message.startswith(f"paused after step 1 of 2; go on with `seeker resume {root}`")
        assert done(root) == 1
        assert (read_state(root).state, read_state(root).reason) == ("paused", "after step 1 of 2 (paused)")
        with pytest.raises(RunDirectoryError, match="nobody is writing this run"):
            request_pause(root)
        told = train(run_id=str(root), max_steps_per_run=1)
    assert (told["policy_version"], told["finished"]) == (2, True)
    assert outcome(root) == outcome(uninterrupted)


@pytest.mark.drill
def test_paused_from_outside_and_ended_elsewhere(uninterrupted: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"

    def ask(method: str, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if method == "update" and args[0] == 0:
            request_pause(root)

    copy_inputs(uninterrupted.parent, tmp_path)
    with use_cluster(FakeCluster(ask)):  # type: ignore[arg-type]
        assert train(config=tiny_config(tmp_path), run_id="tiny")["policy_version"] == 1
    assert read_state(root).state == "paused"
    with use_cluster(FakeCluster()):  # type: ignore[arg-type]
        assert train(run_id=str(root), steps=1)["finished"] is True
    assert not (root / "pause").exists()


def test_a_chain_of_flow_runs(uninterrupted: Path, tmp_path: Path) -> None:
    copy_inputs(uninterrupted.parent, tmp_path)
    root = tmp_path / "run"
    config = tiny_config(tmp_path, evaluation={"every": 0, "num_questions": 1}).model_dump(mode="json")
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(train), name=f"chain-{tmp_path.name}")
    begun = begin(deployment, None, config=config, run_id="tiny", max_steps_per_run=1)
    first = execute(begun)
    (second,) = others_of(deployment, begun)
    assert (first.name, first.message) == ("Continued", f"after step 1 of 2, {second.name} goes on")
    assert second.parameters == {"run_id": str(root), "steps": 2, "pause_after": None, "max_steps_per_run": 1}
    assert begin(deployment, f"{load_run(root).cache_key}-0-1").id == second.id  # asked again, as by a retry
    last = execute(second)
    assert (last.name, last.is_completed(), done(root)) == ("Completed", True, 2)
    assert others_of(deployment, begun, second) == []
    assert outcome(root)["digest"] == outcome(uninterrupted)["digest"]


def begin(deployment: UUID, key: str | None, **parameters: Any) -> FlowRun:
    started: Any = run_deployment(deployment, parameters=parameters, timeout=0, as_subflow=False, idempotency_key=key)
    return started


def execute(flow_run: FlowRun) -> State[Any]:
    """What a worker does with a flow run that is due, in this process."""
    with use_cluster(FakeCluster()):  # type: ignore[arg-type]
        return run_flow(train, flow_run=flow_run, return_type="state")


def others_of(deployment: UUID, *known: FlowRun) -> list[FlowRun]:
    """The deployment's flow runs beside those."""
    wanted = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
    with get_client(sync_client=True) as client:
        return [run for run in client.read_flow_runs(deployment_filter=wanted) if run.id not in {k.id for k in known}]


def test_a_failed_flow_run_says_why() -> None:
    state = train(preset="mircro", return_state=True)
    assert state.name == "Failed"
    assert state.message.startswith(
        "Flow run encountered an exception: ConfigError: unknown preset 'mircro', did you mean 'micro'? (presets: "
    )


def test_limits_are_whole_numbers() -> None:
    with pytest.raises(ConfigError, match="pause_after: expected a whole number from 1 on, found 0"):
        Limits(pause_after=0).check()


def test_the_end_of_the_run_is_no_stop(uninterrupted: Path) -> None:
    run = load_run(uninterrupted)
    stops = Stops(run, Limits(pause_after=2, max_steps_per_run=1), first=0)
    assert stops.reason(2) is None
    assert str(run.root) in how_to_go_on(run)


def done(root: Path) -> int:
    latest = read_latest(load_run(root))
    return 0 if latest is None else latest.policy_version
