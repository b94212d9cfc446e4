"""The policy loss and the trainer's forward pass.

1.  The gradient is exactly zero on tokens that the policy did not write: on their log-probs and on the hidden states
    that predict them.
2.  Changing values that the mask takes out (log-probs, also to NaN or infinity) leaves loss and gradients unchanged.
3.  Padded and packed layouts, and any cut into micro-batches, give the same loss and gradients within 1e-5 relative.
4.  Token weights add up to 1 over the batch; `tokens` and `trajectories` differ as their names say.
5.  The clip takes the gradient away exactly where the ratio left the range in the advantage's direction.
6.  k3 is 0 for equal policies and never negative; far apart log-probs give a finite loss and gradient.
7.  Log-probs are those of transformers' own logits at the sampling temperature, for any causal LM, also one that
    scales its logits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from seeker.config import ObjectiveConfig
from seeker.engines.forward import build_rows, has_plain_head, score_tokens
from seeker.exports import export_digest
from seeker.loss import k3_divergence, policy_loss, token_weights
from seeker.packing import Batch, Layout, micro_batches
from tests.learning.builders import VOCAB, make_batch, make_policy, make_trainer

CPU = torch.device("cpu")
CONFIG = ObjectiveConfig()


def loss_and_gradients(
    model: PreTrainedModel, batch: Batch, *, layout: Layout = "padded", max_tokens: int = 10**6, lag: float = 0.1
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of a batch whose old log-probs are `lag` below the current ones."""
    model.zero_grad()
    weights = token_weights(batch, CONFIG)
    advantages = np.repeat(batch.advantages, batch.lengths)
    total = 0.0
    for part in micro_batches(batch.lengths, max_tokens, layout):
        rows = build_rows(batch, part, layout, CPU, torch.float32)
        found = score_tokens(model, rows, batch.temperature, plain_head=True)
        old = found.logprobs.detach() - lag
        parts = [torch.from_numpy(values[rows.places]) for values in (advantages, weights)]
        terms = policy_loss(found.logprobs, old, *parts, CONFIG)
        terms.loss.backward()
        total += terms.loss.item()
    return total, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_gap(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    top = sum(float((left[name] - right[name]).square().sum()) for name in left) ** 0.5
    return top / sum(float(left[name].square().sum()) for name in left) ** 0.5


@given(st.integers(0, 10**6), st.sampled_from(["padded", "packed"]))
@settings(max_examples=15)
def test_gradient_is_exactly_zero_where_the_policy_did_not_write(seed: int, layout: Layout) -> None:
    batch = make_batch(4, seed=seed)
    model = make_policy()
    rows = build_rows(batch, np.arange(4), layout, CPU, torch.float32)
    caught: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        caught.append(output)

    handle = model.base_model.norm.register_forward_hook(keep)
    found = score_tokens(model, rows, 1.0, plain_head=True)
    handle.remove()
    advantages = torch.from_numpy(np.repeat(batch.advantages, batch.lengths)[rows.places])
    weights = torch.from_numpy(token_weights(batch, CONFIG)[rows.places])
    policy_loss(found.logprobs, found.logprobs.detach(), advantages, weights, CONFIG).loss.backward()
    gradient = caught[0].grad
    assert gradient is not None
    written = np.zeros(gradient.shape[:2], bool)
    for index, (start, length) in enumerate(zip(batch.offsets[:-1], batch.lengths, strict=True)):
        places = np.flatnonzero(batch.loss_mask[start : start + length]) - 1  # predicted from the token before
        row, offset = (index, 0) if layout == "padded" else (0, int(start))
        written[row, offset + places] = True
    size = gradient.abs().sum(-1).numpy()
    assert (size[~written] == 0.0).all()
    assert (size[written] > 0.0).all()


def test_gradient_of_every_logprob_that_is_not_trainable_is_zero() -> None:
    batch = make_batch(3)
    logprobs = torch.full((batch.num_tokens,), -1.0, requires_grad=True)
    weights = torch.from_numpy(token_weights(batch, CONFIG))
    advantages = torch.from_numpy(np.repeat(batch.advantages, batch.lengths))
    policy_loss(logprobs, logprobs.detach(), advantages, weights, CONFIG).loss.backward()
    assert logprobs.grad is not None
    assert (logprobs.grad[~torch.from_numpy(batch.loss_mask)] == 0.0).all()
    assert (logprobs.grad[torch.from_numpy(batch.loss_mask)] != 0.0).all()


@given(st.floats(width=32), st.integers(0, 10**6))
@settings(max_examples=8)
def test_masked_values_change_nothing(value: float, seed: int) -> None:
    """Also through the whole trainer: the policy and every metric are those of the batch as it was."""
    batch = make_batch(4, seed=seed)
    changed = replace(batch, sampler_logprobs=np.where(batch.loss_mask, batch.sampler_logprobs, np.float32(value)))
    trainers = [make_trainer(), make_trainer()]
    reports = [trainer.update(one) for trainer, one in zip(trainers, (batch, changed), strict=True)]
    assert reports[0].metrics == reports[1].metrics
    assert export_digest(trainers[0].export()) == export_digest(trainers[1].export())


def test_padding_changes_nothing() -> None:
    model, batch = make_policy(), make_batch(5)
    rows = build_rows(batch, np.arange(5), "padded", CPU, torch.float32)
    padding = torch.arange(rows.input_ids.shape[1])[None] >= torch.from_numpy(batch.lengths)[:, None]
    assert padding.any()
    other = replace(rows, input_ids=torch.where(padding, 11, rows.input_ids))
    scores = [score_tokens(model, one, 1.0, plain_head=True).logprobs for one in (rows, other)]
    assert torch.equal(*scores)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_layouts_and_cuts_agree(attention: str) -> None:
    model = make_policy(attention=attention)
    batch = make_batch(9, seed=3, max_length=60)
    loss, gradients = loss_and_gradients(model, batch)
    for layout in ("padded", "packed"):
        for max_tokens in (1, 150, 10**6):
            other_loss, other = loss_and_gradients(model, batch, layout=layout, max_tokens=max_tokens)
            assert other_loss == pytest.approx(loss, rel=1e-5)
            assert relative_gap(gradients, other) < 1e-5


def test_token_weights() -> None:
    batch = make_batch(5)
    by_token = token_weights(batch, CONFIG)
    by_trajectory = token_weights(batch, ObjectiveConfig(normalize="trajectories"))
    for weights in (by_token, by_trajectory):
        assert weights.sum() == pytest.approx(1.0)
        assert (weights[~batch.loss_mask] == 0).all()
    assert np.unique(by_token[batch.loss_mask]).size == 1
    sums = np.add.reduceat(by_trajectory, batch.offsets[:-1])
    np.testing.assert_allclose(sums, 1 / 5, rtol=1e-5)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "clipped"),
    [
        (0.5, 1.0, True),
        (0.5, -1.0, False),
        (-0.5, -1.0, True),
        (-0.5, 1.0, False),
        (0.1, 1.0, False),
        (0.0, 0, False),
    ],
)
def test_clip(log_ratio: float, advantage: float, clipped: bool) -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    terms = policy_loss(logprobs, torch.tensor([-1.0 - log_ratio]), torch.tensor([advantage]), torch.ones(1), CONFIG)
    terms.loss.backward()
    assert terms.clipped.tolist() == [clipped]
    assert logprobs.grad is not None
    expected = 0.0 if clipped else -advantage * float(np.exp(log_ratio))
    assert logprobs.grad.item() == pytest.approx(expected, rel=1e-5)


