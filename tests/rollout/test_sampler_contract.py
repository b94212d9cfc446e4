"""What every sampler must do; an engine joins by an entry in `ENGINES`.

1. A turn's ids, log-probs and text belong together: log-probs are those of a plain full forward pass over the whole
   sequence at the sampling temperature, in the first turn and in later ones.
2. A turn ends with the token that completes a stop string, whether the tokenizer spells it with one token or more; the
   text is cut right after the string. It ends with a sampled end-of-sequence token, which is kept, or at its limit.
3. The same call gives the same bytes. What a sequence samples depends on its key, its tokens and the policy, not on
   the sequences beside it, their number or their order.
4. Greedy takes the most likely token and no key changes it.
5. More sequences than places: all are served, first come first served.
6. A new call knows nothing of the one before; a new policy version uses nothing computed with the old one.
7. A prompt that sequences share is prefilled once; later turns prefill only what is new.
8. Tokens come as often as the policy says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from seeker.actions import STOP_STRINGS
from seeker.engines.sampler import SampleParams, Sampler, SampleRequest, sequence_key
from seeker.engines.torch_sampler import TorchSampler
from seeker.prompt import decode, encode
from seeker.types import Completion, FinishReason, TokenIds
from tests.rollout.tiny import make_model, make_talker, make_tokenizer

TOKENIZER = make_tokenizer()
TALKER = make_talker(TOKENIZER)
ENGINES: dict[str, tuple[Callable[..., Sampler], float]] = {"torch": (TorchSampler, 1e-4)}
FREE = SampleParams(stop_strings=())


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> tuple[Callable[..., Sampler], float]:
    return ENGINES[request.param]


@pytest.fixture
def make(engine: tuple[Callable[..., Sampler], float]) -> Callable[..., Sampler]:
    def build(model: PreTrainedModel = TALKER, tokenizer=TOKENIZER, **settings) -> Sampler:
        return engine[0](model, tokenizer, **{"slots": 4, "max_length": 200, **settings})

    return build


def ask(sequence: int, ids: TokenIds, max_tokens: int = 12, name: str | None = None) -> SampleRequest:
    return SampleRequest(sequence, ids, max_tokens, sequence_key(0, 0, name or f"s{sequence}", 0))


def first_turns(sampler: Sampler, requests: list[SampleRequest], params: SampleParams = FREE) -> dict[int, Completion]:
    """One turn for each request."""
    sampler.open(params)
    for request in requests:
        sampler.submit(request)
    ended: dict[int, Completion] = {}
    while len(ended) < len(requests):
        for sequence, completion in sampler.collect():
            ended[sequence] = completion
            sampler.release(sequence)
    return ended


def full_logprobs(model: PreTrainedModel, ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Log-prob of every token but the first, by one plain forward pass. Shape [T - 1]."""
    row = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(row).logits[0].float() / temperature, -1)
    return logprobs[:-1].gather(1, row[0, 1:, None])[:, 0].numpy()


def prompt_of(length: int, seed: int = 0) -> TokenIds:
    return np.random.default_rng(seed).integers(20, 300, length).astype(np.int32)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_full_forward_pass(engine, make, kind: str, temperature: float) -> None:
    model = make_model(kind, len(TOKENIZER))
    sampler = make(model, temperature=temperature)
    sampler.open(FREE)
    history = {at: prompt_of(5 + 9 * at, seed=at) for at in range(6)}
    policy = {at: np.zeros(len(history[at]), np.bool_) for at in history}
    scored = {at: np.zeros(len(history[at]), np.float32) for at in history}
    turns = dict.fromkeys(history, 0)
    for at, ids in history.items():
        sampler.submit(ask(at, ids, 5 + at))
    while min(turns.values()) < 3:
        for at, completion in sampler.collect():
            turns[at] += 1
            observation = prompt_of(1 + 7 * (at % 3), seed=100 + at)
            appended = observation if turns[at] < 3 else observation[:0]
            history[at] = np.concatenate([history[at], completion.token_ids, appended])
            policy[at] = np.concatenate([policy[at], np.ones(len(completion.token_ids), np.bool_), appended < 0])
            scored[at] = np.concatenate([scored[at], completion.logprobs, 0.0 * appended]).astype(np.float32)
            if turns[at] < 3:
                sampler.submit(ask(at, observation, 4))
            else:
                sampler.release(at)
    for at, ids in history.items():
        expected = full_logprobs(model, ids, temperature)
        mask = policy[at][1:]
        assert mask.sum() == 5 + at + 4 + 4
        assert np.abs(expected - scored[at][1:])[mask].max() < engine[1]


