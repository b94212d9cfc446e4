"""The ceiling report.

1. Per split: all kinds first, then each kind; shares over the questions for which they can be told.
2. Gold paragraphs are found by title; the answer as whole words, normalised as the reward does, yes and no left out.
3. Large splits are sampled by hash, and the row says how many were asked.
4. It comes back from its file as it was, and its table names k and the corpus size.
5. On real text it reports the numbers that the index is known to give.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import seeker.retrieval.ceiling as ceiling
from seeker.config import IndexConfig
from seeker.questions import load_questions
from seeker.retrieval.bm25 import Bm25Index, build_index
from seeker.retrieval.ceiling import CeilingRow, ceiling_report, ceiling_table, read_ceiling, write_ceiling
from seeker.types import Document, Passage, Question
from tests.data.samples import real_file

TEXTS = {"Ama": "Ama was directed by Iro Tal.", "Iro Tal": "Iro Tal was born in the Velm.", "Oru": "A region: no town."}


class ScriptedIndex:
    """Finds the documents whose titles the query holds, in the order of `TEXTS`."""

    def search(self, query: str, k: int) -> list[Passage]:
        found = [Document(title, title, text) for title, text in TEXTS.items() if title in query]
        return [Passage(document, 1.0) for document in found[:k]]

    def __len__(self) -> int:
        return len(TEXTS)


TRAIN = [
    Question("1", "Ama, Iro Tal?", ("The Velm!",), "bridge", ("Ama", "Iro Tal")),
    Question("2", "Ama?", ("Velm",), "bridge", ("Ama", "Iro Tal")),
    Question("3", "Oru?", ("no",), "comparison", ("Ama",)),
    Question("4", "Oru?", ("tow", "A Region"), "", ()),
]


def test_shares_are_counted_per_split_and_kind() -> None:
    seen: list[int] = []
    report = ceiling_report({"train": TRAIN, "heldout": TRAIN[1:2]}, ScriptedIndex(), 2, seen.append)
    assert (report.k, report.num_documents, seen) == (2, 3, [1, 2, 3, 4, 5])
    assert report.rows == (
        CeilingRow("train", "all", 4, 4, recall=0.5, gold_all=1 / 3, gold_any=2 / 3, answer=2 / 3),
        CeilingRow("train", "bridge", 2, 2, recall=0.75, gold_all=0.5, gold_any=1.0, answer=0.5),
        CeilingRow("train", "comparison", 1, 1, recall=0.0, gold_all=0.0, gold_any=0.0, answer=None),
        CeilingRow("heldout", "all", 1, 1, recall=0.5, gold_all=0.0, gold_any=1.0, answer=0.0),
        CeilingRow("heldout", "bridge", 1, 1, recall=0.5, gold_all=0.0, gold_any=1.0, answer=0.0),
    )


def test_k_bounds_what_is_looked_at() -> None:
    report = ceiling_report({"train": TRAIN[:1]}, ScriptedIndex(), 1)
    assert (report.rows[0].recall, report.rows[0].answer) == (0.5, 0.0)


def test_questions_without_gold_have_no_share() -> None:
    report = ceiling_report({"train": TRAIN[3:]}, ScriptedIndex(), 3)
    assert report.rows == (CeilingRow("train", "all", 1, 1, recall=None, gold_all=None, gold_any=None, answer=1.0),)


def test_large_splits_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "MAX_QUESTIONS", 10)
    many = [Question(str(number), "Ama?", ("Velm",), "bridge", ("Ama",)) for number in range(50)]
    report = ceiling_report({"train": many}, ScriptedIndex(), 1)
    assert [(row.num_asked, row.num_questions) for row in report.rows] == [(10, 50), (10, 50)]
    assert ceiling.sample(many) == ceiling.sample(list(reversed(many)))


def test_the_report_is_stored_and_shown(tmp_path: Path) -> None:
    report = ceiling_report({"train": TRAIN}, ScriptedIndex(), 2)
    write_ceiling(tmp_path / "ceiling.json", report)
    assert read_ceiling(tmp_path / "ceiling.json") == report
    written = io.StringIO()
    Console(width=120, file=written).print(ceiling_table(report))
    text = written.getvalue()
    assert "top 2 of 3 paragraphs" in text
    assert "33.3 %" in text


def test_real_text_gives_the_known_shares(tmp_path: Path) -> None:
    found = load_questions(real_file("hotpotqa_sample_300.jsonl"))
    index = Bm25Index.open(build_index(found.documents, IndexConfig(), tmp_path))
    whole = ceiling_report({"all": found.questions}, index, 3).rows[0]
    assert whole.gold_all == pytest.approx(0.40, abs=0.01)
    assert whole.gold_any == pytest.approx(0.933, abs=0.01)
    assert whole.gold_all is not None
    assert whole.gold_any is not None
    assert whole.recall == pytest.approx((whole.gold_all + whole.gold_any) / 2)  # two gold paragraphs each
    deeper = ceiling_report({"all": found.questions}, index, 10).rows[0]
    assert deeper.gold_all == pytest.approx(0.787, abs=0.01)
