"""The node's GPUs by the names that CUDA_VISIBLE_DEVICES takes."""

from __future__ import annotations

import glob
import os
from itertools import cycle, islice


def found_devices() -> tuple[str, ...]:
    """What this process may use. Example: with CUDA_VISIBLE_DEVICES=2,3 these are ``("2", "3")``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1")
    return tuple(str(index) for index in range(len(glob.glob("/dev/nvidia[0-9]*"))))


def devices_of(num_gpus: int, found: tuple[str, ...]) -> tuple[str, ...]:
    """A device for each GPU of the capacity; one may stand for several, where the capacity is set to share it.

    Example: 4 GPUs of capacity on a machine with ``("0", "1")``: ``("0", "1", "0", "1")``.
    """
    return tuple(islice(cycle(found or map(str, range(num_gpus))), num_gpus))