def test_stop_of_one_token(make) -> None:
    ended = first_turns(make(), [ask(at, prompt_of(6), 100) for at in range(8)], SampleParams(STOP_STRINGS))
    stops = [completion for completion in ended.values() if completion.finish is FinishReason.STOP]
    assert len(stops) >= 4
    for completion in stops:
        assert completion.text == decode(TOKENIZER, completion.token_ids)
        assert completion.text.endswith(STOP_STRINGS)
        assert sum(completion.text.count(stop) for stop in STOP_STRINGS) == 1


def test_stop_of_several_tokens_ends_at_the_token_that_completes_it(make) -> None:
    tokenizer = make_tokenizer(tags=False)
    # "</>" is spelled "<", "/", ">" or with a last token that goes past the string.
    past = next(token for token in ("><", ">.") if token in tokenizer.get_vocab())
    shares = {"<": 0.3, "/": 0.3, ">": 0.1, past: 0.1, "a": 0.2}
    model = make_talker(tokenizer, shares)
    ended = first_turns(make(model, tokenizer), [ask(at, prompt_of(6), 150) for at in range(8)], SampleParams(("</>",)))
    texts = {at: decode(tokenizer, completion.token_ids) for at, completion in ended.items()}
    assert any(text.endswith(past) for text in texts.values())
    assert any(text.endswith("</>") for text in texts.values())
    for at, completion in ended.items():
        assert completion.finish is FinishReason.STOP
        assert completion.text.endswith("</>")
        assert completion.text.count("</>") == 1
        assert texts[at].startswith(completion.text)
        assert "</>" not in decode(tokenizer, completion.token_ids[:-1])


def test_end_of_sequence_is_kept_and_limits_are_exact(make) -> None:
    model = make_talker(TOKENIZER, {"<|im_end|>": 0.1, "a": 0.9})
    ended = first_turns(make(model), [ask(at, prompt_of(6), 8) for at in range(12)])
    for completion in ended.values():
        eos_at = np.flatnonzero(completion.token_ids == TOKENIZER.eos_token_id)
        if completion.finish is FinishReason.EOS:
            assert eos_at.tolist() == [len(completion.token_ids) - 1]
        else:
            assert completion.finish is FinishReason.LENGTH
            assert (len(completion.token_ids), len(eos_at)) == (8, 0)
    assert {completion.finish for completion in ended.values()} == {FinishReason.EOS, FinishReason.LENGTH}


def same(left: Completion, right: Completion, tolerance: float = 0.0) -> bool:
    return left.token_ids.tolist() == right.token_ids.tolist() and bool(
        (np.abs(left.logprobs - right.logprobs) <= tolerance).all()
    )


def test_the_same_call_gives_the_same_bytes(make) -> None:
    requests = [ask(at, prompt_of(6 + at % 2), 30) for at in range(9)]
    one, other = make(), make()
    first = first_turns(one, requests, SampleParams(STOP_STRINGS))
    first_turns(one, [ask(0, prompt_of(3), 100)])
    for sampler in (one, other):
        again = first_turns(sampler, requests, SampleParams(STOP_STRINGS))
        assert all(same(first[at], again[at]) for at in first)


