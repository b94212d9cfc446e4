"""Which evaluations of a run are missing, and what the flow `evaluate` does about it when no run is named.

1. Those that were due, and the latest version's; nothing of a run that is being written or has no version yet.
2. A stored evaluation counts only when it is of the same policy, questions and protocol.
3. Without a run the flow does what is missing in every run of the folder, once; one that fails keeps no other from it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flows.evaluate import evaluate
from flows.missing import find_missing, run_folders
from seeker.errors import RunDirectoryError
from seeker.runs import writer_lock
from tasks.cluster import use_cluster
from tests.flows.fake_cluster import FakeCluster

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def runs(uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs: `one`, of two steps evaluated after each, and its copy `two`."""
    for name in ("one", "two"):
        shutil.copytree(uninterrupted, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def missing(root: Path) -> list[tuple[int, str]]:
    return [(candidate.version, mode) for candidate, mode in find_missing(root)]


def test_what_was_due_and_the_latest(runs: Path) -> None:
    root = runs / "one"
    assert missing(root) == []
    remove(root, "000001-heldout-greedy")
    remove(root, "000002-heldout-sampled")
    assert missing(root) == [(1, "greedy"), (2, "sampled")]
    told = json.loads((root / "run.json").read_text())
    told["config"]["steps"], told["config"]["evaluation"]["every"] = 9, 0
    (root / "run.json").write_text(json.dumps(told))
    remove(root, "000002-heldout-greedy")
    assert missing(root) == [(2, "greedy")]  # the latest, though it is not due
    with writer_lock(root):
        assert missing(root) == []
    (root / "LATEST").unlink()
    assert missing(root) == []


def test_an_evaluation_of_another_policy_does_not_count(runs: Path) -> None:
    path = runs / "one" / "evaluations" / "000001-heldout-greedy.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "policy_digest": "of another lineage"}))
    assert missing(runs / "one") == [(1, "greedy")]


def test_the_flow_catches_up_in_all_runs(runs: Path) -> None:
    before = remove(runs / "one", "000001-heldout-greedy")
    remove(runs / "two", "000002-heldout-greedy")
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    assert [path.name for path in run_folders(Path("runs"))] == ["broken", "one", "two"]
    with use_cluster(FakeCluster()):  # type: ignore[arg-type]
        with pytest.raises(RunDirectoryError, match="not JSON"):
            evaluate()
        assert missing(runs / "one") == missing(runs / "two") == []
        after = json.loads((runs / "one" / "evaluations" / "000001-heldout-greedy.json").read_text())
        assert {**after, "seconds": 0} == {**before, "seconds": 0}
        shutil.rmtree(runs / "broken")
        assert evaluate() == []


def remove(root: Path, name: str) -> dict[str, object]:
    """Take an evaluation away; what it told."""
    path = root / "evaluations" / f"{name}.json"
    told = json.loads(path.read_text())
    path.unlink()
    path.with_suffix(".parquet").unlink()
    return told
