"""The policy on this machine: load it, read its bf16 values out, write them in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from seeker.config import PolicyConfig
from seeker.errors import PolicyError

Export = Mapping[str, NDArray[np.uint16]]  # name -> bf16 bits in the parameter's shape; tied weights once

HUB = "hub:"
_PROJECT = Path(__file__).resolve().parents[2]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_policy(config: PolicyConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The starting policy in the compute dtype, frozen in evaluation mode, and its tokenizer.

    `path` is a folder in transformers' layout, sought from the working directory and then from the project; the hub is
    asked only for ``hub:NAME``. Raises `PolicyError` naming file and remedy.
    """
    source, local = _source(config.path)
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(source, local_files_only=local))
        model = cast(
            PreTrainedModel,
            AutoModelForCausalLM.from_pretrained(
                source,
                dtype=_DTYPES[config.compute_dtype],
                attn_implementation=config.attention,
                local_files_only=local,
            ),
        )
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, SafetensorError … for a bad folder
        raise PolicyError(f"policy.path {config.path!r}: cannot load it ({type(error).__name__}: {error})") from error
    rows = cast(Any, model.get_input_embeddings()).weight.shape[0]
    if len(tokenizer) > rows:
        raise PolicyError(
            f"policy.path {config.path!r}: the tokenizer has {len(tokenizer)} entries, the model {rows} embeddings; "
            "save both together"
        )
    return model.eval(), tokenizer


def policy_shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, tied weights once."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def export_policy(model: torch.nn.Module) -> dict[str, NDArray[np.uint16]]:
    """The model's weights as bf16 bits (a copy)."""
    return {name: bf16_bits(parameter) for name, parameter in model.named_parameters()}


def bf16_bits(tensor: torch.Tensor) -> NDArray[np.uint16]:
    """The tensor rounded to bf16 (nearest even), as bits in its own shape; always a copy."""
    rounded = tensor.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
    return rounded.view(torch.int16).numpy().view(np.uint16)


def bf16_tensor(bits: NDArray[np.uint16]) -> torch.Tensor:
    """The bf16 tensor with these bits."""
    writable = bits if bits.flags.writeable else bits.copy()  # torch warns about memory it could not write to
    return torch.from_numpy(np.ascontiguousarray(writable).view(np.int16)).view(torch.bfloat16)


def load_export_(model: torch.nn.Module, export: Export) -> None:
    """Write the export's values into the model in place; raises `PolicyError` before anything is written."""
    parameters = dict(model.named_parameters())
    check_export({name: array.shape for name, array in export.items()}, policy_shapes(model))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(bf16_tensor(export[name]))


def check_export(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `PolicyError` naming the first weight that is missing, unknown or of another shape."""
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise PolicyError(
                f"weight {name!r}: the export has shape {found.get(name)}, the policy {expected.get(name)}; "
                "the export belongs to another policy"
            )


def export_digest(export: Export) -> str:
    """xxh3 (128 bit, hex) over names, shapes and bits, in the order of the names."""
    digest = xxhash.xxh3_128()
    for name in sorted(export):
        array = np.ascontiguousarray(export[name])
        digest.update(f"{name}{list(array.shape)}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _source(path: str) -> tuple[str, bool]:
    if path.startswith(HUB):
        return path.removeprefix(HUB), False
    candidates = [Path(path).expanduser()] if Path(path).is_absolute() else [Path(path).expanduser(), _PROJECT / path]
    for folder in candidates:
        if folder.is_dir():
            _check_folder(path, folder)
            return str(folder.resolve()), True
    raise PolicyError(
        f"policy.path {path!r}: no such folder (looked at {', '.join(str(folder) for folder in candidates)}); "
        f"name a folder in transformers' layout, or '{HUB}{path}' to download it"
    )


def _check_folder(path: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise PolicyError(f"policy.path {path!r}: {folder / 'config.json'} is missing; save the model there again")
    if not any(folder.glob("*.safetensors")):
        raise PolicyError(f"policy.path {path!r}: no *.safetensors in {folder}; save the model there again")
