"""The trainer's full state on disk: written beside and renamed, read back exactly or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
import xxhash
from torch import Tensor

from seeker.errors import CheckpointError
from seeker.runs.checkpoints import FACTS, STATE, digest_of, store_checkpoint

DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `folder` as a whole and read it back: it holds this checkpoint or, after a crash, what it held before."""
    state = _pieces(tensors)
    described = {**facts, "state_digest": digest_of(state)}
    store_checkpoint(folder, {STATE: state, FACTS: [json.dumps(described, indent=1, sort_keys=True).encode()]})


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a checkpoint; raises `CheckpointError` naming the file when it is missing or damaged."""
    try:
        facts = cast(dict[str, Any], json.loads((folder / FACTS).read_bytes()))
        state = (folder / STATE).read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: cannot read the checkpoint ({error}); use an older one") from error
    if xxhash.xxh3_128_hexdigest(state) != facts.get("state_digest"):
        raise CheckpointError(f"{folder / STATE}: its digest is not the one in {FACTS}; use an older checkpoint")
    return safetensors.torch.load(state), facts


def _pieces(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The bytes of a safetensors file: its header, then each tensor's own memory, which is large enough not to copy.

    Ordered by element size, as the format's own writer does, so that every tensor lies aligned.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in ordered}
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in held.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = [tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in held.values() if tensor.numel()]
    return [memoryview(len(text).to_bytes(8, "little") + text), *data]
