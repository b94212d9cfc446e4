"""What runs and flow runs are called."""

from __future__ import annotations

import time
from pathlib import Path

from seeker.config import RunConfig


def run_id_for(config: RunConfig, run_id: str | None) -> str:
    """The given id; else the name of the run directory; else preset and time."""
    if run_id:
        return run_id
    if config.out:
        return Path(config.out).resolve().name
    return f"{config.preset or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"


def flow_run_name() -> str:
    """``train-demo``: the flow and the run it works on."""
    from prefect.runtime import flow_run

    parameters = flow_run.parameters or {}
    config, target = parameters.get("config"), parameters.get("request")
    name = parameters.get("run_id") or getattr(config, "out", None) or getattr(config, "preset", None)
    name = name or parameters.get("preset") or getattr(target, "run", None) or "run"
    return f"{flow_run.flow_name}-{Path(str(name)).name}"
