"""Artifacts of a flow run, one row a key: made once, changed in place, taken over by the flow run that goes on.

Prefect keeps every version of an artifact and an event with the whole content for each change; a long training would
pile up thousands. So an artifact of this flow run is changed by a bare request, and those of earlier flow runs with the
same key are deleted when a new flow run makes its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.context import FlowRunContext, TaskRunContext

Kind = Literal["markdown", "table", "image"]


@dataclass(frozen=True, slots=True)
class ArtifactText:
    """What an artifact shows. Example: ``ArtifactText("run-demo-phases", "table", "[{…}]", "seconds by phase")``."""

    key: str
    kind: Kind
    data: str
    description: str


def table(key: str, rows: Sequence[dict[str, Any]], description: str) -> ArtifactText:
    return ArtifactText(key, "table", json.dumps(rows), description)


def put_artifacts(wanted: Sequence[ArtifactText]) -> list[str]:
    """Bring the artifacts up to date; their keys."""
    flow_run, task_run = _where()
    with get_client(sync_client=True) as client:
        for artifact in wanted:
            _put(client, artifact, flow_run, task_run)
    return [artifact.key for artifact in wanted]


def _put(client: SyncPrefectClient, artifact: ArtifactText, flow_run: UUID | None, task_run: UUID | None) -> None:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[artifact.key])))
    ours = [each for each in found if each.flow_run_id == flow_run]
    if ours:
        told = {"data": artifact.data, "description": artifact.description}
        client.request("PATCH", "/artifacts/{id}", json=told, path_params={"id": ours[0].id})
    else:
        client.create_artifact(
            ArtifactCreate(
                key=artifact.key,
                type=artifact.kind,
                data=artifact.data,
                description=artifact.description,
                flow_run_id=flow_run,
                task_run_id=task_run,
            )
        )
    for each in found:
        if each not in ours[:1]:
            client.delete_artifact(each.id)


def _where() -> tuple[UUID | None, UUID | None]:
    """The flow run and the task run that this code runs in."""
    task, flow = TaskRunContext.get(), FlowRunContext.get()
    if task is not None:
        return task.task_run.flow_run_id, task.task_run.id
    return (flow.flow_run.id, None) if flow is not None and flow.flow_run is not None else (None, None)
