"""Training and held-out questions: the split by a seeded hash, limits, and the check that no question is in both."""

from __future__ import annotations

from dataclasses import replace

from seeker.errors import DataError
from seeker.questions.loading import QuestionSet
from seeker.questions.text import comparable, unit_hash
from seeker.types import Question


def split_questions(questions: QuestionSet, heldout_share: float, seed: int) -> tuple[QuestionSet, QuestionSet]:
    """(train, held-out) by a seeded hash of the id, so that a question's side never depends on its neighbours.

    A question with the same words as an earlier one follows it, else one text could land on both sides.
    Example: 1000 questions at ``heldout_share=0.2`` give about 800 and 200.
    """
    leader: dict[str, str] = {}
    sides: list[bool] = []
    for question in questions.questions:
        identity = leader.setdefault(comparable(question.text), question.id)
        sides.append(unit_hash(seed, "split", identity) < heldout_share)
    train, heldout = _keep(questions, [not side for side in sides]), _keep(questions, sides)
    if not train.questions or not heldout.questions:
        raise DataError(
            f"{questions.name}: a held-out share of {heldout_share} of {len(sides)} questions leaves "
            f"{len(train.questions)} for training and {len(heldout.questions)} held out; both need one at least: "
            "change questions.heldout_share or name a held-out file (questions.heldout)"
        )
    return train, heldout


def limit_questions(questions: QuestionSet, limit: int | None, seed: int) -> QuestionSet:
    """At most `limit` questions, chosen by a seeded hash of the id, in their old order; the documents stay whole."""
    if limit is None or limit >= len(questions.questions):
        return questions
    ranked = sorted(questions.questions, key=lambda question: (unit_hash(seed, "limit", question.id), question.id))
    chosen = {question.id for question in ranked[:limit]}
    return _keep(questions, [question.id in chosen for question in questions.questions])


def check_splits(train: QuestionSet, heldout: QuestionSet) -> None:
    """Refuse a question (same id, or same words) that is in both splits: its score would be no measure."""
    ids = {question.id: at for at, question in enumerate(train.questions)}
    texts = {comparable(question.text): at for at, question in enumerate(train.questions)}
    shared: list[str] = []
    for question, place in zip(heldout.questions, heldout.places, strict=True):
        at = ids.get(question.id)
        why = "same id" if at is not None else "same words"
        at = texts.get(comparable(question.text)) if at is None else at
        if at is not None:
            shared.append(_shared(train, at, question, f"{place}", why))
    if shared:
        more = "" if len(shared) == 1 else f" (and {len(shared) - 1} more)"
        raise DataError(f"{shared[0]}{more}; remove it from one of the two")


def _shared(train: QuestionSet, at: int, question: Question, place: str, why: str) -> str:
    return f"question {question.id!r} is in both splits: {train.places[at]} (training) and {place} (held out), {why}"


def _keep(questions: QuestionSet, mask: list[bool]) -> QuestionSet:
    kept = [at for at, keep in enumerate(mask) if keep]
    return replace(
        questions,
        questions=[questions.questions[at] for at in kept],
        places=[questions.places[at] for at in kept],
    )
