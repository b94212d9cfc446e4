"""A fictional multi-hop world in HotpotQA's shape: people, towns, films, studios, years, spouses.

Training and held-out questions are about disjoint halves of it: no entity and no name is in both. The corpus is the
union of both halves. Two worlds of different seed may share a word by chance, never a fact on purpose.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from data.entities import Half, Sizes, make_half
from data.kinds import Plan, make_plans
from data.words import Pool
from seeker.types import Document, Question

CONTEXT_PARAGRAPHS = 10  # per record, as in HotpotQA's distractor setting


@dataclass(frozen=True, slots=True)
class World:
    """Example: ``generate_world(3)`` -> 1200 training questions, 600 held-out questions, 3140 documents."""

    train: list[Question]
    heldout: list[Question]
    documents: list[Document]


def generate_world(seed: int, num_train: int = 1200, num_heldout: int = 600, sizes: Sizes | None = None) -> World:
    """The world of `seed`; the same for the same arguments, always."""
    sizes = sizes or Sizes()
    halves = {pool: make_half(seed, pool, sizes) for pool in Pool}
    train = make_questions(seed, halves[Pool.TRAIN], num_train)
    heldout = make_questions(seed, halves[Pool.HELDOUT], num_heldout)
    documents = [document for half in halves.values() for document in half.documents]
    return World(train, heldout, documents)


def make_questions(seed: int, half: Half, count: int) -> list[Question]:
    """`count` questions about one half."""
    rng = random.Random(f"questions/{seed}/{half.pool}")
    plans = make_plans(half, rng, count)
    return [as_question(plan, f"w{seed}-{half.pool}-{number:05d}", seed) for number, plan in enumerate(plans)]


def as_question(plan: Plan, question_id: str, seed: int) -> Question:
    """The question that `plan` answers."""
    titles = tuple(dict.fromkeys(title for hop in plan.hops for title in hop.titles))
    return Question(question_id, plan.text, (plan.answer,), plan.kind, titles, f"world-{seed}")


def hotpotqa_records(questions: list[Question], documents: list[Document], seed: int = 0) -> list[dict[str, object]]:
    """The questions as HotpotQA records: gold paragraphs among distractors, which together cover the corpus."""
    rng = random.Random(f"context/{seed}")
    by_title = {document.title: document for document in documents}
    distractors = [document.title for document in documents]
    rng.shuffle(distractors)
    records: list[dict[str, object]] = []
    for number, question in enumerate(questions):
        missing = CONTEXT_PARAGRAPHS - len(question.supporting_titles)
        start = number * missing
        extra = [distractors[index % len(distractors)] for index in range(start, start + missing)]
        titles = list(dict.fromkeys([*question.supporting_titles, *extra]))
        rng.shuffle(titles)
        records.append(
            {
                "_id": question.id,
                "question": question.text,
                "answer": question.answers[0],
                "type": "comparison" if question.kind == "comparison" else "bridge",
                "kind": question.kind,
                "supporting_facts": [[title, 0] for title in question.supporting_titles],
                "context": [[title, [by_title[title].text]] for title in titles],
            }
        )
    return records
