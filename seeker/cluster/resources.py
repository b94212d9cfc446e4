"""Resources in the cluster's notation: ``cpu=8,mem=64g,gpu=1``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from seeker.errors import ConfigError

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_MEMORY = re.compile(r"(\d+)([kmgtp]?)i?b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one executor asks for. Example: ``Resources(cpu=2, memory_bytes=4 * 2**30, gpu=1)``."""

    cpu: int = 1
    memory_bytes: int = 2**30
    gpu: int = 0

    def __str__(self) -> str:
        return f"cpu={self.cpu},mem={self.memory_bytes / 2**30:.3g}g,gpu={self.gpu}"


def resources_of(message: Any) -> Resources:
    """From the protocol's message."""
    return Resources(message.cpu, message.memory, max(message.gpu, 0))


def parse_resources(text: str) -> Resources:
    """Read ``cpu=2,mem=4g,gpu=1``; absent parts are one core, 1 GiB, no GPU."""
    values = {"cpu": 1, "mem": 2**30, "gpu": 0}
    seen: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        name = {"memory": "mem"}.get(name.strip().lower(), name.strip().lower())
        match = _MEMORY.fullmatch(value.strip())
        if name not in values or match is None or (name != "mem" and match[2]):
            raise ConfigError(f"resources {text!r}: {part!r} is not one of cpu=N, mem=N[k|m|g|t], gpu=N")
        if name in seen:
            raise ConfigError(f"resources {text!r}: {name} is there twice; name it once")
        seen.add(name)
        values[name] = int(match[1]) * _UNITS[match[2].lower()]
    return Resources(values["cpu"], values["mem"], values["gpu"])
