"""Flows and commands whose named cluster does not answer.

1. `train`, `pipeline` and `evaluate` look first: nothing is prepared, nothing is written.
2. So do the commands, before Prefect is started; the embedded cluster costs them no look.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import commands
from flows.cli import main
from flows.evaluate import EvaluateRequest, evaluate
from flows.pipeline import pipeline
from flows.prepare import preparation_digest
from flows.train import train
from seeker.errors import UnreachableError
from seeker.presets import project_root
from tests.cluster.conftest import name_no_cluster
from tests.flows.tiny_run import tiny_config

DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_no_cluster(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "work",
    [
        lambda config: pipeline.fn(config=config),
        lambda config: train.fn(config=config),
        lambda config: evaluate.fn(EvaluateRequest(run=config.policy.path, config=config)),
    ],
    ids=["pipeline", "train", "evaluate"],
)
def test_nothing_is_prepared_for_it(work: Callable[[Any], Any], tmp_path: Path) -> None:
    config = tiny_config(tmp_path, cluster={"endpoint": DEAD, "connect_deadline_s": 0.2})
    with pytest.raises(UnreachableError, match=f"no cluster answered at {DEAD}"):
        work(config)
    assert not (project_root() / "prepared" / preparation_digest(config)).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "questions.jsonl"]


def test_commands_look_before_prefect_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def environment(module: str) -> Any:
        raise AssertionError(f"{module} was started")

    monkeypatch.setattr(commands, "flow_environment", environment)
    dead = ["--set", f"cluster.endpoint={DEAD}", "--set", "cluster.connect_deadline_s=0.2"]
    assert main(["train", "--preset", "micro", *dead]) == 1
    assert f"seeker: error: no cluster answered at {DEAD} within 0.2 s; it is named by" in capsys.readouterr().err
    with pytest.raises(AssertionError, match=r"flows\.pipeline was started"):
        main(["train", "--preset", "micro"])
