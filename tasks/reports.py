"""Reports of a run for people: pictures and a page in the run directory, artifacts in Prefect.

Keys are the same for the whole run, so that a later report replaces the one before it. Reports are a view: a Prefect
server that cannot be reached costs a warning, never the run.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path

import httpx
from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from seeker.runs import Json, write_atomic
from seeker.show.page import render_page
from seeker.show.picture import draw_picture
from seeker.show.reading import RunView, read_run
from seeker.show.tables import EVALUATION_COLUMNS, config_facts, evaluation_rows, phase_rows, share_with_interval
from tasks.artifacts import ArtifactText, put_artifacts, table


@task(name="report", task_run_name="report-{root}", cache_policy=NO_CACHE, persist_result=False)
def report(root: str) -> Json:
    """Write `report/curve.png` and `report/report.html` of the run, and its artifacts: paths, and what was sent."""
    view = read_run(Path(root))
    files = write_report(view)
    try:
        sent = put_artifacts(make_artifacts(view))
    except httpx.HTTPError as error:
        get_run_logger().warning("artifacts not updated, the server cannot be reached: %s", error)
        sent = []
    return {"files": files, "artifacts": sent}


def write_report(view: RunView) -> list[str]:
    """The report's files, relative to the run directory."""
    write_atomic(view.root / "report" / "curve.png", draw_picture(view))
    write_atomic(view.root / "report" / "report.html", render_page(view, ()).encode())
    return ["report/curve.png", "report/report.html"]


def make_artifacts(view: RunView) -> list[ArtifactText]:
    """What is shown of the run: configuration, curve, phase times, last evaluation, and where the whole report is."""

    def key(name: str) -> str:
        return artifact_key(view.run_id, name)

    picture = base64.b64encode((view.root / "report" / "curve.png").read_bytes()).decode()
    made = [
        ArtifactText(key("configuration"), "markdown", configuration_card(view), "what the run is"),
        ArtifactText(key("curve"), "image", f"data:image/png;base64,{picture}", "exact match by policy version"),
        ArtifactText(key("report"), "markdown", f"[the run's report]({report_url(view.root)})", "curve, tables, page"),
    ]
    phases = [
        {"phase": phase, "seconds per step": f"{seconds:.2f}", "share": f"{share:.0%}"}
        for phase, seconds, share in phase_rows(view)
    ]
    if phases:
        made.append(table(key("phases"), phases, f"mean over {view.step} steps"))
    if view.evaluations:
        rows = [dict(zip(EVALUATION_COLUMNS, row, strict=True)) for row in evaluation_rows(view.evaluations)]
        made.append(table(key("evaluations"), rows, "all evaluations, by question set, mode and version"))
        made.append(ArtifactText(key("evaluation"), "markdown", last_evaluation(view), "the last evaluation"))
    return made


def report_url(root: Path) -> str:
    """Where a browser finds the report: on the pages of `seeker serve`, else as a file."""
    served = os.environ.get("SEEKER_REPORTS_URL")
    if served and root.resolve().parent == Path("runs").resolve():
        return f"{served}/{root.name}/report.html"
    return (root / "report" / "report.html").resolve().as_uri()


def last_evaluation(view: RunView) -> str:
    """The newest held-out greedy evaluation as Markdown, else the newest of any kind."""
    greedy = [each for each in view.evaluations if (each["set"], each["mode"]) == ("heldout", "greedy")]
    told = max(greedy or view.evaluations, key=lambda each: each["policy_version"])
    kinds = [
        [kind or "(none)", f"{scores['exact_match']:.3f}", str(scores["n"])]
        for kind, scores in sorted(told.get("kinds", {}).items())
    ]
    head = (
        f"**Version {told['policy_version']}**, {told['mode']}, {told['n']} questions ({told['set']}): "
        f"exact match **{share_with_interval(told)}**, F1 {told['f1']:.3f}, searches {told['searches']:.2f}"
    )
    return head + ("\n\n" + _markdown(("kind", "exact match", "questions"), kinds) if kinds else "") + "\n"


def artifact_key(run_id: str, name: str) -> str:
    """Prefect takes lower-case letters, digits and dashes: ``run-laptop-3-curve``."""
    return f"run-{re.sub(r'[^a-z0-9]+', '-', run_id.lower()).strip('-')}-{name}"


def configuration_card(view: RunView) -> str:
    """The run's protocol as Markdown; not its state, which is over before the card is."""
    facts = [list(fact) for fact in config_facts(view) if fact[0] != "state"]
    return f"# run {view.run_id}\n\n" + _markdown(("field", "value"), facts) + "\n"


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(value.replace("|", "\\|") for value in line) + " |" for line in lines)
