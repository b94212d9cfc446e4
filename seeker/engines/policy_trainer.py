"""The trainer: one batch in, one new policy version out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from seeker.config import OptimizerConfig, RunConfig
from seeker.engines.buckets import BUCKET_BYTES
from seeker.engines.checkpoint import read_checkpoint, write_checkpoint
from seeker.engines.forward import Rows, build_rows, has_plain_head, score_tokens, to_tensor
from seeker.engines.masters import Masters
from seeker.engines.ranks import Ranks, SingleRank
from seeker.errors import CheckpointError, UpdateError
from seeker.loss import policy_loss, token_weights
from seeker.packing import Batch, micro_batches, slice_for_rank
from seeker.update_report import UpdateReport, make_report

_RNG = "torch_rng"


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over the batch gave, per token of the batch and in sum (over all ranks)."""

    logprobs: NDArray[np.float32]  # [N] by the trainer, 0 where not trainable
    entropies: NDArray[np.float32]  # [N]
    clipped: NDArray[np.float32]  # [N]
    kl: NDArray[np.float32]  # [N]
    loss: float = 0.0
    grad_norm: float = 0.0


class PolicyTrainer:
    """Owns the fp32 masters; the model it was given always holds the published bf16 values of `version`."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        *,
        reference: PreTrainedModel | None = None,
        ranks: Ranks | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`reference` is the reference policy's own copy of the starting policy, needed for a KL term."""
        if config.objective.kl_coefficient > 0.0 and reference is None:
            raise UpdateError("objective.kl_coefficient is above 0: the trainer needs a reference policy")
        self.config = config
        self.version = 0
        self.model = model.eval()  # no dropout: sampler and trainer hold the same policy
        self._reference = reference.eval() if reference is not None else None
        self.ranks = ranks or SingleRank()
        self._masters = Masters(model, config.optimizer, bucket_bytes)
        self._plain_head = has_plain_head(model)

    def update(self, batch: Batch) -> UpdateReport:
        """Train on the batch of step `version` and become version + 1; an error leaves everything as it was."""
        if batch.step != self.version:
            raise UpdateError(
                f"batch of step {batch.step}: the trainer is at version {self.version}, it takes that step"
            )
        started = time.perf_counter()
        seed_draws(self.config.seed, batch.step, self.ranks.rank)
        learning_rate = warmed_up(self.config.optimizer, batch.step)
        passes = self._train(batch, learning_rate) if batch.num_trainable_tokens else []
        self.version += 1
        return make_report(batch, passes, learning_rate, self.version, time.perf_counter() - started)

    def export(self) -> dict[str, NDArray[np.uint16]]:
        """The policy to publish: bf16 bits by name."""
        return self._masters.export()

    def save_checkpoint(self, folder: Path) -> None:
        """Masters, moments, random state and version, written as a whole."""
        write_checkpoint(Path(folder), *self.snapshot())

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint holds, copied: later updates do not reach it."""
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._masters.state().items()}
        return {**copied, _RNG: torch.get_rng_state()}, {"version": self.version}

    def load_checkpoint(self, folder: Path) -> None:
        """Take over a checkpoint exactly; the trainer goes on as the one that wrote it would have."""
        tensors, facts = read_checkpoint(Path(folder))
        rng = tensors.pop(_RNG, None)
        if rng is None:
            raise CheckpointError(f"{folder}: no random state in the checkpoint; use an older one")
        self._masters.restore_(tensors)
        torch.set_rng_state(rng)
        self.version = int(facts["version"])

    def logprobs(self, batch: Batch) -> NDArray[np.float32]:
        """The current policy's log-probs of the batch's trainable tokens, 0 elsewhere. Shape [N]."""
        return self._score(self.model, batch, self._rows(batch))

    def _train(self, batch: Batch, learning_rate: float) -> list[Pass]:
        rows = self._rows(batch)
        num_updates = self.config.objective.updates_per_batch
        # With one update the old log-probs are the current ones, so their own pass is saved.
        old = self._score(self.model, batch, rows) if num_updates > 1 else None
        ref = self._score(self._reference, batch, rows) if self._reference is not None else None
        before = {name: tensor.clone() for name, tensor in self._masters.state().items()} if num_updates > 1 else None
        passes: list[Pass] = []
        try:
            for _ in range(num_updates):
                passes.append(self._step(batch, rows, learning_rate, old, ref))
        except BaseException:
            self._masters.clear_gradients_()
            if before is not None:
                self._masters.restore_(before)
            raise
        return passes

    def _step(
        self,
        batch: Batch,
        rows: Sequence[Rows],
        learning_rate: float,
        old: NDArray[np.float32] | None,
        ref: NDArray[np.float32] | None,
    ) -> Pass:
        try:
            scores, loss = self._accumulate(batch, rows, old, ref)
        except BaseException as error:  # the others wait for this rank's sums, and a sum may be writing gradients
            self.ranks.leave(f"{type(error).__name__}: {error}")
            raise
        norm = self._masters.gradient_norm()
        if not (torch.isfinite(norm) and torch.isfinite(loss)):
            raise UpdateError(
                f"step {batch.step}: loss {loss.item()}, gradient norm {norm.item()}: not finite, nothing was applied; "
                "look at the mismatch metrics of the steps before and lower optimizer.learning_rate"
            )
        self._masters.step_(learning_rate, self.config.optimizer.max_grad_norm, norm)
        logprobs, entropies, clipped, kl = scores.cpu().numpy()
        return Pass(logprobs, entropies, clipped, kl, loss.item(), norm.item())

    def _accumulate(
        self, batch: Batch, rows: Sequence[Rows], old: NDArray[np.float32] | None, ref: NDArray[np.float32] | None
    ) -> tuple[Tensor, Tensor]:
        """Gradients into the masters, per-token scores [4, N] and the loss: this rank's slice, summed over all."""
        device = self.model.device
        advantages = np.repeat(batch.advantages, batch.lengths)  # [N]
        weights = token_weights(batch, self.config.objective)  # [N]
        scores = torch.zeros(4, batch.num_tokens, device=device)
        total = torch.zeros((), dtype=torch.float64, device=device)

        def at(values: NDArray[np.float32], row: Rows) -> Tensor:
            return to_tensor(values[row.places], device)

        for number, row in enumerate(rows, start=1):
            found = score_tokens(self.model, row, batch.temperature, plain_head=self._plain_head)
            terms = policy_loss(
                found.logprobs,
                found.logprobs.detach() if old is None else at(old, row),
                at(advantages, row),
                at(weights, row),
                self.config.objective,
                None if ref is None else at(ref, row),
            )
            if number == len(rows):
                self._masters.buckets.arm(self.ranks)
            terms.loss.backward()  # pyright: ignore[reportUnknownMemberType]
            parts = (found.logprobs.detach(), found.entropies, terms.clipped.float(), terms.kl)
            scores[:, to_tensor(row.places, device)] = torch.stack(parts)
            total += terms.loss.detach()
        self._masters.buckets.finish_(self.ranks, also=(scores, total))
        return scores, total

    def _rows(self, batch: Batch) -> list[Rows]:
        """This rank's slice of the batch as micro-batches that have something to train on."""
        objective = self.config.objective
        mine = slice_for_rank(batch, self.ranks.rank, self.ranks.world)
        mine = mine[batch.trainable_lengths[mine] > 0]
        parts = micro_batches(batch.lengths[mine], objective.micro_batch_tokens, objective.layout)
        dtype = next(self.model.parameters()).dtype
        return [build_rows(batch, mine[part], objective.layout, self.model.device, dtype) for part in parts]

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, batch: Batch, rows: Sequence[Rows]) -> NDArray[np.float32]:
        logprobs = np.zeros(batch.num_tokens, np.float32)
        for row in rows:
            found = score_tokens(model, row, batch.temperature, plain_head=self._plain_head)
            logprobs[row.places] = found.logprobs.cpu().numpy()
        return logprobs


def seed_draws(seed: int, step: int, rank: int) -> None:
    """What an update draws depends on these alone, so that it can be replayed by a process that has drawn otherwise."""
    drawn = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(drawn[0]))  # pyright: ignore[reportUnknownMemberType]


def warmed_up(config: OptimizerConfig, step: int) -> float:
    """The learning rate of a step: linear over the first `warmup_steps`, then constant."""
    return config.learning_rate * min(1.0, (step + 1) / max(config.warmup_steps, 1))
