"""Mixing, splitting and limiting.

1.  A split depends on id and seed alone: the share holds, a further question moves none of the others.
2.  Questions with the same words fall on the same side.
3.  A limit takes a fixed subset, in order, and a larger limit only adds to it.
4.  A question in both splits (same id, or same words) is an error that names both places.
5.  Shares are positive and finite; a mix has them, as large as its sources allow, the same for a seed, and told.
6.  Questions and documents come back from their files as they were; equal content gives equal bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seeker.errors import ConfigError, DataError
from seeker.presets import load_config
from seeker.questions import (
    QuestionSet,
    Share,
    check_splits,
    corpus_digest,
    limit_questions,
    mix_sources,
    read_documents,
    read_questions,
    split_questions,
    write_documents,
    write_questions,
)
from seeker.questions.fields import Place
from seeker.types import Document, Question


def question_set(name: str, size: int, start: int = 0) -> QuestionSet:
    numbers = range(start, start + size)
    questions = [Question(f"{name}{number}", f"What is {name} number {number}?", (f"a{number}",)) for number in numbers]
    return QuestionSet(name, questions, [Place(f"{name}.jsonl", number + 1) for number in numbers])


def ids(questions: QuestionSet) -> list[str]:
    return [question.id for question in questions.questions]


def test_the_split_depends_on_id_and_seed_alone() -> None:
    train, heldout = split_questions(question_set("q", 2000), 0.2, seed=0)
    assert 340 <= len(heldout.questions) <= 460
    assert sorted(ids(train) + ids(heldout)) == sorted(ids(question_set("q", 2000)))
    assert ids(split_questions(question_set("q", 2000), 0.2, seed=1)[1]) != ids(heldout)
    part = split_questions(question_set("q", 1000, start=1000), 0.2, seed=0)[1]
    assert ids(part) == [each for each in ids(heldout) if int(each[1:]) >= 1000]
    assert [str(place) for place in heldout.places] == [f"q.jsonl:{int(each[1:]) + 1}" for each in ids(heldout)]


def test_equal_words_fall_on_one_side() -> None:
    questions = [Question(f"q{number}", f"What,  is number {number % 50}?", ("a",)) for number in range(200)]
    whole = QuestionSet("q", questions, [Place("q.jsonl", number + 1) for number in range(200)])
    train, heldout = split_questions(whole, 0.3, seed=4)
    check_splits(train, heldout)
    assert len(train.questions) % 4 == 0


def test_a_split_that_leaves_a_side_empty_is_refused() -> None:
    with pytest.raises(DataError, match="leaves 3 for training and 0 held out"):
        split_questions(question_set("q", 3), 0.0, seed=0)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 5))
def test_limits_are_nested_and_in_order(smaller: int, larger: int, seed: int) -> None:
    smaller, larger = sorted((smaller, larger))
    whole = question_set("q", 50)
    few, many = limit_questions(whole, smaller, seed), limit_questions(whole, larger, seed)
    assert len(few.questions) == min(smaller, 50)
    assert set(ids(few)) <= set(ids(many))
    assert ids(few) == [each for each in ids(whole) if each in set(ids(few))]
    assert limit_questions(whole, None, seed) is whole


@pytest.mark.parametrize(
    ("heldout", "why"),
    [
        (Question("q3", "Something else?", ("a",)), "same id"),
        (Question("other", "what is Q number 3", ("a",)), "same words"),
    ],
)
def test_a_question_in_both_splits_names_both_places(heldout: Question, why: str) -> None:
    train = question_set("q", 5)
    check_splits(train, question_set("h", 5))
    both = QuestionSet("h", [heldout], [Place("h.jsonl", 9)])
    with pytest.raises(DataError, match=rf"q.jsonl:4 \(training\) and h.jsonl:9 \(held out\), {why}; remove it"):
        check_splits(train, both)


@pytest.mark.parametrize("share", ["0", "-1", "nan", "inf", "1e400"])
def test_shares_are_positive_finite_numbers(share: str) -> None:
    with pytest.raises(ConfigError, match=r"--questions: field 'questions.sources.0.share': value "):
        load_config("laptop", [], questions=[f"a.jsonl={share}", "b.jsonl"])


def test_a_mix_has_the_shares_and_says_what_it_took() -> None:
    sources = [Share("nq", 2.0, question_set("n", 500)), Share("hotpot", 1.0, question_set("h", 90))]
    mix = mix_sources(sources, seed=0)
    assert mix.counts == {"nq": (180, 500), "hotpot": (90, 90)}
    found = mix.questions.questions
    assert [sum(each.source == name for each in found) for name in ("nq", "hotpot")] == [180, 90]
    assert all(each.id.startswith(f"{each.source}/") for each in found)
    assert len({each.id for each in found}) == 270
    assert 30 < sum(each.source == "hotpot" for each in found[:135]) < 60  # mixed, not one after the other
    assert mix_sources(sources, seed=0) == mix
    assert ids(mix_sources(sources, seed=1).questions) != ids(mix.questions)


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0])), min_size=2, max_size=4))
def test_a_mix_uses_up_the_source_that_runs_out_first(parts: list[tuple[int, float]]) -> None:
    sources = [Share(f"s{at}", share, question_set(f"s{at}-", size)) for at, (size, share) in enumerate(parts)]
    taken = [mix_sources(sources, seed=0).counts[source.name] for source in sources]
    assert any(took == of for took, of in taken)
    assert all(1 <= took <= of for took, of in taken)
    scale = min(size / share for size, share in parts)
    assert all(abs(took - scale * share) < 1.001 for (took, _), (_, share) in zip(taken, parts, strict=True))


def test_rounding_takes_no_question_away() -> None:
    sources = [Share("few", 0.7, question_set("f", 3)), Share("many", 0.7, question_set("m", 9))]  # 3 / 0.7 * 0.7 < 3
    assert mix_sources(sources, seed=0).counts == {"few": (3, 3), "many": (3, 9)}


def test_one_source_comes_back_as_it_is_and_names_must_differ() -> None:
    only = question_set("q", 7)
    assert mix_sources([Share("q", 0.3, only)], seed=0).questions is only
    with pytest.raises(ConfigError, match="'q' is used twice"):
        mix_sources([Share("q", 1.0, only), Share("q", 1.0, only)], seed=0)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=2)), max_size=4))
def test_files_of_ours_give_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, list[str]]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("files")
    questions = [Question(one, two, tuple(more), one, tuple(more), two) for one, two, more in rows]
    documents = [Document(one, two, one) for one, two, _ in rows]
    digest = write_questions(folder / "q.jsonl", questions)
    assert digest == write_questions(folder / "again.jsonl", questions)
    assert read_questions(folder / "q.jsonl") == questions
    write_documents(folder / "d.jsonl", documents)
    assert read_documents(folder / "d.jsonl") == documents


def test_foreign_files_are_told_from_ours(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1"}\n', encoding="utf-8")
    for read in (read_questions, read_documents):
        with pytest.raises(DataError, match="run `seeker prepare`"):
            read(tmp_path / "a.jsonl")
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / "missing.jsonl")


def test_the_corpus_digest_sees_order_and_borders() -> None:
    one, two = Document("1", "ab", "c"), Document("1", "a", "bc")
    assert corpus_digest([one]) != corpus_digest([two])
    assert corpus_digest([one, two]) != corpus_digest([two, one])
