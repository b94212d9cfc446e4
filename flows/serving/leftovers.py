"""Flow runs whose worker is gone: `python -m flows.serving.leftovers`, before the only worker starts.

Nobody could cancel them any more, and Prefect goes on showing them as running. What is left of their processes is
ended, and they are marked as what they are, so that the pages tell the truth and their place in the line is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.states import Cancelled, Crashed

from flows.serving.children import all_processes, descendants, environment_of, has_ended
from flows.serving.setup import POOL

ACTIVE = ("RUNNING", "PENDING", "CANCELLING")


async def mark() -> list[str]:
    """One line for each flow run that was marked."""
    async with get_client() as client:
        found: list[Any] = await client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": list(ACTIVE)}}}),
            work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [POOL]}}),
        )
        for run in found:
            cancelled = run.state is not None and run.state.is_cancelling()
            message = "its worker is gone; start it again to go on"
            await client.set_flow_run_state(
                run.id, Cancelled(message=message) if cancelled else Crashed(message=message), force=True
            )
    return [f"{run.name}: marked as ended, {run.state.name if run.state else 'unknown'} before" for run in found]


def end_processes(url: str, within_s: float = 30.0) -> None:
    """Terminate flow-run processes that report to the server at `url`; kill those that have not gone `within_s`."""
    found = [pid for pid in all_processes() if _runs_a_flow(pid, url)]
    below = {pid for flow in found for pid in descendants(flow)}
    found = [pid for pid in found if pid not in below]  # a flow run ends its cluster itself, in order
    for number, wait_s in ((signal.SIGTERM, within_s), (signal.SIGKILL, 5.0)):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while (found := [pid for pid in found if not has_ended(pid)]) and time.monotonic() < deadline:
            time.sleep(0.2)


def _runs_a_flow(pid: int, url: str) -> bool:
    """A flow run's process leads the session that its worker gave it; so does a cluster that it started."""
    told = environment_of(pid)
    if told.get("PREFECT_API_URL") != url or "PREFECT__FLOW_RUN_ID" not in told:
        return False
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


if __name__ == "__main__":
    end_processes(os.environ["PREFECT_API_URL"])
    for line in asyncio.run(mark()):
        print(line)
