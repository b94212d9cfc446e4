"""Reports of a run for Prefect.

1. Files are written into the run directory first, whatever Prefect does.
2. Keys are the run's, stable, and legal in Prefect; a run without evaluations has no evaluation table.
3. The table's columns carry the interval; the card names the protocol; the picture travels inside the artifact.
4. A server that cannot be reached costs a warning, not the run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.logging import disable_run_logger

from seeker.show.reading import read_run
from tasks import reports
from tests.surface.fake_run import make_run


@pytest.fixture
def artifacts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would have been sent to Prefect, by key."""
    sent: dict[str, Any] = {}
    for kind in ("image", "markdown", "table"):

        def create(content: Any, key: str, description: str) -> None:
            sent[key] = content

        monkeypatch.setattr(reports, f"create_{kind}_artifact", create)
    return sent


def test_files_and_artifacts(tmp_path: Path, artifacts: dict[str, Any]) -> None:
    make_run(tmp_path, steps=3)
    with disable_run_logger():
        done = reports.report.fn(str(tmp_path))
    assert done["files"] == ["report/curve.png", "report/report.html"]
    assert all((tmp_path / name).stat().st_size > 1000 for name in done["files"])
    assert done["artifacts"] == ["configuration-laptop-7", "evaluation-laptop-7", "curve-laptop-7"]
    assert list(artifacts) == done["artifacts"]
    assert artifacts["evaluation-laptop-7"][1]["exact match (95 %)"] == "0.625 [0.556, 0.689]"
    assert artifacts["curve-laptop-7"].startswith("data:image/png;base64,iVBOR")
    assert "| rollout | 3.00 | 75% |" in artifacts["configuration-laptop-7"]


def test_without_evaluations_there_is_no_table(tmp_path: Path, artifacts: dict[str, Any]) -> None:
    make_run(tmp_path, steps=0)
    for path in (tmp_path / "evaluations").iterdir():
        path.unlink()
    view = read_run(tmp_path)
    reports.write_report(view)
    assert reports.publish_artifacts(view) == ["configuration-laptop-7", "curve-laptop-7"]


@pytest.mark.parametrize("run_id", ["Laptop_3", "a b/c", "qwen2.5-3b", "--x--"])
def test_keys_are_legal(run_id: str) -> None:
    assert re.fullmatch(r"evaluation(-[a-z0-9]+)+", reports.artifact_key("evaluation", run_id))


def test_an_unreachable_server_is_a_warning(
    tmp_path: Path, artifacts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(reports, "create_markdown_artifact", refuse)
    make_run(tmp_path, steps=1)
    with disable_run_logger():
        assert reports.report.fn(str(tmp_path))["artifacts"] == []
    assert (tmp_path / "report" / "curve.png").is_file()
