"""Make a Prefect server ready for Seeker: work pool, deployments, automation. Doing it again changes nothing.

What was deployed is remembered on the server, by digest, so that a schedule which somebody switched off there stays off
until `deployments/prefect.yaml` or a flow's parameters change.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from prefect.automations import Automation
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags, FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.states import Cancelled
from prefect.utilities.callables import parameter_schema
from prefect.variables import Variable
from prefect.workers.process import ProcessWorker

from seeker.errors import InfrastructureError
from seeker.presets import project_root

PREFECT_FILE = "deployments/prefect.yaml"
POOL = "seeker"
POOL_LIMIT = 4  # flow runs at once: a training, a pipeline, an evaluation and one more
SILENCE = timedelta(seconds=90)  # three heartbeats
SILENCE_RULE = "seeker: a flow run that fell silent has crashed"
REMEMBERED = "seeker_deployments"  # the variable that holds what was deployed
LATE = timedelta(minutes=30)


def set_up() -> list[str]:
    """Do what is to be done, and say it, one line each; no lines when there was nothing."""
    return asyncio.run(_set_up())


async def _set_up() -> list[str]:
    async with get_client() as client:
        return [
            *await _pool(client),
            *await _deployments(client),
            *await _silence_rule(client),
            *await _late_evaluations(client),
        ]


async def _pool(client: PrefectClient) -> list[str]:
    template = ProcessWorker.get_default_base_job_template()
    try:
        pool = await client.read_work_pool(POOL)
    except ObjectNotFound:
        wanted = WorkPoolCreate(
            name=POOL, type="process", concurrency_limit=POOL_LIMIT, base_job_template=template, description="Seeker"
        )
        await client.create_work_pool(wanted)
        return [f"work pool {POOL}: created, for {POOL_LIMIT} flow runs at once"]
    if pool.concurrency_limit is not None:
        return []
    await client.update_work_pool(POOL, WorkPoolUpdate(concurrency_limit=POOL_LIMIT))
    return [f"work pool {POOL}: limited to {POOL_LIMIT} flow runs at once"]


async def _deployments(client: PrefectClient) -> list[str]:
    wanted = deployment_digests(project_root())
    remembered: Any = await Variable.aget(REMEMBERED, default={})
    there = {
        deployment.name
        for deployment in await client.read_deployments(
            deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=["seeker"]))
        )
    }
    changed = [name for name, digest in wanted.items() if remembered.get(name) != digest or name not in there]
    if not changed:
        return []
    _deploy(changed)
    await Variable.aset(REMEMBERED, wanted, overwrite=True)
    return [f"deployment {name}/{name}: {'updated' if name in there else 'created'}" for name in changed]


def deployment_digests(root: Path) -> dict[str, str]:
    """Digest of everything that decides each deployment: its entry, its flow's parameters, and where it runs."""
    entries = yaml.safe_load((root / PREFECT_FILE).read_text(encoding="utf-8"))["deployments"]
    return {
        entry["name"]: _digest({"entry": entry, "root": str(root), **_flow_facts(root, entry)}) for entry in entries
    }


def _flow_facts(root: Path, entry: dict[str, Any]) -> dict[str, Any]:
    flow: Any = load_flow_from_entrypoint(f"{root}/{entry['entrypoint']}")
    return {"parameters": parameter_schema(flow).model_dump_for_openapi()}


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _deploy(names: list[str]) -> None:
    """By Prefect's own command, so that the file means here what it means by hand."""
    chosen = [word for name in names for word in ("--name", name)]
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", *chosen, "--prefect-file", PREFECT_FILE]
    done = subprocess.run(command, cwd=project_root(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InfrastructureError(f"{PREFECT_FILE} cannot be deployed: {(done.stdout + done.stderr).strip()[-2000:]}")


async def _silence_rule(client: PrefectClient) -> list[str]:
    """A flow run that was alive and says nothing for `SILENCE` is marked as crashed."""
    if await client.read_automations_by_name(SILENCE_RULE):
        return []
    trigger = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.*"},
        match={"prefect.resource.id": ["prefect.flow-run.*"]},  # type: ignore[arg-type]
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=SILENCE,
    )
    crash = ChangeFlowRunState(
        state=StateType.CRASHED, message=f"no sign of life for {SILENCE.seconds} s; start it again to go on"
    )
    await Automation(name=SILENCE_RULE, trigger=trigger, actions=[crash]).acreate()
    return [f"automation {SILENCE_RULE!r}: created (after {SILENCE.seconds} s)"]


async def _late_evaluations(client: PrefectClient) -> list[str]:
    """Cancel scheduled evaluations that were missed while nobody worked: one catches up for all."""
    late = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {
                "state": {"name": {"any_": ["Late"]}},
                "expected_start_time": {"before_": datetime.now(UTC) - LATE},
                "tags": {"all_": ["auto-scheduled"]},
            }
        ),
        deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=["seeker"])),
    )
    for run in late:
        await client.set_flow_run_state(run.id, Cancelled(message="missed while nobody worked"), force=True)
    return [f"scheduled evaluations: {len(late)} missed ones cancelled"] if late else []
