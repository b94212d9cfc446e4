"""Reports of a run for people: pictures and a page in the run directory, artifacts in Prefect.

Keys are the same for the whole run, so that a later report replaces the one before it. Reports are a view: a Prefect
server that cannot be reached costs a warning, never the run.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from seeker.runs import Json, write_atomic
from seeker.show.page import render_page
from seeker.show.picture import draw_picture
from seeker.show.reading import RunView, read_run
from seeker.show.tables import EVALUATION_COLUMNS, config_facts, evaluation_rows, phase_rows


@task(name="report", task_run_name="report-{root}", cache_policy=NO_CACHE, persist_result=False)
def report(root: str) -> Json:
    """Write `report/curve.png` and `report/report.html` of the run, and its artifacts: paths, and what was sent."""
    view = read_run(Path(root))
    files = write_report(view)
    try:
        sent = publish_artifacts(view)
    except httpx.HTTPError as error:
        get_run_logger().warning("artifacts not updated, the server cannot be reached: %s", error)
        sent = []
    return {"files": files, "artifacts": sent}


def write_report(view: RunView) -> list[str]:
    """The report's files, relative to the run directory."""
    write_atomic(view.root / "report" / "curve.png", draw_picture(view))
    write_atomic(view.root / "report" / "report.html", render_page(view, ()).encode())
    return ["report/curve.png", "report/report.html"]


def publish_artifacts(view: RunView) -> list[str]:
    """Create or replace the run's artifacts; returns their keys."""
    keys = {name: artifact_key(name, view.run_id) for name in ("configuration", "evaluation", "curve")}
    create_markdown_artifact(configuration_card(view), key=keys["configuration"], description="what the run is")
    rows: list[dict[str, Any]] = [
        dict(zip(EVALUATION_COLUMNS, row, strict=True)) for row in evaluation_rows(view.evaluations)
    ]
    if rows:
        create_table_artifact(rows, key=keys["evaluation"], description=f"evaluations of run {view.run_id}")
    picture = base64.b64encode((view.root / "report" / "curve.png").read_bytes()).decode()
    create_image_artifact(
        f"data:image/png;base64,{picture}", key=keys["curve"], description="exact match by policy version"
    )
    return [key for name, key in keys.items() if rows or name != "evaluation"]


def artifact_key(name: str, run_id: str) -> str:
    """Prefect takes lower-case letters, digits and dashes: ``evaluation-laptop-3``."""
    return f"{name}-{re.sub(r'[^a-z0-9]+', '-', run_id.lower()).strip('-')}"


def configuration_card(view: RunView) -> str:
    """The run's protocol and the seconds of its phases as Markdown."""
    parts = [f"# run {view.run_id}", _markdown(("field", "value"), [list(fact) for fact in config_facts(view)])]
    phases = [[phase, f"{seconds:.2f}", f"{share:.0%}"] for phase, seconds, share in phase_rows(view)]
    if phases:
        parts.append(_markdown(("phase", "seconds per step", "share"), phases))
    return "\n\n".join(parts) + "\n"


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(value.replace("|", "\\|") for value in line) + " |" for line in lines)
