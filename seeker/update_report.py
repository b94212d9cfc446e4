"""What one update reports: plain numbers from per-token arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seeker.packing import Batch


class PassScores(Protocol):
    """What one pass over the batch gave; arrays are [N] and 0 where not trainable."""

    @property
    def logprobs(self) -> NDArray[np.float32]: ...
    @property
    def entropies(self) -> NDArray[np.float32]: ...
    @property
    def clipped(self) -> NDArray[np.float32]: ...
    @property
    def kl(self) -> NDArray[np.float32]: ...
    @property
    def loss(self) -> float: ...
    @property
    def grad_norm(self) -> float: ...


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One update in numbers; `metrics` depend on the batch and the policy alone, `seconds` do not.

    Example: ``UpdateReport(step=3, version=4, seconds=2.1, metrics={"update/loss": 0.0, "update/grad_norm": 0.8})``.
    """

    step: int
    version: int  # that the trainer holds now
    seconds: float
    metrics: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_report(
    batch: Batch, passes: Sequence[PassScores], learning_rate: float, version: int, seconds: float
) -> UpdateReport:
    """The report of an update that made `passes` (none when no group had anything to learn from)."""
    mask = batch.loss_mask
    metrics = {
        "update/learning_rate": learning_rate,
        "update/updates": float(len(passes)),
        "update/trajectories": float(batch.num_trajectories),
        "update/tokens": float(batch.num_tokens),
        "update/trainable_tokens": float(batch.num_trainable_tokens),
        "staleness": float(batch.step - batch.policy_version),
    }
    if passes:
        first = passes[0]
        metrics |= {
            "update/loss": _mean([one.loss for one in passes]),
            "update/grad_norm": _mean([one.grad_norm for one in passes]),
            "update/clipped_fraction": _mean([float(one.clipped[mask].mean()) for one in passes]),
            "update/kl": _mean([float(one.kl[mask].mean(dtype=np.float64)) for one in passes]),
            "update/entropy": float(first.entropies[mask].mean(dtype=np.float64)),
            **mismatch_metrics(batch, first.logprobs),
        }
    return UpdateReport(batch.step, version, seconds, metrics)


def mismatch_metrics(batch: Batch, trainer_logprobs: NDArray[np.float32]) -> dict[str, float]:
    """How far trainer and sampler disagree at the sampled version; all raw, whether or not a correction is on."""
    mask = batch.loss_mask
    gaps = np.where(mask, trainer_logprobs - batch.sampler_logprobs, 0.0).astype(np.float64)
    sizes = np.abs(gaps[mask])
    log_weights = np.add.reduceat(gaps, batch.offsets[:-1])  # [B]
    return {
        "mismatch/mean": float(sizes.mean()),
        "mismatch/p99": float(np.quantile(sizes, 0.99)),
        "mismatch/max": float(sizes.max()),
        "tis/effective_sample_size": effective_sample_size(log_weights),
    }


def effective_sample_size(log_weights: NDArray[np.float64]) -> float:
    """(Σw)² / Σw² as a share of the number of weights, from log w; unchanged when all are scaled alike.

    Example: equal weights give 1.0; one of four weights far above the others gives 0.25.
    """
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum() / len(weights))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
