"""Trainer ranks: real processes that sum over gloo.

1. 1, 2 and 4 ranks give the same gradients within 1e-6 relative: packed and padded, one pass and several, tied and
   untied weights, uneven slices and empty ones. All ranks hold the very same bits.
2. After several updates the policies of 1, 2 and 4 ranks are as near as fp32 allows; the same ranks again give the
   same bits.
3. A rank that is killed in a sum: the others fail at once with its name. One that hangs: by the deadline.
4. A rank that raises in its pass: the others fail at once and say why.
5. After a failed update nothing was applied, and the ranks can join again in the same process.
6. Who does not join is named by the deadline; a port that is taken is told apart; two gangs never meet.
7. Slices have equal loads, trajectories without a trainable token cost nothing, sums begin in the order of buckets.
"""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from seeker.engines.buckets import GradientBuckets
from seeker.engines.ranks import PendingSum, SingleRank, exchange
from seeker.packing import slice_for_rank
from tests.learning.builders import make_batch, make_llama, make_llama_trainer, rank_gradients, state_bytes
from tests.learning.rank_processes import Place, Processes, free_port, rendezvous

CASES: list[dict[str, Any]] = [
    {"tied": True, "num_trajectories": 9},
    {"tied": False, "num_trajectories": 9, "micro_batch_tokens": 40},
    {"tied": True, "num_trajectories": 11, "micro_batch_tokens": 30, "layout": "packed"},
    {"tied": True, "num_trajectories": 5, "normalize": "trajectories", "layout": "packed"},
    {"tied": True, "num_trajectories": 1},  # the others' slices are empty
    {"tied": False, "num_trajectories": 3, "micro_batch_tokens": 1},
]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    made = Processes(4)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone() -> list[dict[str, Any]]:
    """What one rank computes, in this process."""
    torch.set_num_threads(1)
    return [rank_gradients(SingleRank(), **case) for case in CASES]


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_give_the_gradients_of_one(processes: Processes, alone: list[dict[str, Any]], world: int) -> None:
    found = processes.call("gradients", world, rendezvous(f"gradients-{world}"), CASES)
    for case, expected, *of_ranks in zip(CASES, alone, *found, strict=True):
        first = of_ranks[0]
        for name, gradient in expected["gradients"].items():
            error = np.linalg.norm(first["gradients"][name] - gradient) / np.linalg.norm(gradient)
            assert error < 1e-6, (case, name, error)
        assert first["loss"] == pytest.approx(expected["loss"], rel=1e-6, abs=1e-6)
        np.testing.assert_allclose(first["scores"], expected["scores"], rtol=1e-5, atol=1e-5)
        for other in of_ranks[1:]:
            assert all(
                np.array_equal(other["gradients"][name], first["gradients"][name]) for name in other["gradients"]
            )
            assert np.array_equal(other["scores"], first["scores"])
    assert [each["passes"] for each in (found[0][4], found[1][4])] == [1, 0]
    assert found[0][1]["passes"] > 1


