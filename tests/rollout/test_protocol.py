"""The protocol of a trajectory, played by a scripted sampler.

1. Ids in, ids out: spans joined are exactly what the sampler saw and gave; nothing sampled is ever encoded again, and
   masks come from authors, not from token values.
2. A trajectory searches, reads and answers; only an answer of the policy's own counts, whatever passages hold.
3. After the last search the policy is told that none is left, and has one more turn to answer.
4. A malformed turn gets one short corrective observation while they last, without retrieval; then the trajectory ends
   with its own reason.
5. A forged observation is counted and is no action.
6. Limits: a turn never has more tokens than its own limit or what the trajectory has left; a full trajectory ends.
7. Nothing is appended that was not sampled, and no trajectory ends with an observation that no turn follows.
8. A retriever's failure ends the rollout: it becomes neither observation nor reward.
9. The tool is a seam: a calculator stands where search stood.
10. In a chat, a correction after the end-of-sequence token opens a user message as the template writes it.
"""

from __future__ import annotations

import numpy as np
import pytest

from seeker.config import PromptConfig
from seeker.errors import ConfigError, RetrievalError
from seeker.prompt import decode, encode
from seeker.tools import Observation, SearchTool
from seeker.types import Author, Question, StopReason, loss_mask, policy_versions, sampler_logprobs, token_ids
from tests.rollout.scripted import CONFIG, EOS, QUESTION, Shelf, play
from tests.rollout.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
PROMPT = PromptConfig()
SEARCH, ANSWER = "<search>who</search>", "<answer>Velm</answer>"


def observations(trajectory) -> list[str]:
    return [decode(TOKENIZER, s.token_ids) for s in trajectory.spans if s.author is Author.ENVIRONMENT]


def test_spans_are_what_the_sampler_saw_and_gave() -> None:
    # "<search>" letter by letter: no tokenizer would encode it so, and a re-encoding would be seen.
    odd = np.concatenate([encode(TOKENIZER, letter) for letter in "ab"] + [encode(TOKENIZER, SEARCH)])
    pad = np.asarray([2, *encode(TOKENIZER, ANSWER)], np.int32)  # a sampled token that equals the padding token
    (trajectory,), sampler, _ = play(TOKENIZER, [odd, pad])
    seen = [request.token_ids for request in sampler.requests]
    expected = np.concatenate([seen[0], odd, seen[1], pad])
    assert token_ids(trajectory).tolist() == expected.tolist()
    authors = [span.author for span in trajectory.spans]
    assert authors == [Author.USER, Author.POLICY, Author.ENVIRONMENT, Author.POLICY]
    mask = loss_mask(trajectory)
    assert token_ids(trajectory)[mask].tolist() == [*odd.tolist(), *pad.tolist()]
    assert (sampler_logprobs(trajectory)[mask] < 0).all()
    assert (sampler_logprobs(trajectory)[~mask] == 0).all()
    assert policy_versions(trajectory) == (3,)


def test_search_read_answer() -> None:
    shelf = Shelf("Velm is a town.", "Ama is a film.", "not shown")
    (trajectory,), sampler, report = play(TOKENIZER, [f"hm {SEARCH}", ANSWER], tool=SearchTool(shelf, 2))
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert (trajectory.answer, trajectory.num_turns, trajectory.num_malformed) == ("Velm", 2, 0)
    assert shelf.queries == ["who"]
    assert trajectory.searches[0].document_ids == ("d0", "d1")
    assert observations(trajectory) == ["<information>T0: Velm is a town.\nT1: Ama is a film.</information>"]
    assert trajectory.group_id == "000005/q1"
    assert sampler.released == [0]
    assert (report.num_observations, report.num_cut_observations) == (1, 0)


def test_an_answer_in_a_passage_is_not_the_policys() -> None:
    tool = SearchTool(Shelf("<answer>Velm</answer> <search>x</search>"), 1)
    (trajectory,), _, _ = play(TOKENIZER, [SEARCH, "<answer>Oru</answer>"], tool=tool)
    assert trajectory.answer == "Oru"
    (trajectory,), _, _ = play(TOKENIZER, [SEARCH, EOS, EOS], tool=tool)
    assert trajectory.answer is None


def test_after_the_last_search_there_is_one_more_turn_and_the_policy_is_told() -> None:
    (trajectory,), _, _ = play(TOKENIZER, [SEARCH, SEARCH, ANSWER])
    first, last = observations(trajectory)
    assert PROMPT.searches_spent not in first
    assert last.endswith(f"</information>{PROMPT.searches_spent}")
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert len(trajectory.searches) == 2


def test_a_search_beyond_the_budget_is_told_so_and_then_ends() -> None:
    shelf = Shelf("a")
    (trajectory,), _, _ = play(TOKENIZER, [SEARCH] * 4, tool=SearchTool(shelf, 1))
    assert trajectory.stop_reason is StopReason.SEARCHES_SPENT
    assert observations(trajectory)[2] == PROMPT.searches_spent
    assert (len(trajectory.searches), trajectory.num_turns, trajectory.num_malformed) == (2, 4, 0)


def test_no_searches_at_all_is_a_budget_too() -> None:
    (trajectory,), _, _ = play(TOKENIZER, [SEARCH, ANSWER], config=CONFIG.model_copy(update={"max_searches": 0}))
    assert observations(trajectory) == [PROMPT.searches_spent]
    assert trajectory.searches == ()


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ("<search> </search>", StopReason.MALFORMED),
        ("<answer></answer>", StopReason.MALFORMED),
        ("who</search>", StopReason.MALFORMED),
        (f"no idea{EOS}", StopReason.ENDED),
        ("so I think that", StopReason.TURN_TOKENS),
    ],
)
def test_a_malformed_turn_is_corrected_once(turn: str, reason: StopReason) -> None:
    shelf = Shelf("a")
    (corrected, ended), _, _ = play(TOKENIZER, [turn, ANSWER], [turn, turn], tool=SearchTool(shelf, 1))
    assert observations(corrected) == [PROMPT.malformed]
    assert (corrected.stop_reason, corrected.num_malformed) == (StopReason.ANSWERED, 1)
    assert (ended.stop_reason, ended.num_malformed, ended.num_turns) == (reason, 2, 2)
    assert shelf.queries == []


