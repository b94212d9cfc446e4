"""`deployments/prefect.yaml`.

1. Every flow that users start has a deployment of its name in the one pool, with tag and description.
2. Trainings, pipelines and evaluations wait for each other; evaluation comes every 30 minutes and after each training.
3. What decides a deployment decides its digest: its entry, its flow's parameters, and the folder it runs in.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.serving import setup
from seeker.presets import project_root

ENTRIES: dict[str, Any] = {
    entry["name"]: entry for entry in yaml.safe_load((project_root() / setup.PREFECT_FILE).read_text())["deployments"]
}


def test_every_flow_has_its_deployment() -> None:
    assert set(ENTRIES) == {"prepare", "train", "evaluate", "export", "pipeline"}
    for name, entry in ENTRIES.items():
        assert entry["entrypoint"] == f"flows/{name}.py:{name}"
        assert entry["work_pool"]["name"] == setup.POOL
        assert entry["tags"] == ["seeker"]
        assert len(entry["description"]) > 30


@pytest.mark.parametrize("name", ["train", "pipeline", "evaluate"])
def test_they_wait_for_each_other(name: str) -> None:
    assert ENTRIES[name]["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_evaluation_is_scheduled_and_triggered() -> None:
    (schedule,) = ENTRIES["evaluate"]["schedules"]
    (trigger,) = ENTRIES["evaluate"]["triggers"]
    assert (schedule["interval"], schedule["active"]) == (1800, True)
    assert trigger["expect"] == ["prefect.flow-run.Completed"]
    assert trigger["match_related"] == {"prefect.resource.role": "deployment", "prefect.resource.name": "train"}


def test_the_digest_holds_what_decides_a_deployment(tmp_path: Path) -> None:
    root = project_root()
    before = setup.deployment_digests(root)
    assert setup.deployment_digests(root) == before
    for name in ("flows", "deployments"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    elsewhere = setup.deployment_digests(tmp_path)
    assert all(elsewhere[name] != before[name] for name in before)
    path = tmp_path / setup.PREFECT_FILE
    path.write_text(path.read_text().replace("interval: 1800", "interval: 900"))
    changed = setup.deployment_digests(tmp_path)
    assert [name for name in changed if changed[name] != elsewhere[name]] == ["evaluate"]
