"""The training flow on the embedded cluster: real executors, real processes, real kills.

1. A killed service process, a killed executor and a retriever that raises, during a step: the calls are done again, the
   step completes, the counters say so, and metrics, evaluations and policy are those of a run without trouble.
2. A version of the finished run is evaluated from its directory alone, twice the same and at once the second time, and
   exported as a folder that transformers reads and that answers token for token alike.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from flows.evaluate import EvaluateRequest, evaluate
from flows.export import ExportRequest, export
from flows.prepare import prepare
from flows.train import train
from seeker.runs import load_run
from seeker.runs.files import read_sealed
from tests.flows.tiny_run import tiny_config
from tests.flows.whole import copy_inputs, outcome

# Killed processes import torch anew, which takes long where many others work.
pytestmark = [pytest.mark.drill, pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def troubled(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that meets three faults."""
    folder = tmp_path_factory.mktemp("troubled")
    copy_inputs(uninterrupted.parent, folder)
    config = tiny_config(folder)
    faults = folder / "faults"
    faults.mkdir(parents=True)
    for name in ("raise-once", "kill-child-once", "kill-executor-once"):
        (faults / name).touch()
    prepared = prepare(config=config, root=str(folder / "prepared"))
    target = "tests.flows.faulty:FaultyRolloutService"
    told = train(config=config, run_id="troubled", prepared=prepared, rollout_target=target)
    return Path(told["run"])


def test_kills_and_a_raising_retriever_change_nothing(troubled: Path, uninterrupted: Path) -> None:
    events = load_run(troubled).events.read()
    assert Counter(event["event"] for event in events) == {"call_retried": 3}
    assert any("ConnectionResetError" in event["error"] for event in events)
    assert list((troubled.parent / "faults").iterdir()) == []
    assert outcome(troubled) == outcome(uninterrupted)


def test_a_version_is_evaluated_and_exported_from_the_run_directory(troubled: Path) -> None:
    before = {path.name for path in (troubled / "evaluations").iterdir()}
    request = EvaluateRequest(run=str(troubled), version=1, num_questions=2)
    (first,) = evaluate(request)
    written = {path.name for path in (troubled / "evaluations").iterdir()} - before
    assert len(written) == 2
    assert (first["n"], first["policy_version"], first["protocol"]["top_k"]) == (2, 1, 1)
    assert evaluate(request) == [first]
    (again,) = evaluate(EvaluateRequest(run=str(troubled), version=1))
    assert again == read_sealed(troubled / "evaluations" / "000001-heldout-greedy.json")
    exported = export(ExportRequest(run=str(troubled), num_questions=3))
    assert exported["compared_tokens"] > 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in Path(exported["path"]).iterdir()
    }