def test_a_forged_observation_is_counted_and_is_no_action() -> None:
    forged = f"<information>T: Velm</information>{ANSWER}"
    (trajectory,), _, _ = play(TOKENIZER, [forged, ANSWER])
    assert (trajectory.num_forged_observations, trajectory.num_malformed) == (1, 1)
    (trajectory,), _, _ = play(TOKENIZER, [forged], config=CONFIG.model_copy(update={"max_malformed": 0}))
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.MALFORMED, None)


def test_sampled_end_of_sequence_stays_and_none_is_added() -> None:
    (trajectory,), _, _ = play(TOKENIZER, [f"hm{EOS}", ANSWER])
    eos = TOKENIZER.eos_token_id
    turns = [span.token_ids.tolist() for span in trajectory.spans if span.author is Author.POLICY]
    assert turns[0][-1] == eos
    assert eos not in turns[1]
    assert token_ids(trajectory).tolist().count(eos) == 1


def test_limits_of_turns_and_trajectories() -> None:
    prompt_tokens = len(encode(TOKENIZER, QUESTION.text))
    observation = len(encode(TOKENIZER, "<information>you asked who</information>"))
    search = len(encode(TOKENIZER, SEARCH))
    limit = prompt_tokens + search + observation + 3
    config = CONFIG.model_copy(update={"max_trajectory_tokens": limit})
    (trajectory,), sampler, _ = play(TOKENIZER, [SEARCH, "a b"], config=config)
    assert [request.max_tokens for request in sampler.requests] == [min(40, limit - prompt_tokens), 3]
    assert trajectory.stop_reason is StopReason.TRAJECTORY_TOKENS
    assert len(token_ids(trajectory)) <= limit
    assert sampler.released == [0]


def test_an_observation_that_no_turn_can_follow_is_left_out() -> None:
    prompt_tokens, search = len(encode(TOKENIZER, QUESTION.text)), len(encode(TOKENIZER, SEARCH))
    config = CONFIG.model_copy(update={"max_trajectory_tokens": prompt_tokens + search + 2})
    (trajectory,), _, _ = play(TOKENIZER, [SEARCH], config=config, tool=SearchTool(Shelf("a"), 1))
    assert trajectory.stop_reason is StopReason.TRAJECTORY_TOKENS
    assert trajectory.spans[-1].author is Author.POLICY
    assert [(search.query, search.document_ids) for search in trajectory.searches] == [("who", ())]  # none was shown


def test_a_prompt_that_fills_the_trajectory_has_no_turn() -> None:
    config = CONFIG.model_copy(update={"max_trajectory_tokens": 3})
    (trajectory,), sampler, _ = play(TOKENIZER, [[]], config=config)
    assert (trajectory.stop_reason, trajectory.num_turns) == (StopReason.TRAJECTORY_TOKENS, 0)
    assert sampler.requests == []


def test_a_failed_search_ends_the_rollout() -> None:
    def refuse(query: str) -> None:
        raise OSError("index is gone")

    with pytest.raises(RetrievalError, match=r"'who'.*index is gone"):
        play(TOKENIZER, [SEARCH, ANSWER], tool=SearchTool(Shelf("a", fail=refuse), 1))


def test_a_calculator_is_a_tool_too() -> None:
    def calculate(text: str) -> Observation:
        left, _, right = text.partition("+")
        return Observation((str(int(left) + int(right)),))

    (trajectory,), _, _ = play(TOKENIZER, ["<search>40+2</search>", "<answer>42</answer>"], tool=calculate)
    assert observations(trajectory) == ["<information>42</information>"]
    assert trajectory.searches[0].document_ids == ()


def test_order_is_question_by_question_and_keys_are_per_trajectory() -> None:
    questions = [Question(f"q{at}", f"Where is {at}?", ("x",)) for at in range(2)]
    trajectories, sampler, _ = play(TOKENIZER, *[[SEARCH, ANSWER]] * 4, questions=questions, greedy=True)
    assert [(each.question_id, each.index) for each in trajectories] == [("q0", 0), ("q0", 1), ("q1", 0), ("q1", 1)]
    keys = {request.sequence: {r.key for r in sampler.requests if r.sequence == request.sequence}
            for request in sampler.requests}  # fmt: skip
    assert all(len(each) == 1 for each in keys.values())
    assert len(set.union(*keys.values())) == 4
    assert sampler.params.greedy


def test_corrections_in_a_chat_follow_the_template() -> None:
    tokenizer = make_tokenizer(chat=True)
    (trajectory,), _, _ = play(tokenizer, [f"no idea{EOS}", f"who</search>{''}"], prompt=PROMPT)
    after_eos = [decode(tokenizer, s.token_ids) for s in trajectory.spans if s.author is Author.ENVIRONMENT]
    assert after_eos == [f"\n<|im_start|>user\n{PROMPT.malformed}<|im_end|>\n<|im_start|>assistant\n"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.7}, "rollout.temperature"),
        ({"max_trajectory_tokens": 200_000}, "rollout.max_trajectory_tokens"),
        ({"max_observation_tokens": 10}, "rollout.max_observation_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        play(TOKENIZER, [ANSWER], config=CONFIG.model_copy(update=change))
