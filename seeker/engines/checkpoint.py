"""The trainer's full state on disk: written beside and renamed, read back exactly or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import xxhash
from torch import Tensor

from seeker.errors import CheckpointError
from seeker.runs import store_checkpoint

STATE, FACTS = "state.safetensors", "trainer.json"


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `folder` as a whole and read it back: it holds this checkpoint or, after a crash, what it held before."""
    state = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    described = {**facts, "state_digest": xxhash.xxh3_128_hexdigest(state)}
    store_checkpoint(folder, {STATE: state, FACTS: json.dumps(described, indent=1, sort_keys=True).encode()})


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
