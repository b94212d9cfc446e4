"""Publishing again what a resumed run goes on from.

1. The policy that was rebuilt is the committed one: the lineage goes on.
2. It is another, as a replay on a GPU may give: a new lineage begins at that commit, which a note and an event tell;
   the half-done next step of the old lineage is put aside.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seeker.runs import load_run, read_latest, write_file
from seeker.runs.files import dump_json
from tasks.publishing import publish_held
from tests.flows.runs import commit_one, start_run


def publish_again(root: Path, digest: str) -> Any:
    """`publish_held` with a trainer that holds the policy of that digest."""
    published = {"manifest": {"version": 1, "digest": digest}, "metrics": {}, "objects": []}
    trainers = SimpleNamespace(run=lambda method, version, committed: [published])
    session: Any = SimpleNamespace(run=load_run(root), trainers=trainers, policy=None)
    publish_held(session, 1)
    assert session.policy == published["manifest"]
    return session.run


@pytest.mark.parametrize(("digest", "lineage"), [("9f", 0), ("77", 1)])
def test_a_policy_that_was_rebuilt_otherwise_begins_a_lineage(digest: str, lineage: int, tmp_path: Path) -> None:
    run = start_run(tmp_path)
    commit_one(run, 0, policy={"version": 1, "digest": "9f"}, reward=0.5)
    write_file(tmp_path, "steps/000001/rollouts/call-000.parquet", b"by the committed policy")
    after = publish_again(tmp_path, digest)
    latest = read_latest(after)
    assert latest is not None
    assert (after.lineage, latest.lineage, latest.policy_version) == (lineage, lineage, 1)
    assert (tmp_path / "steps/000001").exists() == (lineage == 0)
    assert (tmp_path / "lineages/000/steps/000001/rollouts/call-000.parquet").exists() == (lineage == 1)
    assert len(after.notes) == after.events.count("lineage_begun") == lineage
    assert dump_json({"digest": "9f", "version": 1}) == (tmp_path / "policy/000001.json").read_bytes()
