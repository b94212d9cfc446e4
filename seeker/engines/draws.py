"""From logits to tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(logits: Tensor, temperature: float, uniforms: Tensor | None) -> tuple[Tensor, Tensor]:
    """Tokens and their fp32 log-probs under the distribution they are sampled from, at `temperature`. Shapes [B].

    A token is where its uniform number (fp64, [B]) falls in the row's cumulative distribution, so a row's token depends
    on that row alone. Without uniforms the most likely token is taken.
    Example: probabilities (.2, .5, .3) and the uniform number .6 give token 1.
    """
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)  # [B, V]
    if uniforms is None:
        tokens = logprobs.argmax(-1, keepdim=True)
    else:
        cumulative = logprobs.double().exp_().cumsum_(-1)
        total = cumulative[:, -1:]
        # Strictly below the total: a token of probability 0 is never drawn, whatever rounding does.
        wanted = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
        # Non-finite rows find no place; they keep a token within the vocabulary and a log-prob that shows it.
        tokens = torch.searchsorted(cumulative, wanted, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]
