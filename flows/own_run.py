"""What Prefect says about the flow run of this process."""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext


def deployed_flow_run() -> Any | None:
    """The flow run of this process when it was started from a deployment."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    return run if run is not None and run.deployment_id is not None else None


def deployment_name() -> str | None:
    """``train/train`` when this flow run was started from a deployment."""
    run = deployed_flow_run()
    if run is None:
        return None
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment(run.deployment_id)
        return f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