def test_neighbours_do_not_change_what_is_sampled(make) -> None:
    prompt = prompt_of(7)
    alone = first_turns(make(), [ask(0, prompt, 20, name="me")])[0]
    crowd = [ask(at, prompt_of(4 + at, seed=at), 25) for at in range(5)] + [ask(9, prompt, 20, name="me")]
    assert same(alone, first_turns(make(), crowd)[9], tolerance=1e-4)
    assert same(alone, first_turns(make(slots=9), crowd[::-1])[9], tolerance=1e-4)
    other = first_turns(make(), [ask(0, prompt, 20, name="you")])[0]
    assert alone.token_ids.tolist() != other.token_ids.tolist()


def test_greedy_takes_the_most_likely_token(make) -> None:
    model = make_model("qwen2", len(TOKENIZER))
    prompt = prompt_of(9)
    params = SampleParams((), greedy=True)
    ended = first_turns(make(model), [ask(at, prompt, 10) for at in range(2)], params)
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    for _ in range(10):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    assert ended[0].token_ids.tolist() == ended[1].token_ids.tolist() == ids[0, 9:].tolist()


def test_more_sequences_than_places(make) -> None:
    requests = [ask(at, prompt_of(5), 3 + at % 4) for at in range(11)]
    sampler = make(slots=3)
    sampler.open(FREE)
    for request in requests:
        sampler.submit(request)
    order: list[int] = []
    while len(order) < len(requests):
        ended = sampler.collect()
        assert [at for at, _ in ended] == sorted(at for at, _ in ended)
        for at, completion in ended:
            assert len(completion.token_ids) == requests[at].max_tokens
            order.append(at)
            sampler.release(at)
    assert order[:2] == [0, 1]
    assert set(order) == set(range(11))


def test_a_new_version_uses_nothing_of_the_old_one(engine, make) -> None:
    model = make_model("qwen2", len(TOKENIZER))
    sampler = make(model, policy_version=4)
    prompt = prompt_of(9)
    first_turns(sampler, [ask(at, prompt) for at in range(3)])
    assert sampler.policy_version == 4
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    sampler.adopt(5)
    ended = first_turns(sampler, [ask(at, prompt) for at in range(3)])
    assert sampler.policy_version == 5
    for completion in ended.values():
        expected = full_logprobs(model, np.concatenate([prompt, completion.token_ids]))[8:]
        assert np.abs(expected - completion.logprobs).max() < engine[1]


def test_a_shared_prompt_is_prefilled_once_and_turns_add_only_what_is_new(make) -> None:
    sampler = make(slots=2)  # siblings enter one after another, the last ones when the first have left
    sampler.open(FREE)
    prompts = [prompt_of(30, seed=at // 4) for at in range(8)]
    for at, prompt in enumerate(prompts):
        sampler.submit(ask(at, prompt, 5))
    seen: set[int] = set()
    left = set(range(8))
    while left:
        for at, _ in sampler.collect():
            if at in seen:
                sampler.release(at)
                left.discard(at)
            else:
                seen.add(at)
                sampler.submit(ask(at, prompt_of(10), 3))
    counts = sampler.counts()
    assert counts.generated_tokens == 8 * (5 + 3)
    assert counts.prefilled_tokens <= 2 * 30 + 8 * 10 + 8  # a sibling may feed the prompt's last token once more


def test_tokens_come_as_often_as_the_policy_says(make) -> None:
    shares = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
    model = make_talker(TOKENIZER, shares)
    prompt = encode(TOKENIZER, "Velm")
    ended = first_turns(make(model, slots=64), [ask(at, prompt, 1) for at in range(2000)])
    drawn = np.bincount([int(each.token_ids[0]) for each in ended.values()], minlength=len(TOKENIZER)) / 2000
    row = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.no_grad():
        expected = torch.softmax(model(row).logits[0, -1], -1).numpy()
    assert np.abs(drawn - expected).max() < 0.035  # three standard errors at a share of one half
    assert drawn[expected < 1e-9].sum() == 0
