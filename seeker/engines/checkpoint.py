"""The trainer's full state on disk: written beside and renamed, read back exactly or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import xxhash
from torch import Tensor

from seeker.errors import CheckpointError

STATE, FACTS = "state.safetensors", "trainer.json"


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `folder` as a whole: it either holds this checkpoint or, after a crash, what it held before."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    fresh.mkdir()
    state = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    _write(fresh / STATE, state)
    described = {**facts, "state_digest": xxhash.xxh3_128_hexdigest(state)}
    _write(fresh / FACTS, json.dumps(described, indent=1, sort_keys=True).encode())
    if folder.exists():
        old = folder.with_name(f"{fresh.name}.old")
        folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old)
    else:
        fresh.rename(folder)
    _sync_folder(folder.parent)


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


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
