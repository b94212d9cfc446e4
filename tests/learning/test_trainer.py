"""The trainer.

1.  An update raises the log-probs of what was better than its siblings and lowers the others', and makes version + 1.
2.  The model holds the bf16 rounding of the masters, and that is what is exported.
3.  Training 4 steps equals training 2, saving, loading into a fresh trainer and training 2 more, bit for bit.
4.  A damaged, missing or foreign checkpoint is refused before anything is written.
5.  A gradient that is not finite stops the update: an error that names the step, nothing applied.
6.  A batch of another step is refused; an empty batch makes the next version and moves nothing.
7.  Two ranks that sum their gradients make the policy and the metrics that one makes.
8.  Several updates per batch use log-probs computed before the first; then the ratio leaves 1 and is clipped.
9.  The KL term needs a reference policy, is 0 at the start, and keeps the policy nearer to it.
10. bf16 compute trains too; learning-rate warm-up is linear; gradients are clipped.
11. Cut into micro-batches, a batch makes the policy that it makes whole.
12. Metrics mean what they say (effective sample size, mismatch, clipped fraction).
13. What an update draws depends on seed and step alone, whatever its process drew before.
14. A snapshot is what later updates do not reach; it is written beside them, and a failed writing is told to the asker.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seeker.config import OptimizerConfig
from seeker.engines.devices import CPU
from seeker.engines.policy import bf16_tensor, export_digest
from seeker.engines.policy_trainer import PolicyTrainer, warmed_up
from seeker.engines.ranks import SingleRank
from seeker.errors import CheckpointError, StorageError, UpdateError
from seeker.packing import Batch
from seeker.services.checkpointing import CheckpointWriter
from seeker.update_report import UpdateReport, effective_sample_size, mismatch_metrics
from tests.learning.builders import make_batch, make_config, make_policy, make_trainer


def digest(trainer: PolicyTrainer) -> str:
    return export_digest(trainer.export())


def state_bytes(trainer: PolicyTrainer) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in trainer._masters.state().items()}


def test_an_update_makes_better_trajectories_likelier() -> None:
    trainer = make_trainer()
    batch = replace(make_batch(6), advantages=np.array([1, -1, 1, -1, 1, -1], np.float32))
    before = trainer.logprobs(batch)
    report = trainer.update(batch)
    gain = np.add.reduceat(trainer.logprobs(batch) - before, batch.offsets[:-1])
    assert trainer.version == report.version == 1
    assert (np.sign(gain) == batch.advantages).all()
    assert report.metrics["update/grad_norm"] > 0
    json.dumps(report.to_json(), allow_nan=False)


def test_what_is_exported_is_what_the_model_computes_with() -> None:
    trainer = make_trainer()
    trainer.update(make_batch())
    export = trainer.export()
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, bf16_tensor(export[name]).float()), name
        assert torch.equal(trainer._masters.weights[name].bfloat16().float(), parameter), name
    assert any(not torch.equal(w, w.bfloat16().float()) for w in trainer._masters.weights.values())
    assert "lm_head.weight" not in export  # tied to the embeddings


def test_training_is_continued_exactly(tmp_path: Path) -> None:
    sections: dict[str, Any] = {"optimizer": {"learning_rate": 1e-3, "warmup_steps": 3, "weight_decay": 0.01}}
    whole, first, second = (make_trainer(**sections) for _ in range(3))
    reports = [whole.update(make_batch(step=step, seed=step)).metrics for step in range(4)]
    for step in range(2):
        first.update(make_batch(step=step, seed=step))
    torch.manual_seed(99)
    drawn_state = torch.get_rng_state()
    first.save_checkpoint(tmp_path / "checkpoints" / "000002")
    torch.manual_seed(1)
    second.load_checkpoint(tmp_path / "checkpoints" / "000002")
    assert torch.equal(torch.get_rng_state(), drawn_state)
    assert second.version == 2
    again = [second.update(make_batch(step=step, seed=step)).metrics for step in (2, 3)]
    assert again == reports[2:]
    assert state_bytes(second) == state_bytes(whole)
    assert digest(second) == digest(whole)


def test_what_an_update_draws_depends_on_its_step_alone() -> None:
    states: list[torch.Tensor] = []
    for before, step in ((1, 0), (2, 0), (1, 1)):
        torch.manual_seed(before)
        trainer = make_trainer()
        trainer.version = step
        trainer.update(make_batch(step=step))
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_a_snapshot_is_not_reached_by_later_updates(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.update(make_batch())
    before, tensors = state_bytes(trainer), trainer.snapshot()
    trainer.update(make_batch(step=1))
    assert state_bytes(trainer) != before
    folder, writer = tmp_path / "000001", CheckpointWriter()
    assert not writer.is_written(folder, wait=True)
    writer.begin(folder, *tensors)
    assert writer.is_writing(folder)
    assert writer.is_written(folder, wait=True)
    assert not writer.is_writing(folder)
    trainer.load_checkpoint(folder)
    assert state_bytes(trainer) == before
    (tmp_path / "file").touch()
    writer.begin(tmp_path / "file" / "000002", *tensors)
    with pytest.raises(StorageError, match="file"):
        writer.is_written(tmp_path / "file" / "000002", wait=True)


def test_a_checkpoint_is_replaced_as_a_whole(tmp_path: Path) -> None:
    trainer = make_trainer()
    folder = tmp_path / "000001"
    trainer.save_checkpoint(folder)
    trainer.update(make_batch())
    trainer.save_checkpoint(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]
    other = make_trainer(seed=5)
    other.load_checkpoint(folder)
    assert state_bytes(other) == state_bytes(trainer)


def test_bad_checkpoints_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.save_checkpoint(tmp_path / "good")
    before = state_bytes(trainer)
    with pytest.raises(CheckpointError, match="cannot read"):
        trainer.load_checkpoint(tmp_path / "none")
    data = bytearray((tmp_path / "good" / "state.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "good" / "state.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="digest"):
        trainer.load_checkpoint(tmp_path / "good")
    small = make_policy()
    small.resize_token_embeddings(50)
    PolicyTrainer(make_config(), small).save_checkpoint(tmp_path / "small")
    with pytest.raises(CheckpointError, match="embed_tokens"):
        trainer.load_checkpoint(tmp_path / "small")
    assert state_bytes(trainer) == before


@pytest.mark.parametrize("updates", [1, 2])
def test_nothing_is_applied_when_a_gradient_is_not_finite(updates: int) -> None:
    trainer = make_trainer(objective={"updates_per_batch": updates})
    trainer.update(make_batch(step=0))
    before, held = state_bytes(trainer), digest(trainer)
    batch = make_batch(step=1, seed=1)
    hook = _poison_after(trainer, batch, passes=updates)
    with pytest.raises(UpdateError, match=r"step 1: .*not finite"):
        trainer.update(batch)
    hook.remove()
    assert state_bytes(trainer) == before
    assert (digest(trainer), trainer.version) == (held, 1)
    assert trainer.update(batch).version == 2


def _poison_after(trainer: PolicyTrainer, batch: Batch, passes: int) -> Any:
    """Make the last training pass of an update give NaN (with several updates, scoring comes before them)."""
    calls = 0
    last = passes if passes == 1 else passes + 1

    def poison(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return output * float("nan") if calls == last else output

    return trainer.model.base_model.norm.register_forward_hook(poison)


def test_a_batch_of_another_step_is_refused() -> None:
    trainer = make_trainer()
    with pytest.raises(UpdateError, match=r"step 3.*version 0"):
        trainer.update(make_batch(step=3))


def test_an_empty_batch_moves_nothing() -> None:
    trainer = make_trainer()
    trainer.update(make_batch(step=0))
    before = state_bytes(trainer)
    ids, mask, floats = (np.zeros(0, kind) for kind in (np.int32, np.bool_, np.float32))
    empty = Batch(ids, mask, floats, np.zeros(1, np.int64), floats, step=1, policy_version=1, temperature=1.0)
    report = trainer.update(empty)
    assert (report.version, report.metrics["update/updates"]) == (2, 0.0)
    assert state_bytes(trainer) == before


class PairedRank:
    """One of two ranks in two threads that really sum with each other."""

    world = 2
    waited_s = 0.0
    device = CPU

    def __init__(self, rank: int, barrier: threading.Barrier, shelf: dict[int, list[torch.Tensor]]) -> None:
        self.rank = rank
        self._barrier, self._shelf = barrier, shelf

    def begin_sum_(self, tensor: torch.Tensor) -> Any:
        self.sum_([tensor])
        return SingleRank().begin_sum_(tensor)

    def leave(self, reason: str) -> None:
        self._barrier.abort()

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        self._shelf[self.rank] = [tensor.clone() for tensor in tensors]
        self._barrier.wait(30)
        for tensor, parts in zip(tensors, zip(self._shelf[0], self._shelf[1], strict=True), strict=True):
            tensor.copy_(parts[0] + parts[1])
        self._barrier.wait(30)


def test_two_ranks_make_what_one_makes() -> None:
    barrier, shelf = threading.Barrier(2), {}
    pair = [make_trainer(ranks=PairedRank(rank, barrier, shelf), optimizer={"learning_rate": 1e-3}) for rank in (0, 1)]
    reports: dict[int, UpdateReport] = {}

    def train(rank: int) -> None:
        reports[rank] = pair[rank].update(make_batch(7))

    threads = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    alone = make_trainer()
    expected = alone.update(make_batch(7)).metrics
    assert reports[0].metrics == reports[1].metrics
    assert reports[0].metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert state_bytes(pair[0]) == state_bytes(pair[1])
    # The first step of Adam is the sign of the gradient, so compare gradients through the second moment.
    for name, tensor in alone._masters.state().items():
        if name.startswith("exp_avg/"):
            torch.testing.assert_close(pair[0]._masters.state()[name], tensor, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("objective", [{"micro_batch_tokens": 40}, {"micro_batch_tokens": 30, "layout": "packed"}])
def test_micro_batches_make_what_the_whole_batch_makes(objective: dict[str, Any]) -> None:
    cut, whole = make_trainer(objective=objective), make_trainer()
    found, expected = (trainer.update(make_batch(9)).metrics for trainer in (cut, whole))
    assert len(cut._rows(make_batch(9))) > 2
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    for name, tensor in whole._masters.state().items():
        if name.startswith("exp_avg/"):
            torch.testing.assert_close(cut._masters.state()[name], tensor, rtol=1e-4, atol=1e-7)


def test_several_updates_leave_the_sampled_policy_and_are_clipped() -> None:
    once = make_trainer(optimizer={"learning_rate": 1e-2})
    often = make_trainer(optimizer={"learning_rate": 1e-2}, objective={"updates_per_batch": 4})
    assert once.update(make_batch()).metrics["update/clipped_fraction"] == 0.0
    report = often.update(make_batch())
    assert report.metrics["update/clipped_fraction"] > 0.0
    assert report.metrics["update/updates"] == 4.0
    assert digest(once) != digest(often)
    assert often.version == 1


def test_one_update_of_several_passes_is_that_of_one() -> None:
    """Old log-probs computed beforehand are the detached current ones."""
    batch = make_batch()
    first = make_trainer()
    rows = first._rows(batch)
    old = first._score(first.model, batch, rows)
    first._step(batch, rows, 1e-3, old, None)
    second = make_trainer()
    second.update(batch)
    assert state_bytes(first) == state_bytes(second)


def test_kl_term() -> None:
    with pytest.raises(UpdateError, match="reference"):
        make_trainer(objective={"kl_coefficient": 0.1})
    gaps: dict[float, float] = {}
    for coefficient in (0.0, 50.0):
        config = make_config(objective={"kl_coefficient": coefficient}, optimizer={"learning_rate": 3e-3})
        trainer = PolicyTrainer(config, make_policy(), reference=make_policy())
        kls = [trainer.update(make_batch(step=step)).metrics["update/kl"] for step in range(6)]
        gaps[coefficient] = kls[-1]
        assert abs(kls[0]) < 1e-3  # the reference here is not rounded to bf16
    assert gaps[50.0] < gaps[0.0] / 2


def test_bf16_compute_trains() -> None:
    model = make_policy().to(torch.bfloat16)
    trainer = PolicyTrainer(make_config(), model)
    batch = replace(make_batch(6), advantages=np.array([1, -1, 1, -1, 1, -1], np.float32))
    before = trainer.logprobs(batch)
    for step in range(3):
        trainer.update(replace(batch, step=step))
    gain = np.add.reduceat(trainer.logprobs(batch) - before, batch.offsets[:-1])
    assert (np.sign(gain) == batch.advantages).all()
    assert all(weight.dtype == torch.float32 for weight in trainer._masters.weights.values())


def test_warm_up() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4)
    assert [warmed_up(config, step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmed_up(OptimizerConfig(learning_rate=0.5), 0) == 0.5


def test_gradients_are_clipped() -> None:
    loose, tight = (make_trainer(optimizer={"learning_rate": 1e-3, "max_grad_norm": norm}) for norm in (1e9, 1e-3))
    norms = [trainer.update(make_batch()).metrics["update/grad_norm"] for trainer in (loose, tight)]
    assert norms[0] == norms[1] > 1e-3
    moments = [
        sum(float(t.square().sum()) for name, t in trainer._masters.state().items() if name.startswith("exp_avg/"))
        ** 0.5
        for trainer in (loose, tight)
    ]
    assert moments[0] == pytest.approx(norms[0] * 0.1, rel=1e-3)
    assert moments[1] == pytest.approx(1e-3 * 0.1, rel=1e-3)


def test_effective_sample_size() -> None:
    assert effective_sample_size(np.zeros(8)) == pytest.approx(1.0)
    assert effective_sample_size(np.full(8, 700.0)) == pytest.approx(1.0)
    assert effective_sample_size(np.array([0.0, -800, -800, -800])) == pytest.approx(0.25)
    assert effective_sample_size(np.log([1.0, 2.0])) == pytest.approx(9 / 5 / 2)


def test_mismatch_counts_policy_tokens_alone() -> None:
    batch = make_batch(4)
    garbage = np.where(batch.loss_mask, batch.sampler_logprobs, np.nan).astype(np.float32)
    trainer_logprobs = np.where(batch.loss_mask, batch.sampler_logprobs, 7.0).astype(np.float32)
    same = mismatch_metrics(replace(batch, sampler_logprobs=garbage), trainer_logprobs)
    assert same == {"mismatch/mean": 0, "mismatch/p99": 0, "mismatch/max": 0, "tis/effective_sample_size": 1.0}
    place = int(np.flatnonzero(batch.loss_mask)[0])
    trainer_logprobs[place] += np.float32(np.log(2))
    moved = mismatch_metrics(batch, trainer_logprobs)
    assert moved["mismatch/max"] == pytest.approx(np.log(2), rel=1e-4)
    assert moved["mismatch/mean"] == pytest.approx(np.log(2) / batch.num_trainable_tokens, rel=1e-4)
    assert moved["tis/effective_sample_size"] == pytest.approx(25 / 7 / 4, rel=1e-4)
