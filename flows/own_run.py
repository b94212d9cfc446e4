"""What Prefect's server says about the flow run of this process."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.settings import get_current_settings

ASK_EVERY_S = 2.0
TIMEOUT_S = 2.0
FORGIVE_S = 30.0  # how long a server that did not answer is left alone: training does not wait for it


@dataclass
class StateWatch:
    """Asks now and then, by one short request, whether somebody paused this flow run.

    Not through Prefect's client, which would try again for a minute where the server is away.
    """

    next_at: float = 0.0

    def is_paused(self) -> bool:
        """True when the flow run is paused or suspended on the server. Only a deployment's can be taken up again."""
        run = deployed_flow_run()
        if run is None or time.monotonic() < self.next_at:
            return False
        self.next_at = time.monotonic() + ASK_EVERY_S
        try:
            answer = httpx.get(f"{_api()}/flow_runs/{run.id}", headers=_authorization(), timeout=TIMEOUT_S)
            answer.raise_for_status()
        except httpx.HTTPError:
            self.next_at = time.monotonic() + FORGIVE_S
            return False
        return answer.json()["state_type"] == "PAUSED"


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


def _api() -> str:
    return str(get_current_settings().api.url).rstrip("/")


def _authorization() -> dict[str, str]:
    secret = get_current_settings().api.auth_string
    if secret is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(secret.get_secret_value().encode()).decode()}
