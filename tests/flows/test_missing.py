"""Which evaluations of a run are missing, and what the flow `evaluate` does about it when no run is named.

1. Those that were due, and the latest version's; nothing of a run that is being written or has no version yet.
2. A stored evaluation counts only when it is of the same policy, questions and protocol, and whole (it is sealed).
   One that lost questions to infrastructure failures is done again, up to three times in all.
3. Without a run the flow does what is missing in every run of the folder, once. One that fails keeps no other from it,
   nor does a version whose manifest or policy is damaged.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flows.evaluate import evaluate
from flows.missing import find_missing, run_folders
from seeker.errors import RunDirectoryError
from seeker.runs import write_json, writer_lock
from seeker.runs.files import read_sealed, sealed
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
    found = find_missing(root)
    assert not found.damaged
    return [(candidate.version, mode) for candidate, mode in found.wanted]


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
    rewrite(path, policy_digest="of another lineage")
    assert missing(runs / "one") == [(1, "greedy")]


def test_a_damaged_evaluation_does_not_count(runs: Path) -> None:
    path = runs / "one" / "evaluations" / "000001-heldout-greedy.json"
    told = path.read_text()
    path.write_text(told.replace('"exact_match": ', '"exact_match": 0', 1))
    assert missing(runs / "one") == [(1, "greedy")]
    path.write_text(told)
    assert missing(runs / "one") == []


def test_an_evaluation_that_lost_questions_is_done_again(runs: Path) -> None:
    path = runs / "one" / "evaluations" / "000001-heldout-greedy.json"
    whole = read_sealed(path)
    rewrite(path, num_void=1)
    with use_cluster(FakeCluster()):  # type: ignore[arg-type]
        (done,) = evaluate()
    assert (done["num_void"], done["tries"], done["exact_match"]) == (0, 2, whole["exact_match"])
    rewrite(path, num_void=1, tries=2)
    assert missing(runs / "one") == [(1, "greedy")]
    rewrite(path, num_void=1, tries=3)
    assert missing(runs / "one") == []


def test_a_damaged_version_keeps_no_other_from_its_evaluation(runs: Path) -> None:
    root = runs / "one"
    for name in ("000001-heldout-greedy", "000002-heldout-greedy"):
        remove(root, name)
    (root / "policy" / "000001.json").write_text("{")
    with use_cluster(FakeCluster()), pytest.raises(RunDirectoryError, match=r"000001\.json: damaged, not JSON"):  # type: ignore[arg-type]
        evaluate()
    found = find_missing(root)
    assert not found.wanted
    assert len(found.damaged) == 1
    assert (root / "evaluations" / "000002-heldout-greedy.json").is_file()


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
        after = read_sealed(runs / "one" / "evaluations" / "000001-heldout-greedy.json")
        assert {**after, "seconds": 0} == {**before, "seconds": 0}
        shutil.rmtree(runs / "broken")
        assert evaluate() == []


def rewrite(path: Path, **fields: object) -> None:
    """As an evaluation that told this."""
    write_json(path, sealed({**read_sealed(path), **fields}))


def remove(root: Path, name: str) -> dict[str, object]:
    """Take an evaluation away; what it told."""
    path = root / "evaluations" / f"{name}.json"
    told = read_sealed(path)
    path.unlink()
    path.with_suffix(".parquet").unlink()
    return told
