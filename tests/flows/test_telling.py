"""What runs and evaluations say about themselves.

1. An interval is Wilson's; scores are told as a whole and by kind; every end of a trajectory is counted.
2. A small policy on text other than the generated world: the summary says why its score is near zero; else it does not.
3. A step's line and the estimate read well without a terminal.
4. When evaluations and checkpoints are due.
5. Lines that nobody reads any more end nothing: a flow run lives on when its worker has died.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from flows.due import is_checkpoint_due, modes_due
from flows.progress import StepProgress, describe_left
from flows.summary import count_parameters, low_score_notice
from seeker.evaluation import summarize, wilson_interval
from seeker.types import Author, Question, Search, Span, StopReason, Trajectory
from tests.flows.runs import small_config
from tests.flows.tiny_run import write_policy


def trajectory(number: int, exact_match: float, reason: StopReason = StopReason.ANSWERED) -> Trajectory:
    span = Span(Author.POLICY, np.array([1, 2, 3], np.int32), np.zeros(3, np.float32), 0)
    terms = {"exact_match": exact_match, "f1": exact_match, "containment": exact_match, "format": 1.0}
    searches = (Search("Ama", ("d1",)),) * number
    return Trajectory(f"q{number}", "g", 0, (span,), reason, 1, 0, 0, searches, reward_terms=terms)


def test_interval_is_wilsons() -> None:
    low, high = wilson_interval(100, 200)
    assert (round(low, 3), round(high, 3)) == (0.431, 0.569)
    low, high = wilson_interval(0, 10)
    assert low == 0.0
    assert round(high, 3) == 0.278
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_scores_as_a_whole_and_by_kind() -> None:
    questions = [Question(f"q{number}", "?", ("a",), kind) for number, kind in enumerate(("spouse", "spouse", ""))]
    ends = (StopReason.ANSWERED, StopReason.ANSWERED, StopReason.MALFORMED)
    told = summarize(questions, [trajectory(number, float(number == 0), end) for number, end in enumerate(ends)])
    assert told["n"] == 3
    assert told["exact_match"] == pytest.approx(1 / 3)
    assert told["searches"] == 1.0
    assert told["policy_tokens"] == 3
    assert {kind: scores["exact_match"] for kind, scores in told["kinds"].items()} == {"question": 0.0, "spouse": 0.5}
    assert told["stop_reasons"] == {"answered": 2, "malformed": 1}


def test_a_small_policy_on_real_text_says_why_its_score_is_near_zero(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "policy")
    size = count_parameters(folder)
    assert size is not None
    assert 10_000 < size < 1_000_000
    real = small_config(questions={"sources": [{"path": "real.jsonl"}]})
    notice = low_score_notice(real, str(folder))
    assert notice is not None
    assert "near zero is expected" in notice
    assert low_score_notice(small_config(), str(folder)) is None
    assert low_score_notice(real, str(tmp_path / "elsewhere")) is None


def test_lines_without_a_terminal() -> None:
    file = io.StringIO()
    metrics = {
        "reward/exact_match": 0.5,
        "format/valid_share": 1.0,
        "search_r1/search_calls_per_sample": 1.5,
        "groups/kept": 3,
        "groups/dropped": 1,
        "groups/void": 2,
        "seconds/step": 4.0,
        "seconds/rollout": 2.0,
        "seconds/update": 1.5,
    }
    with StepProgress("demo", 0, 30, Console(file=file, soft_wrap=True)) as progress:
        progress.begin(0)
        progress.end(0, metrics)
    assert file.getvalue().splitlines() == [
        "step 1/30  exact match 0.500  form 1.00  searches 1.50  groups 3+1  void 2"
        "  step 4.0 s (rollout 2.0, update 1.5)  about 1 min 56 s left"
    ]
    assert [describe_left(seconds) for seconds in (0, 59, 7_300)] == ["", "about 59 s left", "about 2 h 1 min left"]


def test_what_is_due() -> None:
    config = small_config(steps=7, evaluation={"every": 3}, checkpoint={"every": 2})
    assert [version for version in range(8) if modes_due(config, version)] == [0, 3, 6, 7]
    assert modes_due(config, 0) == ["greedy", "sampled"]
    assert modes_due(config, 3) == ["greedy"]
    assert [version for version in range(8) if is_checkpoint_due(config, version)] == [2, 4, 6, 7]
    ends = small_config(steps=7, evaluation={"every": 0, "sampled": False})
    assert [version for version in range(8) if modes_due(ends, version)] == [0, 7]


def test_lines_that_nobody_reads_end_nothing() -> None:
    code = (
        "from flows.progress import StepProgress, outlive_readers\noutlive_readers()\n"
        "for _ in range(2): StepProgress('demo', 0, 3).say(['a line'])"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
