"""The manifest of a published policy version: where its bytes are and which of them count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shard:
    """One object that holds a range of the policy's values: an anchor and the deltas on it that count.

    Example: values 0 to 1000, anchor at object version 1, deltas at 2 and 4 (3 was left by a stage that failed):
    ``Shard("app/run/5b2c", "grpc://127.0.0.1:9090", 0, 1000, base_version=1, patches=(2, 4))``.
    """

    key: str
    endpoint: str
    start: int
    stop: int
    base_version: int
    patches: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        """The object version after which nothing of this manifest is found."""
        return self.patches[-1] if self.patches else self.base_version


@dataclass(frozen=True, slots=True)
class Manifest:
    """One published policy version. Small enough to travel inside each call."""

    version: int
    digest: str  # of the whole export
    num_values: int
    shards: tuple[Shard, ...]
    anchor_version: int  # the policy version that the anchors hold
    anchor_bytes: int
    delta_bytes: int  # of all deltas since the anchor
    bytes_written: int  # for this version
    changed_fraction: float  # of all values, against the version before; 1 for the first

    def continues(self, held: Manifest) -> bool:
        """Whether this version is reached from `held` by its newer deltas alone."""
        return len(held.shards) == len(self.shards) and all(
            (old.key, old.endpoint, old.base_version, old.start, old.stop)
            == (new.key, new.endpoint, new.base_version, new.start, new.stop)
            and new.patches[: len(old.patches)] == old.patches
            for old, new in zip(held.shards, self.shards, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; runs of patch versions as pairs, so that 400 deltas in 25 shards stay below a kilobyte."""
        shards = [{**asdict(shard), "patches": _runs(shard.patches)} for shard in self.shards]
        return {**asdict(self), "shards": shards}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        shards: list[Shard] = []
        for plain in value["shards"]:
            shard: dict[str, Any] = {**plain, "patches": _unrolled(plain["patches"])}
            shards.append(Shard(**shard))
        fields: dict[str, Any] = {**value, "shards": tuple(shards)}
        return cls(**fields)


def _runs(versions: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return runs


def _unrolled(runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(version for first, last in runs for version in range(first, last + 1))
