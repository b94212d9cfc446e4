"""Reports of a run for Prefect.

1. Files are written into the run directory first, whatever Prefect does.
2. Keys are the run's, stable, and legal in Prefect; a run without evaluations has no evaluation table.
3. The table's columns carry the interval; the card names the protocol; the picture travels inside the artifact.
4. A server that cannot be reached costs a warning, not the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.logging import disable_run_logger

from seeker.show.reading import read_run
from tasks import reports
from tasks.artifacts import ArtifactText
from tests.surface.fake_run import make_run


@pytest.fixture
def artifacts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What would have been sent to Prefect, by key."""
    sent: dict[str, str] = {}

    def put(wanted: Sequence[ArtifactText]) -> list[str]:
        sent.update({each.key: each.data for each in wanted})
        return [each.key for each in wanted]

    monkeypatch.setattr(reports, "put_artifacts", put)
    return sent


NAMES = ("configuration", "curve", "report", "phases", "evaluations", "evaluation")


def test_files_and_artifacts(tmp_path: Path, artifacts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, steps=3)
    with disable_run_logger():
        done = reports.report.fn(str(tmp_path))
    assert done["files"] == ["report/curve.png", "report/report.html"]
    assert all((tmp_path / name).stat().st_size > 1000 for name in done["files"])
    assert done["artifacts"] == [f"run-laptop-7-{name}" for name in NAMES] == list(artifacts)
    assert json.loads(artifacts["run-laptop-7-evaluations"])[1]["exact match (95 %)"] == "0.625 [0.556, 0.689]"
    assert artifacts["run-laptop-7-curve"].startswith("data:image/png;base64,iVBOR")
    assert json.loads(artifacts["run-laptop-7-phases"])[0] == {
        "phase": "rollout",
        "seconds per step": "3.00",
        "share": "75%",
    }
    assert artifacts["run-laptop-7-report"] == f"[the run's report]({(tmp_path / 'report/report.html').as_uri()})"
    assert "| protocol |" in artifacts["run-laptop-7-configuration"]
    assert artifacts["run-laptop-7-evaluation"].startswith("**Version 3**, greedy")


def test_the_report_of_a_served_run_has_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEEKER_REPORTS_URL", "http://127.0.0.1:4200/reports")
    assert reports.report_url(Path("runs/demo")) == "http://127.0.0.1:4200/reports/demo/report.html"
    assert reports.report_url(tmp_path / "elsewhere").startswith("file:///")


def test_without_evaluations_there_is_no_table(tmp_path: Path) -> None:
    make_run(tmp_path, steps=0)
    for path in (tmp_path / "evaluations").iterdir():
        path.unlink()
    view = read_run(tmp_path)
    reports.write_report(view)
    assert [each.key for each in reports.make_artifacts(view)] == [f"run-laptop-7-{name}" for name in NAMES[:3]]


@pytest.mark.parametrize("run_id", ["Laptop_3", "a b/c", "qwen2.5-3b", "--x--"])
def test_keys_are_legal(run_id: str) -> None:
    assert re.fullmatch(r"run(-[a-z0-9]+)+-evaluation", reports.artifact_key(run_id, "evaluation"))


def test_an_unreachable_server_is_a_warning(
    tmp_path: Path, artifacts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(reports, "put_artifacts", refuse)
    make_run(tmp_path, steps=1)
    with disable_run_logger():
        assert reports.report.fn(str(tmp_path))["artifacts"] == []
    assert (tmp_path / "report" / "curve.png").is_file()
