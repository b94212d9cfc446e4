"""A policy version as bf16 bits: by name, and laid out as one flat array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash
from numpy.typing import NDArray

from seeker.errors import PolicyError

Bits = NDArray[np.uint16]
Export = Mapping[str, Bits]  # name -> bf16 bits in the weight's shape; tied weights once


@dataclass(frozen=True, slots=True)
class ExportLayout:
    """Where each weight lies when all are put one after another, in the order of their names.

    Example: ``ExportLayout(("a", "b"), ((2, 3), (4,)))``: ``a`` at 0 to 6, ``b`` at 6 to 10, ``num_values == 10``.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> ExportLayout:
        names = tuple(sorted(shapes))
        return cls(names, tuple(tuple(shapes[name]) for name in names))

    @property
    def offsets(self) -> list[int]:
        offsets = [0]
        for shape in self.shapes:
            offsets.append(offsets[-1] + int(np.prod(shape, dtype=np.int64)))
        return offsets

    @property
    def num_values(self) -> int:
        return self.offsets[-1]

    def flatten(self, export: Export) -> Bits:
        """The export as one array (a copy). Shape [P]."""
        check_export(
            {name: array.shape for name, array in export.items()}, dict(zip(self.names, self.shapes, strict=True))
        )
        parts = [export[name].reshape(-1) for name in self.names]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint16)

    def views(self, values: Bits) -> dict[str, Bits]:
        """The weights by name, as views of a flat array."""
        bounds = pairwise(self.offsets)
        named = zip(self.names, self.shapes, bounds, strict=True)
        return {name: values[start:stop].reshape(shape) for name, shape, (start, stop) in named}

    def shards(self, shard_bytes: int) -> list[tuple[int, int]]:
        """Ranges of values, each of at most `shard_bytes`; a weight may lie in several."""
        size = max(shard_bytes // 2, 1)
        return [(start, min(start + size, self.num_values)) for start in range(0, self.num_values, size)]

    def pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of weights that lie in a shard, counted from the shard's start."""
        cut = [(max(a, start) - start, min(b, stop) - start) for a, b in pairwise(self.offsets)]
        return [(a, b) for a, b in cut if a < b]

    def digest(self, values: Bits) -> str:
        return export_digest(self.views(values))


def export_digest(export: Export) -> str:
    """xxh3 (128 bit, hex) over names, shapes and bits, in the order of the names."""
    digest = xxhash.xxh3_128()
    for name in sorted(export):
        array = np.ascontiguousarray(export[name])
        digest.update(f"{name}{list(array.shape)}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_export(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `PolicyError` naming the first weight that is missing, unknown or of another shape."""
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise PolicyError(
                f"weight {name!r}: the export has shape {found.get(name)}, the policy {expected.get(name)}; "
                "the export belongs to another policy"
            )