def test_k3() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5])
    assert k3_divergence(logprobs, logprobs).tolist() == [0.0, 0.0, 0.0]
    found = k3_divergence(logprobs, torch.tensor([-1.5, -1.0, -0.6]))
    expected = [np.exp(d) - d - 1 for d in (-0.5, 1.0, -0.1)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


@given(st.floats(-1e30, 0), st.floats(-1e30, 0), st.floats(-1e30, 0), st.floats(-10, 10))
def test_far_apart_logprobs_stay_finite(current: float, old: float, reference: float, advantage: float) -> None:
    logprobs = torch.tensor([current], requires_grad=True)
    config = ObjectiveConfig(kl_coefficient=0.1)
    parts = [torch.tensor([value]) for value in (old, advantage, 1.0)]
    terms = policy_loss(logprobs, *parts, config, torch.tensor([reference]))
    terms.loss.backward()
    assert logprobs.grad is not None
    assert torch.isfinite(terms.loss)
    assert torch.isfinite(logprobs.grad).all()
    assert terms.kl.item() >= -1e-6


def make_other(kind: str) -> PreTrainedModel:
    torch.manual_seed(1)
    small = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**small, intermediate_size=64)).eval()
    if kind == "granite":
        return GraniteForCausalLM(GraniteConfig(**small, intermediate_size=64, logits_scaling=3.0)).eval()
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128)).eval()


@pytest.mark.parametrize(("kind", "plain"), [("llama", True), ("gpt2", True), ("granite", False)])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_any_causal_lm(kind: str, plain: bool, layout: Layout) -> None:
    model = make_other(kind)
    assert has_plain_head(model) is plain
    batch = replace(make_batch(3), temperature=0.7)
    rows = build_rows(batch, np.array([2, 0, 1]), layout, CPU, torch.float32)
    with torch.no_grad():
        found = score_tokens(model, rows, batch.temperature, plain_head=plain)
    logprobs = np.zeros(batch.num_tokens, np.float32)
    logprobs[rows.places] = found.logprobs.numpy()
    for index in range(3):
        part = slice(int(batch.offsets[index]), int(batch.offsets[index + 1]))
        ids = torch.from_numpy(batch.token_ids[part].astype(np.int64))
        with torch.no_grad():
            table = torch.log_softmax(model(ids[None]).logits[0, :-1].float() / 0.7, -1)
        expected = table.gather(-1, ids[1:, None])[:, 0].numpy()
        mask = batch.loss_mask[part][1:]
        np.testing.assert_allclose(logprobs[part][1:][mask], expected[mask], atol=1e-5)
    entropy = torch.distributions.Categorical(logits=table[mask]).entropy().numpy()
    order = [place for place, at in enumerate(rows.places) if at >= batch.offsets[2]]
    np.testing.assert_allclose(found.entropies.numpy()[order], entropy, atol=1e-5)
