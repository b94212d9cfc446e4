"""Keys and values of many sequences in fixed slots, and the attention that reads them in place.

One forward pass takes a flat row of tokens, no padding: first the newest token of each running slot (slots 0..m-1, so
that their keys are one view and nothing is gathered), then chunks of older tokens that are not in the cache yet.
Works with every transformers architecture that supports attention back ends.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache

from seeker.errors import PolicyError

ATTENTION = "seeker_slots"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one slot that enter the cache together: rows `first`..`last` of the flat row.

    Example: ``Chunk(first=64, last=90, slot=3, start=310, mask=...)``: 26 tokens at positions 310..335 of slot 3.
    """

    first: int
    last: int
    slot: int
    start: int
    mask: Tensor  # [T, start + T] additive: a token sees itself and what stands before it


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of one forward pass belong."""

    slots: Tensor  # [N]
    positions: Tensor  # [N]
    num_newest: int  # m: the first m rows are the newest tokens of slots 0..m-1
    length: int  # of the longest running slot
    newest_mask: Tensor  # [m, 1, 1, length] additive
    chunks: tuple[Chunk, ...]


class SlotCache(Cache):
    """Keys and values per layer, [S, H, T, D] each; made at the first pass, when their shapes are known."""

    def __init__(self, slots: int, max_length: int) -> None:
        super().__init__(layers=[])
        self.num_slots = slots
        self.max_length = max_length
        self.keys: list[Tensor] = []
        self.key_values: list[Tensor] = []
        self.layout: Layout | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes the row's keys and values [1, H, N, D] to their slots. Attention reads the slots, not the result."""
        if layer_idx == len(self.keys):
            self.keys.append(self._empty(key_states))
            self.key_values.append(self._empty(value_states))
        layout = self._layout()
        self.keys[layer_idx][layout.slots, :, layout.positions] = key_states[0].transpose(0, 1)
        self.key_values[layer_idx][layout.slots, :, layout.positions] = value_states[0].transpose(0, 1)
        return key_states, value_states

    def _empty(self, states: Tensor) -> Tensor:
        # Zeros: what a mask hides must still be a finite number.
        return states.new_zeros(self.num_slots, states.shape[1], self.max_length, states.shape[3])

    def _layout(self) -> Layout:
        if self.layout is None:
            raise PolicyError("the slot cache was used outside of a sampler's forward pass")
        return self.layout

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def clear(self) -> None:
        """Zeroes everything: what a policy with non-finite weights left behind would pass through any mask."""
        for rows in (*self.keys, *self.key_values):
            rows.zero_()

    def copy_rows(self, source: int, targets: list[int], length: int) -> None:
        """Copies the first `length` positions of one slot to others."""
        for rows in (*self.keys, *self.key_values):
            rows[targets, :, :length] = rows[source, :, :length]

    def save_rows(self, slot: int, length: int) -> list[Tensor]:
        """A copy of the first `length` positions of a slot, in the order that `load_rows` takes."""
        return [rows[slot, :, :length].clone() for rows in (*self.keys, *self.key_values)]

    def load_rows(self, saved: list[Tensor], slot: int) -> None:
        """Writes what `save_rows` gave into a slot."""
        for rows, part in zip((*self.keys, *self.key_values), saved, strict=True):
            rows[slot, :, : part.shape[1]] = part

    def attend(self, layer: int, query: Tensor, scaling: float | None) -> Tensor:
        """Attention of the row's queries [1, H, N, D] over their slots. Returns [1, N, H, D].

        Query heads that share a key head are folded into the query's rows, so no key is ever repeated.
        """
        layout = self._layout()
        keys, values = self.keys[layer], self.key_values[layer]
        kv_heads = keys.shape[1]
        num_heads, dim = query.shape[1], query.shape[3]
        rows = query[0].view(kv_heads, num_heads // kv_heads, -1, dim)  # [H, G, N, D]
        output = query.new_empty(query.shape[2], kv_heads, num_heads // kv_heads, values.shape[3])
        if newest := layout.num_newest:
            output[:newest] = F.scaled_dot_product_attention(
                rows[:, :, :newest].permute(2, 0, 1, 3),
                keys[:newest, :, : layout.length],
                values[:newest, :, : layout.length],
                attn_mask=layout.newest_mask,
                scale=scaling,
            )
        for chunk in layout.chunks:
            end = chunk.start + chunk.last - chunk.first
            # The key heads stand as the batch and are repeated by a view over the group.
            attended = F.scaled_dot_product_attention(
                rows[:, :, chunk.first : chunk.last],
                keys[chunk.slot, :, None, :end].expand(-1, rows.shape[1], -1, -1),
                values[chunk.slot, :, None, :end].expand(-1, rows.shape[1], -1, -1),
                attn_mask=chunk.mask,
                scale=scaling,
            )
            output[chunk.first : chunk.last] = attended.permute(2, 0, 1, 3)
        return output.view(1, query.shape[2], num_heads, values.shape[3])


def _slot_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    slot_cache: SlotCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if slot_cache is None or kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise PolicyError(
            f"{type(module).__name__} cannot be sampled here: it hands no arguments to its attention, or caps or sinks "
            "attention scores; use another architecture or another sampler"
        )
    return slot_cache.attend(module.layer_idx, query, scaling), None


AttentionInterface.register(ATTENTION, _slot_attention)  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def slot_attention(model: PreTrainedModel) -> Generator[None]:
    """The model attends over slots inside, and as configured outside."""
    config = model.config
    before = config._attn_implementation  # pyright: ignore[reportPrivateUsage]
    config._attn_implementation = ATTENTION  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        config._attn_implementation = before  # pyright: ignore[reportPrivateUsage]


def check_model(model: PreTrainedModel, max_length: int) -> None:
    """Refuses a model that slots cannot serve, before anything is sampled."""
    config: Any = model.config
    name = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise PolicyError(f"{name} does not support attention back ends: the torch sampler cannot keep its keys")
    window = getattr(config, "sliding_window", None)
    kinds: set[str] = set(getattr(config, "layer_types", None) or ["full_attention", "sliding_attention"])
    if kinds - {"full_attention", "sliding_attention"}:
        raise PolicyError(f"{name} has layers of kinds {sorted(kinds)}: the torch sampler knows full attention only")
    if "sliding_attention" in kinds and window is not None and window < max_length:
        raise PolicyError(f"{name} has a sliding window of {window} tokens, shorter than a trajectory ({max_length})")
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and limit < max_length:
        raise PolicyError(f"{name} holds {limit} positions, fewer than rollout.max_trajectory_tokens = {max_length}")
