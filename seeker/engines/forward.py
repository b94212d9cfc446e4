"""From a micro-batch to the log-probs of its trainable tokens: the trainer's forward pass.

Two layouts give the same numbers: `padded` (one row a trajectory, padded at its end, where causal attention needs no
mask) and `packed` (one row, a block-diagonal mask and positions that start again).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from seeker.packing import Batch, Indices, Layout


@dataclass(frozen=True, slots=True)
class Rows:
    """One micro-batch as the model reads it. R rows, T tokens a row, M trainable tokens.

    Example: one trajectory ``[5, 9, 2]`` whose last two tokens are trainable: ``input_ids == [[5, 9, 2]]``,
    ``predictors == [0, 1]`` (a token is predicted from the one before it), ``targets == [9, 2]``, ``places == [1, 2]``.
    """

    input_ids: Tensor  # [R, T]
    position_ids: Tensor  # [R, T]
    attention_mask: Tensor | None  # [1, 1, T, T] added to the attention scores
    predictors: Tensor  # [M] into the R * T hidden states
    targets: Tensor  # [M]
    places: Indices  # [M] into the batch's flat arrays


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What the policy gives to the trainable tokens, at the sampling temperature."""

    logprobs: Tensor  # [M] fp32
    entropies: Tensor  # [M] fp32, without gradient


def build_rows(batch: Batch, indices: Indices, layout: Layout, device: torch.device, dtype: torch.dtype) -> Rows:
    """The trajectories at `indices` as rows."""
    starts, lengths = batch.offsets[indices], batch.lengths[indices]
    if layout == "packed":
        width, begins = int(lengths.sum()), np.concatenate([[0], np.cumsum(lengths)[:-1]])
        num_rows = 1
    else:
        width, begins = int(lengths.max()), np.arange(len(indices)) * int(lengths.max())
        num_rows = len(indices)
    input_ids = np.zeros(num_rows * width, np.int64)
    positions = np.zeros(num_rows * width, np.int64)
    predictors: list[Indices] = []
    places: list[Indices] = []
    for start, length, begin in zip(starts.tolist(), lengths.tolist(), begins.tolist(), strict=True):
        input_ids[begin : begin + length] = batch.token_ids[start : start + length]
        positions[begin : begin + length] = np.arange(length)
        trainable = np.flatnonzero(batch.loss_mask[start : start + length])
        predictors.append(begin + trainable - 1)
        places.append(start + trainable)
    flat_places = np.concatenate(places)
    return Rows(
        input_ids=to_tensor(input_ids.reshape(num_rows, width), device),
        position_ids=to_tensor(positions.reshape(num_rows, width), device),
        attention_mask=_block_mask(lengths, device, dtype) if layout == "packed" else None,
        predictors=to_tensor(np.concatenate(predictors), device),
        targets=to_tensor(batch.token_ids[flat_places].astype(np.int64), device),
        places=flat_places,
    )


def score_tokens(model: PreTrainedModel, rows: Rows, temperature: float, *, plain_head: bool) -> TokenScores:
    """Log-probs and entropies of the trainable tokens; only their logits are computed when the head is plain."""
    inputs: dict[str, Any] = {
        "input_ids": rows.input_ids,
        "position_ids": rows.position_ids,
        "attention_mask": rows.attention_mask,
        "use_cache": False,
    }
    if plain_head:
        hidden = cast(Tensor, model.base_model(**inputs).last_hidden_state)  # [R, T, H]
        selected = hidden.flatten(0, 1).index_select(0, rows.predictors)  # [M, H]
        logits = cast(Module, model.get_output_embeddings())(selected)  # [M, V]
    else:
        logits = cast(Tensor, model(**inputs).logits).flatten(0, 1).index_select(0, rows.predictors)
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)  # [M, V]
    with torch.no_grad():
        # A token of log-prob -inf adds 0 to the entropy, not 0 * inf.
        entropies = -(logprobs.exp() * logprobs.clamp_min(-1e4)).sum(-1)
    return TokenScores(logprobs.gather(-1, rows.targets[:, None])[:, 0], entropies)


def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are the output embeddings applied to the last hidden states and nothing more.

    Some architectures scale or cap their logits; for those all logits are computed by the model itself.
    """
    head = cast(Module | None, model.get_output_embeddings())
    if head is None:
        return False
    ids = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return bool(torch.equal(head(hidden), model(input_ids=ids, use_cache=False).logits))


def _block_mask(lengths: NDArray[np.int64], device: torch.device, dtype: torch.dtype) -> Tensor:
    owner = to_tensor(np.repeat(np.arange(len(lengths)), lengths), device)  # [T]
    seen = (owner[:, None] == owner[None, :]).tril()
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)
    return mask[None, None]


def to_tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """The array as a tensor on `device`."""
    return torch.from_numpy(array).to(device)  # pyright: ignore[reportUnknownMemberType]
