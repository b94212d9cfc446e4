"""The torch sampler's own behaviour.

1. A sequence whose turn has ended may wait while others go on: it moves aside, and goes on where it was.
2. Only the rows whose next token is wanted go through the output layer.
3. Weights that give non-finite log-probs are an error, and leave nothing behind for the next version.
4. The model is as it was outside of the sampler: its attention and its gradients.
5. Models that slots cannot serve are refused with a reason.
6. A sequence longer than a slot is refused; so is a collect without anything to sample.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seeker.engines.sampler import SampleParams, SampleRequest
from seeker.engines.torch_sampler import TorchSampler
from seeker.errors import PolicyError
from tests.rollout.test_sampler_contract import FREE, ask, first_turns, full_logprobs, prompt_of
from tests.rollout.tiny import make_model, make_tokenizer

TOKENIZER = make_tokenizer()


def make(model=None, **settings) -> TorchSampler:
    return TorchSampler(
        model or make_model("qwen2", len(TOKENIZER)), TOKENIZER, **{"slots": 4, "max_length": 120, **settings}
    )


def test_a_waiting_sequence_moves_aside_and_goes_on() -> None:
    model = make_model("qwen2", len(TOKENIZER))
    sampler = make(model)
    sampler.open(FREE)
    prompts = {at: prompt_of(8 + at, seed=at) for at in range(3)}
    for at, prompt in prompts.items():
        sampler.submit(ask(at, prompt, 2 if at == 0 else 20))
    ((sequence, first),) = sampler.collect()
    assert sequence == 0
    others = dict(sampler.collect())  # 0 stands still in the midst of the others
    sampler.submit(ask(0, prompt_of(6, seed=9), 4))
    ((_, second),) = sampler.collect()
    ids = np.concatenate([prompts[0], first.token_ids, prompt_of(6, seed=9), second.token_ids])
    assert np.abs(full_logprobs(model, ids)[-4:] - second.logprobs).max() < 1e-4
    for at, completion in others.items():
        ids = np.concatenate([prompts[at], completion.token_ids])
        assert np.abs(full_logprobs(model, ids)[-20:] - completion.logprobs).max() < 1e-4


def test_only_wanted_rows_reach_the_output_layer() -> None:
    model = make_model("qwen2", len(TOKENIZER))
    rows: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda m, inputs, output: rows.append(output.shape[-2]))
    first_turns(make(model), [ask(at, prompt_of(50), 3) for at in range(4)])
    assert rows == [1, 4, 4, 4]  # one for the prompt's prefill, whose logits nobody wants


def test_non_finite_weights_are_an_error_and_leave_nothing_behind() -> None:
    model = make_model("qwen2", len(TOKENIZER))
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sampler = make(model)
    expected = first_turns(sampler, [ask(0, prompt_of(9))])[0]
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.fill_(float("nan"))
    sampler.adopt(1)
    with pytest.raises(PolicyError, match=r"version 1 .*not finite"):
        first_turns(sampler, [ask(0, prompt_of(9))])
    model.load_state_dict(good)
    sampler.adopt(2)
    again = first_turns(sampler, [ask(0, prompt_of(5)), ask(1, prompt_of(9), name="s0")])[1]
    assert again.token_ids.tolist() == expected.token_ids.tolist()


def test_the_model_is_left_as_it_was() -> None:
    model = make_model("qwen2", len(TOKENIZER))
    before = model.config._attn_implementation
    sampler = make(model)
    first_turns(sampler, [ask(0, prompt_of(9))])
    assert model.config._attn_implementation == before
    loss = model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss
    loss.backward()
    assert model.lm_head.weight.grad is not None


def test_a_bfloat16_model_is_sampled_too() -> None:
    model = make_model("llama", len(TOKENIZER)).to(torch.bfloat16)
    completion = first_turns(make(model), [ask(0, prompt_of(30))])[0]
    ids = np.concatenate([prompt_of(30), completion.token_ids])
    assert completion.logprobs.dtype == np.float32
    assert np.abs(full_logprobs(model, ids)[-12:] - completion.logprobs).max() < 0.2


def test_models_that_slots_cannot_serve_are_refused() -> None:
    model = make_model("qwen2", len(TOKENIZER))
    with pytest.raises(PolicyError, match="512 positions"):
        make(model, max_length=600)
    model.config.layer_types = ["sliding_attention", "full_attention"]
    model.config.sliding_window = 64
    with pytest.raises(PolicyError, match="sliding window of 64"):
        make(model)
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(PolicyError, match="linear_attention"):
        make(model)


def test_what_does_not_fit_is_refused() -> None:
    sampler = make()
    sampler.open(SampleParams(()))
    with pytest.raises(RuntimeError, match="without a submitted turn"):
        sampler.collect()
    sampler.submit(SampleRequest(0, prompt_of(100), 30, key=1))
    with pytest.raises(ValueError, match="slot of 120"):
        sampler.collect()
