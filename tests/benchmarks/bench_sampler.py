"""Torch sampler against transformers' `generate`, both driven by the same rollout in one run.

The other side is what most trainers do on a CPU: one batched, left-padded `generate` per turn over the whole history,
prefilled anew. It is spared what it would need for training (log-probs) and stops on single tokens.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from transformers import PreTrainedModel

from seeker.actions import STOP_STRINGS
from seeker.config import PromptConfig, RolloutConfig
from seeker.engines.sampler import SampleParams, SamplerCounts, SampleRequest
from seeker.engines.torch_sampler import TorchSampler
from seeker.prompt import decode
from seeker.rollout import RolloutReport, run_rollout
from seeker.tools import SearchTool
from seeker.types import Completion, Document, FinishReason, Passage, Question, TokenIds
from tests.rollout.tiny import make_talker, make_tokenizer

CONFIG = RolloutConfig(
    group_size=8, max_searches=2, max_malformed=1, max_turn_tokens=96, max_observation_tokens=128,
    max_trajectory_tokens=768, top_k=2, slots=64,
)  # fmt: skip
PROMPT = PromptConfig(system="Think, search, then answer. ", user="Question: {question}\n")


class GenerateSampler:
    """`generate` behind the sampler's interface: every collect() finishes all submitted turns in one call."""

    temperature = 1.0
    max_length = 10_000

    def __init__(self, model: PreTrainedModel, tokenizer: object) -> None:
        self.policy_version = 0
        self._model = model
        self._tokenizer = tokenizer
        self._stops: list[int] = tokenizer.convert_tokens_to_ids(list(STOP_STRINGS))
        self._eos = int(tokenizer.eos_token_id)

    def adopt(self, policy_version: int) -> None:
        self.policy_version = policy_version

    def open(self, params: SampleParams) -> None:
        self._history: dict[int, TokenIds] = {}
        self._wanted: dict[int, int] = {}
        self._generated = self._prefilled = 0

    def submit(self, request: SampleRequest) -> None:
        before = self._history.get(request.sequence, np.zeros(0, np.int32))
        self._history[request.sequence] = np.concatenate([before, request.token_ids])
        self._wanted[request.sequence] = request.max_tokens

    def release(self, sequence: int) -> None:
        del self._history[sequence]

    def counts(self) -> SamplerCounts:
        return SamplerCounts(self._generated, self._prefilled)

    def collect(self) -> list[tuple[int, Completion]]:
        sequences = sorted(self._wanted)
        length = max(len(self._history[each]) for each in sequences)
        ids = torch.full((len(sequences), length), int(self._tokenizer.pad_token_id))
        mask = torch.zeros_like(ids)
        for row, each in enumerate(sequences):
            history = torch.from_numpy(self._history[each].astype(np.int64))
            ids[row, length - len(history) :] = history
            mask[row, length - len(history) :] = 1
            self._prefilled += len(history)
        output = self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(self._wanted.values()),
            eos_token_id=[self._eos, *self._stops],
            pad_token_id=int(self._tokenizer.pad_token_id),
        )
        ended = [self._complete(each, output[row, length:].numpy()) for row, each in enumerate(sequences)]
        self._wanted.clear()
        return ended

    def _complete(self, sequence: int, new: np.ndarray) -> tuple[int, Completion]:
        ends = np.flatnonzero(np.isin(new, [self._eos, *self._stops]))
        ids = new[: ends[0] + 1 if len(ends) else len(new)][: self._wanted[sequence]].astype(np.int32)
        finish = FinishReason.LENGTH
        if ids[-1] in self._stops:
            finish = FinishReason.STOP
        elif ids[-1] == self._eos:
            finish = FinishReason.EOS
        self._history[sequence] = np.concatenate([self._history[sequence], ids])
        self._generated += len(ids)
        return sequence, Completion(ids, np.zeros(len(ids), np.float32), decode(self._tokenizer, ids), finish)


class _Paragraphs:
    """Retrieval that costs next to nothing and gives paragraphs of a usual length."""

    def search(self, query: str, k: int) -> list[Passage]:
        text = "is a film of 1921 directed by Iro Tal, who was born in the town of Velm in Oru"
        return [Passage(Document(f"d{at}", f"Ama {at}", text), 1.0) for at in range(k)]


def main() -> None:
    """Prints tokens per second of both, their ratio, and the sampler's busy share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(vocab_size=1852)
    model = make_talker(tokenizer, layers=3, hidden=128)
    questions = [
        Question(f"q{at}", f"In which town was film {at} made?", ("Velm",)) for at in range(arguments.questions)
    ]
    ours = TorchSampler(model, tokenizer, slots=CONFIG.slots, max_length=CONFIG.max_trajectory_tokens)
    samplers = {"torch sampler": ours, "generate": GenerateSampler(model, tokenizer)}
    best: dict[str, tuple[float, RolloutReport]] = {}
    for repeat in range(arguments.repeats):
        for name, sampler in samplers.items():
            trajectories, report = run_rollout(
                questions, sampler=sampler, tool=SearchTool(_Paragraphs(), CONFIG.top_k), tokenizer=tokenizer,
                config=CONFIG, prompt=PROMPT, group_size=CONFIG.group_size, step=repeat, seed=0,
            )  # fmt: skip
            rate = report.generated_tokens / report.sampler_s
            turns = np.mean([each.num_turns for each in trajectories])
            print(f"{name:14} {rate:8.0f} tokens/s  {report.generated_tokens} sampled, {report.prefilled_tokens} "
                  f"prefilled, {turns:.1f} turns, {report.wall_s:.2f} s", flush=True)  # fmt: skip
            if name not in best or rate > best[name][0]:
                best[name] = (rate, report)
    report = best["torch sampler"][1]
    print(f"ratio torch sampler / generate: {best['torch sampler'][0] / best['generate'][0]:.2f} (target 3)")
    print(f"busy share of the rollout: {report.sampler_s / report.wall_s:.3f} (target 0.9)")


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s in all")
