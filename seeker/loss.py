"""The clipped policy loss (PPO, arXiv 1707.06347 eq. 7) over trainable tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seeker.config import ObjectiveConfig
from seeker.packing import Batch

MAX_LOG_RATIO = 20.0  # e^20 is far past any clip range and far from fp32's overflow


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The loss to differentiate, and per token what it was made of (without gradient)."""

    loss: Tensor  # scalar
    clipped: Tensor  # [M] bool: the clip took this token's gradient away
    kl: Tensor  # [M] k3 estimate against the reference policy; zeros without one


def policy_loss(
    logprobs: Tensor,  # [M] by the current policy
    old_logprobs: Tensor,  # [M] by the policy at the sampled version, both by the trainer
    advantages: Tensor,  # [M]
    weights: Tensor,  # [M] see `token_weights`
    config: ObjectiveConfig,
    ref_logprobs: Tensor | None = None,  # [M] by the reference policy
) -> LossTerms:
    """Weighted sum over tokens of ``-min(ratio * A, clip(ratio) * A) + kl_coefficient * kl``."""
    importance_ratio = _bounded_exp(logprobs - old_logprobs.detach())
    bounded = importance_ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    free, held = importance_ratio * advantages, bounded * advantages
    token_loss = -torch.minimum(free, held)
    kl = torch.zeros_like(logprobs)
    if ref_logprobs is not None:
        kl = k3_divergence(logprobs, ref_logprobs.detach())
        token_loss = token_loss + config.kl_coefficient * kl
    return LossTerms((token_loss * weights).sum(), (held < free).detach(), kl.detach())


def k3_divergence(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) per token: ``r - log r - 1``, r = reference over policy."""
    log_ratio = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio.exp() - log_ratio - 1.0


def token_weights(batch: Batch, config: ObjectiveConfig) -> NDArray[np.float32]:
    """What each token counts in the loss; zero where the policy did not write. Shape [N].

    They add up to 1 over the whole batch, so the sum over micro-batches and ranks is the loss. ``tokens``: every
    trainable token counts the same; ``trajectories``: every trajectory does.
    """
    if config.normalize == "tokens":
        share = np.full(batch.num_trajectories, 1.0 / max(batch.num_trainable_tokens, 1))
    else:
        trainable = batch.trainable_lengths
        share = 1.0 / (np.maximum(trainable, 1) * max(int((trainable > 0).sum()), 1))
    return np.where(batch.loss_mask, np.repeat(share, batch.lengths), 0.0).astype(np.float32)


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
