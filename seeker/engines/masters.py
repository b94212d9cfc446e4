"""fp32 masters under a model that computes with the published bf16 values, and their AdamW."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seeker.config import OptimizerConfig
from seeker.engines.buckets import BUCKET_BYTES, GradientBuckets
from seeker.errors import CheckpointError
from seeker.weights import bf16_bits


class Masters:
    """fp32 weights, their gradients (see `buckets`) and Adam's moments.

    The model's own parameters always hold the bf16 rounding of the masters, in the compute dtype: what is trained is
    what is published.
    """

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.parameters = dict(model.named_parameters())
        self.weights = {
            name: parameter.detach().to(torch.float32, copy=True) for name, parameter in self.parameters.items()
        }
        self.optimizer = torch.optim.AdamW(
            list(self.weights.values()),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.buckets = GradientBuckets(self.parameters, bucket_bytes)
        for name, weight in self.weights.items():
            weight.grad = self.buckets.views[name]
            self.optimizer.state[weight] = {
                "step": torch.zeros((), device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        self.publish_to_model_()

    @property
    def gradients(self) -> list[Tensor]:
        return [self.buckets.views[name] for name in self.weights]

    @torch.no_grad()
    def publish_to_model_(self) -> None:
        """Write the bf16 rounding of the masters into the model's parameters."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.weights[name].to(torch.bfloat16))

    def clear_gradients_(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None
        self.buckets.clear_()

    @torch.no_grad()
    def gradient_norm(self) -> Tensor:
        return torch.nn.utils.get_total_norm(self.gradients)

    @torch.no_grad()
    def step_(self, learning_rate: float, max_norm: float, norm: Tensor) -> None:
        """Clip the gradients to `max_norm`, step, clear them, and show the model the new values."""
        torch.nn.utils.clip_grads_with_norm_(self.weights.values(), max_norm, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        self.clear_gradients_()
        self.publish_to_model_()

    def export(self) -> dict[str, NDArray[np.uint16]]:
        return {name: bf16_bits(weight) for name, weight in self.weights.items()}

    def state(self) -> dict[str, Tensor]:
        """Everything that the next update depends on, by name; the live tensors, not copies."""
        tensors: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            tensors[f"master/{name}"] = weight
            for key, value in self.optimizer.state[weight].items():
                tensors[f"{key}/{name}"] = value
        return tensors

    @torch.no_grad()
    def restore_(self, saved: Mapping[str, Tensor]) -> None:
        """Take over a saved state; raises `CheckpointError` before anything is written when it does not fit."""
        live = self.state()
        for name in sorted(live.keys() | saved.keys()):
            shapes = [tuple(tensors[name].shape) if name in tensors else None for tensors in (live, saved)]
            if shapes[0] != shapes[1]:
                raise CheckpointError(
                    f"{name!r}: the policy has shape {shapes[0]}, the checkpoint {shapes[1]}; it is another policy's"
                )
        for name, tensor in live.items():
            tensor.copy_(saved[name])
        self.clear_gradients_()
        self.publish_to_model_()
