"""The policy on this machine: load it; its weights as bf16 bits are in `seeker.weights`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from seeker.config import PolicyConfig
from seeker.engines.devices import CPU
from seeker.errors import PolicyError
from seeker.exports import Export, export_digest
from seeker.weights import bf16_bits, bf16_tensor, export_policy, load_export_, policy_shapes, round_to_bf16_

__all__ = [
    "Export",
    "bf16_bits",
    "bf16_tensor",
    "export_digest",
    "export_policy",
    "load_export_",
    "load_policy",
    "policy_shapes",
]

HUB = "hub:"
_PROJECT = Path(__file__).resolve().parents[2]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# transformers replaces `tie_weights` of its base class while it loads; two threads at once would leave it replaced.
_loading = threading.Lock()


def load_policy(config: PolicyConfig, device: torch.device = CPU) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The starting policy in the compute dtype on `device`, in evaluation mode, and its tokenizer.

    The weights are rounded to bf16, whatever the file holds: so version 0 is the same policy for every sampler and for
    the trainer, whether it came from the file or was published.

    `path` is a folder in transformers' layout, sought from the working directory and then from the project; the hub is
    asked only for ``hub:NAME``. Raises `PolicyError` naming file and remedy.
    """
    source, local = _source(config.path)
    transformers_logging.disable_progress_bar()
    try:
        with _loading:
            tokenizer = _from_pretrained(AutoTokenizer, source, local_files_only=local)
            model = _from_pretrained(
                AutoModelForCausalLM,
                source,
                dtype=_DTYPES[config.compute_dtype],
                attn_implementation=config.attention,
                local_files_only=local,
            )
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, SafetensorError … for a bad folder
        raise PolicyError(f"policy.path {config.path!r}: cannot load it ({type(error).__name__}: {error})") from error
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise PolicyError(
            f"policy.path {config.path!r}: the tokenizer has {len(tokenizer)} entries, the model {rows} embeddings; "
            "save both together"
        )
    round_to_bf16_(model)
    model.to(device)
    return model.eval(), tokenizer


def _from_pretrained(loader: Any, source: str, **options: Any) -> Any:
    return loader.from_pretrained(source, **options)


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
