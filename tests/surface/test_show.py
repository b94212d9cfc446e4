"""Looking at a run.

1. A finished, an unfinished and a just begun run are all shown; the state says which it is.
2. A wrong path is refused with what is there; looking takes no lock that a writer needs.
3. Curves: a step's reward stands at the version that wrote it, an evaluation at the version that it measured.
4. Trajectories are shown by author, decoded with the run's own tokenizer, best to worst; nothing steers the terminal.
5. Page and picture need nothing else; what a policy wrote is escaped.
6. The plot puts the highest value on top and the first point on the left.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from flows.cli import main
from seeker.errors import RunDirectoryError
from seeker.runs import writer_lock
from seeker.show.page import render_page
from seeker.show.picture import draw_picture
from seeker.show.plot import Series, draw_curves
from seeker.show.reading import find_run, read_run
from seeker.show.samples import Sample, choose, printable, read_samples
from seeker.show.terminal import COLOURS, print_run, render_run
from seeker.trajectories import encode_trajectories
from seeker.types import Author, Search, Span, StopReason, Trajectory
from tests.surface.fake_run import make_run

WORDS = ["Where is Ama? ", "<search>Ama</search>", "<information>Ama is in Velm</information>", "<answer>Velm</answer>"]


def shown(root: Path, samples: list[Sample] | None = None) -> str:
    output = io.StringIO()
    print_run(read_run(root), samples or [], Console(file=output, width=100, color_system=None))
    return output.getvalue()


def test_an_unfinished_run(tmp_path: Path) -> None:
    make_run(tmp_path, steps=3, planned=4)
    text = shown(tmp_path)
    assert "stopped before its end" in text
    assert "3 of 4" in text
    assert "0.625 [0.556, 0.689]" in text
    assert "rollout  3.00 s  75%" in text
    assert "birthplace" in text
    assert "Infrastructure events: none" in text


def test_a_finished_run_and_its_events(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=4, planned=4)
    run.events.record("call_retried", step=1)
    run.events.record("call_retried", step=2)
    text = shown(tmp_path)
    assert "finished" in text
    assert "call retried 2" in text


def test_a_run_that_just_began(tmp_path: Path) -> None:
    make_run(tmp_path, steps=0)
    text = shown(tmp_path)
    assert "0 of 4" in text
    assert "Seconds per step" not in text


def test_a_running_run_is_told_apart_and_not_locked_out(tmp_path: Path) -> None:
    make_run(tmp_path, steps=1)
    with writer_lock(tmp_path):
        assert read_run(tmp_path).state.startswith("running (process ")
    with writer_lock(tmp_path):
        pass


def test_wrong_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "laptop-7", steps=1)
    assert find_run("laptop-7") == Path("runs/laptop-7")
    with pytest.raises(RunDirectoryError, match="no such run, did you mean 'laptop-7'"):
        find_run("laptop7")
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        find_run(tmp_path)


def test_curves_stand_at_the_version_that_they_measure(tmp_path: Path) -> None:
    make_run(tmp_path, steps=3, reward=0.1)
    view = read_run(tmp_path)
    xs, ys = view.curve("reward/exact_match")
    assert (xs, ys) == ([0, 1, 2], pytest.approx([0.1, 0.2, 0.3]))
    assert view.curve("eval/exact_match") == ([0, 3], [0.125, 0.625])


def test_samples_are_decoded_with_the_runs_tokenizer(tmp_path: Path) -> None:
    samples = read_samples(_with_trajectories(tmp_path), str(tmp_path / "policy"), count=3)
    assert len(samples) == 3
    assert samples[0].parts == (
        (Author.USER, WORDS[0]),
        (Author.POLICY, WORDS[1]),
        (Author.ENVIRONMENT, WORDS[2]),
        (Author.POLICY, WORDS[3]),
    )
    assert samples[0].facts == "reward 1.00 · 1 search · answered · answer 'Velm'"
    assert "reward 0.00" in samples[-1].facts
    text = shown(tmp_path, samples)
    assert "000001/q0 #0" in text
    assert WORDS[2] in text


def test_authors_have_colours_of_their_own(tmp_path: Path) -> None:
    root = _with_trajectories(tmp_path)
    assert len(set(COLOURS.values())) == len(Author)
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True, color_system="standard")
    for part in render_run(read_run(root), read_samples(root, str(tmp_path / "policy"), 1), 100)[-1:]:
        console.print(part)
    assert f"\x1b[36m{WORDS[0]}\x1b[0m\x1b[32m{WORDS[1]}\x1b[0m\x1b[33m{WORDS[2]}\x1b[0m" in output.getvalue()


def test_a_step_without_trajectories_is_refused(tmp_path: Path) -> None:
    root = _with_trajectories(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"no trajectories of step 7 \(steps with trajectories: 0 to 1\)"):
        read_samples(root, str(tmp_path / "policy"), 3, step=7)
    assert len(read_samples(root, str(tmp_path / "policy"), 3, step=0)) == 3


def test_no_trajectories_yet(tmp_path: Path) -> None:
    make_run(tmp_path, steps=1)
    assert read_samples(tmp_path, "missing", 3) == []


def test_choose_spreads_over_rewards_and_questions() -> None:
    trajectories = [_trajectory(f"q{i // 4}", i % 4, reward=float(i % 4 == 0)) for i in range(20)]
    chosen = choose(trajectories, 3)
    assert [each.reward for each in chosen] == [1.0, 1.0, 0.0]
    assert len({each.group_id for each in chosen}) == 3
    assert len(choose(trajectories[:4], 3)) == 3
    assert choose([], 3) == []
    assert [each.reward for each in choose(trajectories, 1)] == [1.0]


@given(st.text())
def test_nothing_that_a_policy_writes_steers_the_terminal(text: str) -> None:
    assert all(each.isprintable() or each in "\n\t" for each in printable(text))


def test_page_and_picture(tmp_path: Path) -> None:
    make_run(tmp_path, steps=3)
    view = read_run(tmp_path)
    assert draw_picture(view).startswith(b"\x89PNG")
    page = render_page(view, [Sample("q <1>", "reward 1", ((Author.POLICY, "<script>alert(1)</script>"),))])
    assert "<script>" not in page
    assert '<span class="policy">&lt;script&gt;alert(1)&lt;/script&gt;</span>' in page
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "0.625 [0.556, 0.689]" in page


def test_the_command_writes_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _with_trajectories(tmp_path / "run")
    policy = tmp_path / "run" / "policy"
    (root / "run.json").write_text((root / "run.json").read_text().replace('"data/policy"', f'"{policy}"'))
    html, png = tmp_path / "r.html", tmp_path / "r.png"
    assert main(["show", str(root), "--html", str(html), "--png", str(png), "--trajectories", "2"]) == 0
    assert "Sample trajectories" in capsys.readouterr().out
    assert html.read_text().count("<pre>") == 2
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_plot_has_its_points_where_they_belong() -> None:
    marks = Series("m", xs=(0, 10), ys=(0.0, 1.0), colour="green", joined=False)
    grid = draw_curves([marks], width=20, height=5)
    assert grid.cells[4][0] == ("●", "green")
    assert grid.cells[0][19] == ("●", "green")
    assert grid.y_range == (0.0, 1.0)
    line = draw_curves([Series("l", (0, 1), (0.0, 0.4), "cyan")], width=10, height=4)
    assert line.y_range == (0.0, 0.5)
    assert all(any(character != " " for character, _ in column) for column in zip(*line.cells, strict=True))


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(allow_nan=True, width=32)), max_size=30))
def test_any_numbers_can_be_plotted(points: list[tuple[int, float]]) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    grid = draw_curves([Series("a", xs, ys, "cyan"), Series("b", xs, ys, "green", joined=False)], width=30, height=6)
    assert [len(row) for row in grid.cells] == [30] * 6


def _with_trajectories(root: Path) -> Path:
    make_run(root, steps=2)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.decoder = Fuse()
    (root / "policy").mkdir(exist_ok=True)
    tokenizer.save(str(root / "policy" / "tokenizer.json"))
    for step in range(2):
        folder = root / "steps" / f"{step:06d}" / "rollouts"
        folder.mkdir(parents=True)
        trajectories = [_trajectory(f"q{i // 2}", i % 2, float(i % 2 == 0), step) for i in range(8)]
        (folder / "call-000.parquet").write_bytes(encode_trajectories(trajectories))
    return root


def _trajectory(question: str, index: int, reward: float, step: int = 0) -> Trajectory:
    spans = (
        Span(Author.USER, np.array([0], np.int32)),
        Span(Author.POLICY, np.array([1], np.int32), np.zeros(1, np.float32), step),
        Span(Author.ENVIRONMENT, np.array([2], np.int32)),
        Span(Author.POLICY, np.array([3], np.int32), np.zeros(1, np.float32), step),
    )
    return Trajectory(
        question_id=question,
        group_id=f"{step:06d}/{question}",
        index=index,
        spans=spans,
        stop_reason=StopReason.ANSWERED,
        num_turns=2,
        num_malformed=0,
        num_forged_observations=0,
        searches=(Search("Ama", ("d1",)),),
        answer="Velm",
        reward=reward,
        reward_terms={"exact_match": reward},
    )
