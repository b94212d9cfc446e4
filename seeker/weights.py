"""A model's weights as bf16 bits: read out, written in place."""

from __future__ import annotations

import numpy as np
import torch

from seeker.exports import Bits, Export, check_export


def policy_shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, tied weights once."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def export_policy(model: torch.nn.Module) -> dict[str, Bits]:
    """The model's weights as bf16 bits (a copy)."""
    return {name: bf16_bits(parameter) for name, parameter in model.named_parameters()}


def load_export_(model: torch.nn.Module, export: Export) -> None:
    """Write the export's values into the model in place; raises `PolicyError` before anything is written."""
    check_export({name: array.shape for name, array in export.items()}, policy_shapes(model))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(bf16_tensor(export[name]))


@torch.no_grad()
def round_to_bf16_(model: torch.nn.Module) -> None:
    """Replace every weight by its bf16 rounding, in the dtype that it has."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))


def bf16_bits(tensor: torch.Tensor) -> Bits:
    """The tensor rounded to bf16 (nearest even), as bits in its own shape; always a copy."""
    rounded = tensor.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
    return rounded.view(torch.int16).numpy().view(np.uint16)


def bf16_tensor(bits: Bits) -> torch.Tensor:
    """The bf16 tensor with these bits."""
    writable = bits if bits.flags.writeable else bits.copy()  # torch warns about memory it could not write to
    return torch.from_numpy(np.ascontiguousarray(writable).view(np.int16)).view(torch.bfloat16)  # pyright: ignore[reportUnknownMemberType]
