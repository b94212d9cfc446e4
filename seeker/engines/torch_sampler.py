"""Continuous batching over a transformers causal language model, in torch.

A trajectory keeps its slot, and with it its keys and values, from its first turn to its last: only new tokens are ever
prefilled, a prompt once for all sequences that share it. Running sequences stand in slots 0..m-1.
"""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from seeker.engines.draws import draw
from seeker.engines.sampler import SampleParams, SamplerCounts, SampleRequest
from seeker.engines.slot_cache import Chunk, Layout, SlotCache, check_model, slot_attention
from seeker.engines.stops import StopDetector, eos_token_ids
from seeker.errors import PolicyError
from seeker.types import Completion, FinishReason

_FREE = -1


class TorchSampler:
    """A sampler over `model`, whose weights the caller loads in place; `adopt` names the version they are of."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        slots: int,
        max_length: int,
        temperature: float = 1.0,
        policy_version: int = 0,
    ) -> None:
        check_model(model, max_length)
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._slots = slots
        self._max_length = max_length
        self._temperature = temperature
        self._version = policy_version
        head: Any = cast(Any, model).get_output_embeddings()
        self._vocab_size = int(head.weight.shape[0])
        self._eos = eos_token_ids(tokenizer, model)
        self._cache = SlotCache(slots, max_length)
        self._detectors: dict[tuple[str, ...], StopDetector] = {}
        self._columns = torch.arange(max_length, device=model.device)
        self.open(SampleParams(stop_strings=()))

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def temperature(self) -> float:
        return self._temperature

    @property
    def max_length(self) -> int:
        return self._max_length

    def adopt(self, policy_version: int) -> None:
        """The model's weights are now those of `policy_version`: everything computed with older ones is dropped."""
        self._version = policy_version
        with torch.inference_mode():  # the cache's rows were made in it
            self._cache.clear()
        self.open(SampleParams(stop_strings=()))

    def open(self, params: SampleParams) -> None:
        shape = (self._slots, self._max_length)
        if params.stop_strings not in self._detectors:
            self._detectors[params.stop_strings] = StopDetector(
                self._tokenizer, params.stop_strings, self._eos, self._vocab_size
            )
        self._stops = self._detectors[params.stop_strings]
        self._greedy = params.greedy
        self._waiting: deque[SampleRequest] = deque()
        self._prompts: dict[bytes, list[Tensor]] = {}  # keys and values of prompts that waiting sequences share
        self._slot_of: dict[int, int] = {}
        self._sequence = np.full(self._slots, _FREE, np.int64)  # [S]
        self._running = np.zeros(self._slots, np.bool_)  # [S]
        self._cached = np.zeros(self._slots, np.int64)  # [S] tokens whose keys are in the cache
        self._known = np.zeros(self._slots, np.int64)  # [S] tokens of the sequence so far
        self._start = np.zeros(self._slots, np.int64)  # [S] where the turn began
        self._end = np.zeros(self._slots, np.int64)  # [S] where the turn must end
        self._ids = np.zeros(shape, np.int64)  # [S, T]
        self._logprobs = np.zeros(shape, np.float32)  # [S, T]
        self._uniforms = np.zeros(shape, np.float64)  # [S, T] one per position, so no turn or batch moves a draw
        self._generated = 0
        self._prefilled = 0

    def submit(self, request: SampleRequest) -> None:
        slot = self._slot_of.get(request.sequence)
        if slot is None:
            self._waiting.append(request)
        else:
            self._extend(slot, request)

    def release(self, sequence: int) -> None:
        slot = self._slot_of.pop(sequence)
        self._sequence[slot] = _FREE
        self._running[slot] = False

    def counts(self) -> SamplerCounts:
        return SamplerCounts(self._generated, self._prefilled)

    def collect(self) -> list[tuple[int, Completion]]:
        with slot_attention(self._model), torch.inference_mode():
            self._admit()
            self._make_compact()
            num_running = int(self._running.sum())
            if num_running == 0:
                raise RuntimeError("collect() without a submitted turn")
            while True:
                tokens = self._sample_next(num_running)
                if ended := self._ended(num_running, tokens):
                    return sorted(ended, key=lambda item: item[0])

    # Admission and places

    def _extend(self, slot: int, request: SampleRequest) -> None:
        known = int(self._known[slot])
        start = known + len(request.token_ids)
        if start + request.max_tokens > self._max_length:
            raise ValueError(f"{start} tokens and {request.max_tokens} new ones in a slot of {self._max_length}")
        self._ids[slot, known:start] = request.token_ids
        self._known[slot] = self._start[slot] = start
        self._end[slot] = start + request.max_tokens
        self._running[slot] = True
        self._prefilled += len(request.token_ids)

    def _admit(self) -> None:
        """Waiting sequences enter free slots, first come first served; a new prompt is prefilled once."""
        for slot in np.flatnonzero(self._sequence == _FREE):
            if not self._waiting:
                self._prompts.clear()
                return
            self._enter(int(slot), self._waiting.popleft())

    def _enter(self, slot: int, request: SampleRequest) -> None:
        self._sequence[slot] = request.sequence
        self._slot_of[request.sequence] = slot
        self._known[slot] = self._cached[slot] = 0
        self._uniforms[slot] = np.random.Generator(np.random.Philox(key=request.key)).random(self._max_length)
        self._extend(slot, request)
        length = len(request.token_ids) - 1  # the last token is fed by the turn itself: its logits are wanted
        name = request.token_ids.tobytes()
        if length == 0:
            return
        if name in self._prompts:
            self._cache.load_rows(self._prompts[name], slot)
            self._prefilled -= length
        else:
            self._forward(0, [(slot, 0, length)])
            self._prompts = {name: self._cache.save_rows(slot, length)}
        self._cached[slot] = length

    def _make_compact(self) -> None:
        """Moves running sequences from the last slots into the gaps, so that they fill slots 0..m-1."""
        num_running = int(self._running.sum())
        gaps = np.flatnonzero(~self._running[:num_running])
        strays = num_running + np.flatnonzero(self._running[num_running:])
        for gap, stray in zip(gaps.tolist(), strays.tolist(), strict=True):
            self._swap(gap, stray)

    def _swap(self, gap: int, stray: int) -> None:
        kept = None
        if self._sequence[gap] != _FREE:
            kept = self._cache.save_rows(gap, int(self._cached[gap]))
            self._slot_of[int(self._sequence[gap])] = stray
        self._cache.copy_rows(stray, [gap], int(self._cached[stray]))
        if kept is not None:
            self._cache.load_rows(kept, stray)
        self._slot_of[int(self._sequence[stray])] = gap
        for state in (self._sequence, self._running, self._cached, self._known, self._start, self._end):
            state[[gap, stray]] = state[[stray, gap]]
        for rows in (self._ids, self._logprobs, self._uniforms):
            rows[[gap, stray]] = rows[[stray, gap]]

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._model.device)  # pyright: ignore[reportUnknownMemberType]

    # Forward passes

    def _sample_next(self, num_running: int) -> NDArray[np.int64]:
        """One more token for slots 0..m-1. Returns the tokens, shape [m]."""
        slots = np.arange(num_running)
        known = self._known[:num_running]
        behind = np.flatnonzero(self._cached[:num_running] < known - 1)
        chunks = [(int(slot), int(self._cached[slot]), int(known[slot]) - 1) for slot in behind]
        logits = self._forward(num_running, chunks)
        drawn = draw(logits, self._temperature, None if self._greedy else self._tensor(self._uniforms[slots, known]))
        tokens, logprobs = (each.cpu().numpy() for each in drawn)
        if not np.isfinite(logprobs).all():
            raise PolicyError(f"policy version {self._version} gives log-probs that are not finite")
        self._ids[slots, known] = tokens
        self._logprobs[slots, known] = logprobs
        self._cached[:num_running] = known
        self._known[:num_running] += 1
        self._generated += num_running
        return tokens

    def _forward(self, num_newest: int, chunks: list[tuple[int, int, int]]) -> Tensor:
        """Feeds the newest tokens of slots 0..m-1 and (slot, first, last) ranges. Returns logits [m, V]."""
        slots = [np.arange(num_newest)] + [np.full(last - first, slot) for slot, first, last in chunks]
        positions = [self._known[:num_newest] - 1] + [np.arange(first, last) for _, first, last in chunks]
        slot_row, position_row = np.concatenate(slots), np.concatenate(positions)
        device = self._model.device
        positions_there = self._tensor(position_row)
        self._cache.layout = self._lay_out(self._tensor(slot_row), positions_there, num_newest, chunks)
        keep = torch.arange(max(num_newest, 1), device=device) if chunks else 0
        output: Any = self._model(
            input_ids=self._tensor(self._ids[slot_row, position_row])[None],
            position_ids=positions_there[None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep,
            slot_cache=self._cache,
        )
        return output.logits[0]

    def _lay_out(self, slots: Tensor, positions: Tensor, num_newest: int, chunks: list[tuple[int, int, int]]) -> Layout:
        length = int(self._known[:num_newest].max()) if num_newest else 0
        newest = self._mask(positions[:num_newest], length)[:, None, None]
        placed: list[Chunk] = []
        row = num_newest
        for slot, first, last in chunks:
            mask = self._mask(positions[row : row + last - first], last)
            placed.append(Chunk(row, row + last - first, slot, first, mask))
            row += last - first
        return Layout(slots, positions, num_newest, length, newest, tuple(placed))

    def _mask(self, positions: Tensor, length: int) -> Tensor:
        """Additive mask [N, length]: a token sees its own position and those before it."""
        hidden = self._columns[:length] > positions[:, None]
        return torch.zeros(hidden.shape, dtype=self._model.dtype, device=hidden.device).masked_fill_(
            hidden, float("-inf")
        )

    # Ends of turns

    def _ended(self, num_running: int, tokens: NDArray[np.int64]) -> list[tuple[int, Completion]]:
        full = self._known[:num_running] >= self._end[:num_running]
        ended: list[tuple[int, Completion]] = []
        for slot in np.flatnonzero(full | self._stops.candidates[tokens]).tolist():
            turn_ids = self._ids[slot, self._start[slot] : self._known[slot]]
            finish = self._stops.finish(turn_ids) if self._stops.candidates[tokens[slot]] else None
            if finish is None and full[slot]:
                finish = FinishReason.LENGTH
            if finish is not None:
                ended.append((int(self._sequence[slot]), self._complete(slot, turn_ids, finish)))
        return ended

    def _complete(self, slot: int, turn_ids: NDArray[np.int64], finish: FinishReason) -> Completion:
        self._running[slot] = False
        logprobs = self._logprobs[slot, self._start[slot] : self._known[slot]].copy()
        return Completion(turn_ids.astype(np.int32), logprobs, self._stops.text(turn_ids), finish)