def test_ranks_make_one_policy_and_the_same_one_again(processes: Processes) -> None:
    trainer = make_llama_trainer()
    expected = [trainer.update(make_batch(7, step=step, seed=step)).metrics for step in range(4)]
    reference = {name: tensor.numpy() for name, tensor in trainer._masters.state().items()}
    for world in (2, 4):
        first = processes.call("updates", world, rendezvous(f"first-{world}"), 4)
        again = processes.call("updates", world, rendezvous(f"again-{world}"), 4)
        assert all(each == first[0] for each in (*first, *again))
        state, metrics = first[0]
        for name, tensor in reference.items():
            if name.startswith("master/"):
                found = np.frombuffer(state[name], np.float32).reshape(tensor.shape)
                # Adam divides a gradient that is nearly 0 by its own size: there a rounding error moves a weight by
                # up to the learning rate, 1e-3 a step.
                assert np.abs(found - tensor).mean() < 1e-6, name
                assert np.abs(found - tensor).max() < 1e-3, name
        for ours, theirs in zip(metrics, expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_values_are_exchanged_and_ranks_join_again(processes: Processes) -> None:
    for generation in ("one", "two"):
        found = processes.call("values", 4, rendezvous(generation), [1, 100_003])
        assert found == [[[10.0], [10.0]]] * 4
    assert exchange(SingleRank(), 7) == [7]


def kill_one(processes: Processes, world: int, victim: int, number: int, after_s: float, sum_s: float) -> list[str]:
    """Strike `victim` while all sum 20 MB at a time; the errors of the others, who met the deadline."""
    meeting = rendezvous(f"strike-{time.monotonic()}", sum_s=sum_s)
    processes.begin("sum_for_ever", world, meeting, 5_000_000)
    assert [processes.answer(rank) for rank in range(world)] == ["joined"] * world
    time.sleep(after_s)
    processes.signal(victim, number)
    found = [processes.answer(rank) for rank in range(world) if rank != victim]
    processes.forget(victim)
    assert all(kind == "RankError" for kind, _, _ in found), found
    assert all(seconds < sum_s + 2.0 for _, _, seconds in found), found
    return [text for _, text, _ in found]


@pytest.mark.parametrize("victim", [2, 0])
def test_a_killed_rank_is_named_at_once(processes: Processes, victim: int) -> None:
    started = time.monotonic()
    for text in kill_one(processes, 3, victim, signal.SIGKILL, 0.2, 60.0):
        assert f"no answer from rank {victim} (executor e{victim})" in text
    assert time.monotonic() - started < 40.0


@pytest.mark.drill
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_hangs_is_named_by_the_deadline(processes: Processes, victim: int) -> None:
    for text in kill_one(processes, 2, victim, signal.SIGSTOP, 0.2, 3.0):
        assert f"no answer from rank {victim} (executor e{victim})" in text


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_kills_at_random_moments(processes: Processes) -> None:
    draw = random.Random(4)
    for _ in range(10):
        world = draw.choice([2, 3, 4])
        victim = draw.randrange(world)
        number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        sum_s = 3.0 if number == signal.SIGSTOP else 30.0
        for text in kill_one(processes, world, victim, number, draw.uniform(0.0, 0.4), sum_s):
            assert f"no answer from rank {victim} (executor e{victim})" in text


@pytest.mark.drill
def test_a_failed_update_leaves_everything_and_ranks_join_again(processes: Processes) -> None:
    again = rendezvous("again")
    processes.begin("update_beside_a_death", 3, rendezvous("death"), 1, again)
    survivors = [processes.answer(rank) for rank in (0, 2)]
    processes.forget(1)
    for each in survivors:
        assert "no answer from rank 1 (executor e1)" in each["error"]
        assert each["untouched"]
        assert each["idle"]
    expected, _ = processes.call("updates", 2, rendezvous("undisturbed"), 1)[0]
    assert survivors[0]["state"] == survivors[1]["state"] == expected


def test_a_rank_that_raises_tells_the_others_why(processes: Processes) -> None:
    found = processes.call("update_that_fails", 2, rendezvous("raises"), 1)
    assert found[1] == "MemoryError: no memory left for the pass"
    assert "rank 1 (executor e1) left: MemoryError: no memory left for the pass" in found[0]


def test_who_does_not_join_is_named() -> None:
    meeting = rendezvous("absent", join_s=1.5)
    with pytest.raises(Exception, match=r"rank 1 \(executor e1\) did not join within") as caught:
        Place(0, 2, meeting).join()
    assert type(caught.value).__name__ == "RankError"
    with pytest.raises(Exception, match=r"cannot reach the rendezvous|did not answer") as caught:
        Place(1, 2, rendezvous("nobody", join_s=1.0)).join()
    assert type(caught.value).__name__ == "RankError"


def test_a_taken_port_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(Exception, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            Place(0, 2, rendezvous("taken", port, join_s=5.0)).join()
    assert type(caught.value).__name__ == "PortTakenError"


def test_another_gang_on_the_port_is_never_met(processes: Processes) -> None:
    """Rank 1 of one gang reaches rank 0 of another: both end by their deadline."""
    port = free_port()
    processes.start(2)
    processes.send(0, "values", Place(0, 2, rendezvous("ours", port, join_s=2.5)), [1])
    processes.send(1, "values", Place(1, 2, rendezvous("theirs", port, join_s=2.5)), [1])
    (_, first), (_, second) = processes.answer(0), processes.answer(1)
    assert "rank 1 (executor e1) did not join" in first
    assert "rank 0 (executor e0) did not join" in second or "cannot reach" in second


def test_slices_have_equal_loads() -> None:
    batch = make_batch(40, seed=3, max_length=60)
    for world in (1, 2, 4):
        slices = [slice_for_rank(batch, rank, world) for rank in range(world)]
        loads = [int(batch.lengths[each].sum()) for each in slices]
        assert max(loads) - min(loads) <= batch.lengths.max() / 4
        assert sorted(np.concatenate(slices).tolist()) == list(range(40))
    mask = batch.loss_mask.copy()
    mask[batch.offsets[0] : batch.offsets[20]] = False
    half = replace(batch, loss_mask=mask)
    trainable = [slice_for_rank(half, rank, 2) for rank in (0, 1)]
    loads = [int(half.lengths[each[each >= 20]].sum()) for each in trainable]
    assert max(loads) - min(loads) <= half.lengths.max() / 4
    assert sorted(np.concatenate(trainable).tolist()) == list(range(40))


class Recorder(SingleRank):
    """Notes which tensors were summed, in order."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin_sum_(self, tensor: torch.Tensor) -> PendingSum:
        self.begun.append(tensor.data_ptr())
        return super().begin_sum_(tensor)


def test_sums_begin_in_the_order_of_buckets() -> None:
    """Whatever order gradients come in; those that never come are summed at the end."""
    names = [f"p{number}" for number in range(6)]
    parameters = {name: torch.zeros(20, requires_grad=True) for name in names}
    buckets = GradientBuckets(parameters, bucket_bytes=2 * 32 * 4)
    order = [bucket.flat.data_ptr() for bucket in buckets._buckets]
    assert len(order) == 3  # p5 p4, p3 p2, p1 p0
    ranks = Recorder()
    buckets.arm(ranks)
    steps = {"p3": 0, "p2": 0, "p5": 0, "p4": 2, "p0": 2}
    for name, expected in steps.items():
        (parameters[name] * 2.0).sum().backward()
        assert ranks.begun == order[:expected], name
    buckets.finish_(ranks)
    assert ranks.begun == order
    assert [float(buckets.views[name][0]) for name in names] == [2.0, 0.0, 2.0, 2.0, 2.0, 2.0]


def test_a_bucket_is_summed_while_the_pass_still_runs() -> None:
    """The first sums begin before the embeddings have their gradient; without ranks nothing is summed early."""
    trainer = make_llama_trainer(ranks=Recorder())
    ranks: Any = trainer.ranks
    begun: list[int] = []
    embeddings = trainer.model.get_input_embeddings()
    embeddings.weight.register_post_accumulate_grad_hook(lambda _: begun.append(len(ranks.begun)))
    trainer.update(make_batch(7))
    assert 2 < begun[0] < len(ranks.begun)


def test_gradients_of_early_passes_are_not_summed() -> None:
    trainer = make_llama_trainer(ranks=Recorder(), micro_batch_tokens=1)
    trainer.update(make_batch(5))
    ranks: Any = trainer.ranks
    num_buckets = len(trainer._masters.buckets._buckets)
    assert len(ranks.begun) == num_buckets + 2  # and the scores and the loss
    again = make_llama_trainer(micro_batch_tokens=1)
    again.update(make_batch(5))
    assert state_bytes(again) == state_bytes(trainer)


def test_masters_hold_every_gradient_once() -> None:
    model = make_llama(tied=True)
    buckets = GradientBuckets(dict(model.named_parameters()), 8192)
    flat = sum(bucket.flat.numel() for bucket in buckets._buckets)
    assert {name: tuple(view.shape) for name, view in buckets.views.items()} == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }
    values = sum(view.numel() for view in buckets.views.values())
    assert values <= flat < values + 16 * len(buckets.views)
    assert max(bucket.flat.numel() for bucket in buckets._buckets if len(bucket.names) > 1) * 4 <= 8192
