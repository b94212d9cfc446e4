"""The ceiling report: what one search with the question itself as the query brings within the top-k passages.

A policy that searches better than by repeating the question can rise above it; one that searches as well cannot.
Only the driver reads this module: polars carries the table.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import polars as pl
from rich.table import Table

from seeker.questions.text import unit_hash
from seeker.rewards import normalize_answer
from seeker.types import Passage, Question

SHARES = ("recall", "gold_all", "gold_any", "answer")
MAX_QUESTIONS = 2000  # per split, chosen by hash: the share is then known to about 1 point
ALL_KINDS = "all"
_CLOSED = frozenset({"yes", "no"})  # these strings are found anywhere, and tell nothing


class Searchable(Protocol):
    """What the report needs of an index."""

    def search(self, query: str, k: int) -> list[Passage]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CeilingRow:
    """One split and kind. A share is None where no question has gold paragraphs (or an answer worth looking for).

    Example: ``CeilingRow("heldout", "bridge", 120, 300, recall=0.66, gold_all=0.4, gold_any=0.93,
    answer=0.52)``.
    """

    split: str
    kind: str
    num_asked: int
    num_questions: int  # of which `num_asked` were asked
    recall: float | None  # mean share of a question's gold paragraphs that were found
    gold_all: float | None  # all gold paragraphs found
    gold_any: float | None  # one at least
    answer: float | None  # the answer's words found; yes and no are left out


@dataclass(frozen=True, slots=True)
class CeilingReport:
    """Rows per split: all kinds first, then each kind by name."""

    k: int
    num_documents: int
    rows: tuple[CeilingRow, ...]


def ceiling_report(
    splits: Mapping[str, Sequence[Question]],
    index: Searchable,
    k: int,
    progress: Callable[[int], None] | None = None,
) -> CeilingReport:
    """Ask the index every question (at most `MAX_QUESTIONS` per split) and count what its `k` passages hold."""
    found: list[dict[str, object]] = []
    for split, questions in splits.items():
        for question in sample(questions):
            found.append({"split": split} | _look(question, index.search(question.text, k)))
            if progress is not None:
                progress(len(found))
    sizes = Counter((split, question.kind) for split, questions in splits.items() for question in questions)
    return CeilingReport(k, len(index), tuple(_rows(pl.DataFrame(found, schema=_SCHEMA), sizes)))


_SCHEMA = {
    "split": pl.String,
    "kind": pl.String,
    "recall": pl.Float64,
    "gold_all": pl.Boolean,
    "gold_any": pl.Boolean,
    "answer": pl.Boolean,
}


def sample(questions: Sequence[Question]) -> list[Question]:
    """All questions, or `MAX_QUESTIONS` of them by a hash of their ids."""
    ranked = sorted(questions, key=lambda question: (unit_hash(0, "ceiling", question.id), question.id))
    return ranked[:MAX_QUESTIONS]


def _look(question: Question, passages: Sequence[Passage]) -> dict[str, object]:
    titles = {passage.document.title for passage in passages}
    gold = set(question.supporting_titles)
    return {
        "kind": question.kind,
        "recall": len(gold & titles) / len(gold) if gold else None,
        "gold_all": gold <= titles if gold else None,
        "gold_any": bool(gold & titles) if gold else None,
        "answer": _holds_answer(question, passages),
    }


def _holds_answer(question: Question, passages: Sequence[Passage]) -> bool | None:
    answers = [normalize_answer(answer) for answer in question.answers]
    if _CLOSED.issuperset(answers):
        return None
    texts = [f" {normalize_answer(f'{each.document.title}: {each.document.text}')} " for each in passages]
    return any(f" {answer} " in text for answer in answers for text in texts)


def _rows(found: pl.DataFrame, sizes: Mapping[tuple[str, str], int]) -> list[CeilingRow]:
    shares = [pl.len().alias("num_asked"), *(pl.col(name).mean() for name in SHARES)]
    per_kind = found.group_by("split", "kind", maintain_order=True).agg(shares).sort("kind", maintain_order=True)
    rows: list[CeilingRow] = []
    for split in dict.fromkeys(split for split, _ in sizes):
        whole = found.filter(pl.col("split") == split).select(*shares).row(0, named=True)
        total = sum(size for (owner, _), size in sizes.items() if owner == split)
        rows.append(CeilingRow(split, ALL_KINDS, num_questions=total, **whole))
        for row in per_kind.filter(pl.col("split") == split).iter_rows(named=True):
            kind = row.pop("kind")
            if kind:
                rows.append(CeilingRow(kind=kind, num_questions=sizes[split, kind], **row))
    return rows


def write_ceiling(path: Path, report: CeilingReport) -> str:
    """The report as JSON; returns the sha256 of the file."""
    data = json.dumps(asdict(report), indent=1, ensure_ascii=False).encode() + b"\n"
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def read_ceiling(path: Path) -> CeilingReport:
    """What `write_ceiling` wrote."""
    stored = json.loads(path.read_text("utf-8"))
    return CeilingReport(stored["k"], stored["num_documents"], tuple(CeilingRow(**row) for row in stored["rows"]))


def ceiling_table(report: CeilingReport) -> Table:
    """For the terminal."""
    table = Table(
        title=f"One search with the question as the query, top {report.k} of {report.num_documents} paragraphs"
    )
    for name in ("split", "kind"):
        table.add_column(name, no_wrap=True, min_width=max((len(getattr(row, name)) for row in report.rows), default=4))
    for name in ("questions", "gold recall", "all gold", "some gold", "answer string"):
        table.add_column(name, justify="right")
    for row in report.rows:
        size = f"{row.num_questions}" + ("" if row.num_asked == row.num_questions else f" (asked {row.num_asked})")
        shares = [_percent(getattr(row, name)) for name in SHARES]
        table.add_row(row.split, row.kind, size, *shares, style="bold" if row.kind == ALL_KINDS else "")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
