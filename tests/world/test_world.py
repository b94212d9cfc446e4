"""The laptop world.

Pinned behaviour:
1. The same seed gives the same world; another seed another one.
2. No word that names a held-out entity is in any training half, of whatever seed, nor in a training question.
3. Every question's answer stands in the last document of its chain, and every hop's name in the one before.
4. At least five kinds; none is guessable: no answer makes up more than a few percent of its kind.
5. As HotpotQA records, the union of the contexts is the corpus.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from data.entities import Half, Sizes, make_half
from data.kinds import BRIDGE_KINDS, KINDS, make_plans
from data.words import Pool, pool_of
from data.world import World, generate_world, hotpotqa_records


@pytest.fixture(scope="module")
def world() -> World:
    return generate_world(11)


def names_of(half: Half) -> set[str]:
    return {word for document in half.documents for word in document.title.split()}


def test_a_world_depends_on_its_seed_alone(world: World) -> None:
    assert generate_world(11) == world
    other = generate_world(12)
    shared = {question.text for question in other.heldout} & {question.text for question in world.heldout}
    assert len(shared) < 0.05 * len(world.heldout)  # a word can be drawn in two worlds


def test_sizes(world: World) -> None:
    assert (len(world.train), len(world.heldout), len(world.documents)) == (1200, 600, 3140)
    assert len({question.id for question in world.train + world.heldout}) == 1800
    assert len({document.title for document in world.documents}) == len(world.documents)


def test_heldout_names_are_in_no_training_half_of_any_seed(world: World) -> None:
    heldout = names_of(make_half(11, Pool.HELDOUT, Sizes()))
    for seed in (11, 12, 13, 1000):
        assert heldout.isdisjoint(names_of(make_half(seed, Pool.TRAIN, Sizes())))
    assert all(pool_of(word) is Pool.HELDOUT for word in heldout)
    asked = {word.strip("?.,") for question in world.train for word in question.text.split()}
    assert heldout.isdisjoint(asked)


def test_the_chain_of_documents_leads_to_the_answer(world: World) -> None:
    texts = {document.title: document.text for document in world.documents}
    for question in world.train + world.heldout:
        first, last = question.supporting_titles[0], question.supporting_titles[-1]
        assert first in question.text
        assert any(question.answers[0] in texts[title] for title in (first, last))
        if question.kind in BRIDGE_KINDS:
            assert last in texts[first]
            assert question.answers[0] in texts[last]
            assert question.answers[0] not in question.text


def test_comparison_answers_with_the_director_of_the_earlier_film() -> None:
    half = make_half(3, Pool.TRAIN, Sizes())
    plans = [plan for plan in make_plans(half, random.Random(0), 100) if plan.kind == "comparison"]
    assert plans
    for plan in plans:
        early = min((half.films[title] for title in plan.hops[0].titles), key=lambda film: film.year)
        assert (plan.hops[0].found, plan.answer) == (early.title, early.director)


def test_kinds_are_many_and_not_guessable(world: World) -> None:
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for question in world.heldout:
        answers[question.kind][question.answers[0]] += 1
    assert set(answers) == set(KINDS)
    assert len(KINDS) >= 5
    for kind, counts in answers.items():
        assert counts.most_common(1)[0][1] / counts.total() < 0.15, kind
        assert abs(counts.total() / len(world.heldout) - KINDS[kind][1]) < 0.01


def test_hotpotqa_records_cover_the_corpus(world: World) -> None:
    records = hotpotqa_records(world.train + world.heldout, world.documents)
    covered: set[str] = set()
    for record, question in zip(records, world.train + world.heldout, strict=True):
        titles = [title for title, _ in record["context"]]  # type: ignore[union-attr]
        assert set(question.supporting_titles) <= set(titles)
        assert len(titles) == len(set(titles))
        covered.update(titles)
    assert covered == {document.title for document in world.documents}
