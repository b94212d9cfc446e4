"""Demonstrations: right in form, wrong in substance by set shares.

Pinned behaviour:
1. Every policy turn, clean or noisy, is a well-formed search or answer, and the last turn alone answers.
2. Clean demonstrations end with the right answer after as many searches as the question has hops.
3. Noise is wrong where it says so: an early stop answers with the bridge entity, no search searches nothing.
4. No held-out name is in any demonstration: prompts, passages and policy turns hold words of the training pool only.
5. Prompt and observations are rendered as the laptop preset renders them, and have the ids of a rollout.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from data.demonstrations import CLEAN, Demonstrator, Noise, Segment, Texts, facts_of
from data.entities import Half, Sizes, make_half
from data.kinds import TWO_HOP_KINDS, Plan, make_plans
from data.starting_policy import NOISE, TOP_K, searcher
from data.words import Pool, pool_of
from seeker.actions import AnswerAction, SearchAction, parse_action
from seeker.observations import render_observation
from seeker.presets import load_config, project_root
from seeker.prompt import build_prompt
from seeker.retrieval.bm25 import Bm25Index, build_index
from seeker.tools import SearchTool
from seeker.types import Author, FinishReason, Question

NAME = re.compile(r"\b[A-Z][a-z]+\b")
ENGLISH = {"In", "What", "Where", "Which", "Who", "To"}  # the questions' own capitals


@pytest.fixture(scope="module")
def half() -> Half:
    return make_half(77, Pool.TRAIN, Sizes())


@pytest.fixture(scope="module")
def plans(half: Half) -> list[Plan]:
    return make_plans(half, random.Random(1), 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


def write(half: Half, plans: list[Plan], folder: Path, noise: Noise) -> list[list[Segment]]:
    demonstrator = Demonstrator(half, searcher(half, folder), noise, random.Random(2))
    return [demonstrator.write(plan) for plan in plans]


def actions(segments: list[Segment]) -> list[SearchAction | AnswerAction]:
    found = [parse_action(one.text, FinishReason.STOP) for one in segments if one.author is Author.POLICY]
    assert all(isinstance(action, SearchAction | AnswerAction) for action in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("noise", [CLEAN, NOISE])
def test_form_is_always_right(half: Half, plans: list[Plan], folder: Path, noise: Noise) -> None:
    for segments in write(half, plans, folder, noise):
        *searches, answer = actions(segments)
        assert isinstance(answer, AnswerAction)
        assert all(isinstance(search, SearchAction) for search in searches)


def test_clean_demonstrations_are_right(half: Half, plans: list[Plan], folder: Path) -> None:
    for plan, segments in zip(plans, write(half, plans, folder, CLEAN), strict=True):
        found = actions(segments)
        assert found[-1] == AnswerAction(plan.answer)
        assert [action.query for action in found[:-1]] == [hop.query for hop in plan.hops]  # type: ignore[union-attr]


def test_each_noise_is_wrong_in_its_way(half: Half, plans: list[Plan], folder: Path) -> None:
    bridges = [plan for plan in plans if plan.kind in TWO_HOP_KINDS]
    for plan, segments in zip(bridges, write(half, bridges, folder, Noise(stop_early=1.0)), strict=True):
        assert actions(segments)[1:] == [AnswerAction(plan.hops[0].found)]
    for segments in write(half, plans, folder, Noise(no_search=1.0)):
        assert len(actions(segments)) == 1
    for plan, segments in zip(bridges, write(half, bridges, folder, Noise(wrong_fact=1.0)), strict=True):
        answer = actions(segments)[-1]
        assert isinstance(answer, AnswerAction)
        assert answer.text in dict(facts_of(half, plan.hops[1].titles[0])).values()
        assert answer.text != plan.answer


def test_noise_leaves_some_right_and_most_wrong(half: Half, plans: list[Plan], folder: Path) -> None:
    demonstrations = write(half, plans, folder, NOISE)
    right = [actions(one)[-1] == AnswerAction(plan.answer) for plan, one in zip(plans, demonstrations, strict=True)]
    assert 0.1 < sum(right) / len(right) < 0.4


def test_no_heldout_name_is_in_a_demonstration(half: Half, plans: list[Plan], folder: Path) -> None:
    for segments in write(half, plans, folder, NOISE):
        names = {name for segment in segments for name in NAME.findall(segment.text)} - ENGLISH
        assert names
        assert all(pool_of(name) is Pool.TRAIN for name in names)


def test_texts_are_those_of_the_preset() -> None:
    config, texts = load_config("laptop", []), Texts()
    for name in ("user", "passage", "passage_separator", "observation", "no_passages"):
        assert getattr(config.prompt, name) == getattr(texts, name), name
    assert (config.rollout.top_k, config.prompt.style, config.prompt.system) == (TOP_K, "plain", "")


def test_a_rollout_shows_the_same_ids(half: Half, plans: list[Plan], folder: Path) -> None:
    config = load_config("laptop", [])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(project_root() / config.policy.path)
    index = Bm25Index.open(build_index(half.documents, config.index, folder))
    tool = SearchTool(index, config.rollout.top_k, config.prompt.passage)
    for plan, segments in zip(plans[:40], write(half, plans[:40], folder, NOISE), strict=True):
        ids = [tokenizer.encode(segment.text, add_special_tokens=False) for segment in segments]
        prompt = build_prompt(Question("q", plan.text, (plan.answer,)), config.prompt, tokenizer)
        assert [span.token_ids.tolist() for span in prompt] == [ids[0]]
        queries = [action.query for action in actions(segments) if isinstance(action, SearchAction)]
        shown = [one for one, segment in zip(ids, segments, strict=True) if segment.author is Author.ENVIRONMENT]
        for query, expected in zip(queries, shown, strict=True):
            found = render_observation(tool(query), config.prompt, tokenizer, config.rollout.max_observation_tokens)
            assert found.token_ids.tolist() == expected
            assert not found.is_cut
