"""The masters' gradients: flat fp32 buffers that are summed over the ranks while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seeker.engines.ranks import PendingSum, Ranks

BUCKET_BYTES = 8 * 2**20  # large enough for the network, small enough that the first is summed early
_ALIGNED = 16  # values: each gradient starts at a multiple of 64 bytes


@dataclass(frozen=True, slots=True)
class _Bucket:
    flat: Tensor  # [values] fp32
    names: frozenset[str]


class GradientBuckets:
    """One gradient buffer a parameter, cut from buckets in the order in which a backward pass fills them.

    A bucket's sum begins when its last gradient has arrived and all buckets before it have begun, so every rank begins
    the same sums in the same order whatever order its gradients come in.
    """

    def __init__(self, parameters: Mapping[str, Tensor], bucket_bytes: int = BUCKET_BYTES) -> None:
        self.views: dict[str, Tensor] = {}
        self._buckets: list[_Bucket] = []
        for names in _cut(parameters, bucket_bytes // 4):
            self._add(parameters, names)
        self._bucket_of = {name: at for at, bucket in enumerate(self._buckets) for name in bucket.names}
        self._ranks: Ranks | None = None  # set while sums may begin
        self._waiting: list[set[str]] = []  # for each bucket, the gradients that have not arrived
        self._sums: list[PendingSum] = []
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(self._collector(name))  # pyright: ignore[reportUnknownMemberType]

    def clear_(self) -> None:
        """Zeros, and no sum to come."""
        self._disarm()
        for bucket in self._buckets:
            bucket.flat.zero_()

    def arm(self, ranks: Ranks) -> None:
        """The next backward pass is this rank's last: each bucket is complete when it has filled it."""
        self._ranks = ranks
        self._waiting = [set(bucket.names) for bucket in self._buckets]

    def finish_(self, ranks: Ranks, also: Sequence[Tensor] = ()) -> None:
        """Sum what is left, also where this rank had no pass or a parameter no gradient, then `also`; wait for all."""
        rest = [bucket.flat for bucket in self._buckets[len(self._sums) :]]
        self._sums += [ranks.begin_sum_(tensor) for tensor in (*rest, *also)]
        for pending in self._sums:
            pending.wait()
        self._disarm()

    def _add(self, parameters: Mapping[str, Tensor], names: Sequence[str]) -> None:
        sizes = [_padded(parameters[name].numel()) for name in names]
        flat = torch.zeros(sum(sizes), dtype=torch.float32, device=parameters[names[0]].device)
        start = 0
        for name, size in zip(names, sizes, strict=True):
            parameter = parameters[name]
            self.views[name] = flat[start : start + parameter.numel()].view(parameter.shape)
            start += size
        self._buckets.append(_Bucket(flat, frozenset(names)))

    def _collector(self, name: str) -> Callable[[Tensor], None]:
        """Adds a parameter's gradient to its buffer as soon as it is there, and frees it."""

        @torch.no_grad()
        def collect(parameter: Tensor) -> None:
            if parameter.grad is not None:
                self.views[name].add_(parameter.grad)
                parameter.grad = None
            if self._ranks is not None:
                self._arrived(name, self._ranks)

        return collect

    def _arrived(self, name: str, ranks: Ranks) -> None:
        self._waiting[self._bucket_of[name]].discard(name)
        while len(self._sums) < len(self._buckets) and not self._waiting[len(self._sums)]:
            self._sums.append(ranks.begin_sum_(self._buckets[len(self._sums)].flat))

    def _disarm(self) -> None:
        self._ranks, self._waiting, self._sums = None, [], []


def _cut(parameters: Mapping[str, Tensor], bucket_values: int) -> list[list[str]]:
    """Names by bucket, the last parameter first. A parameter larger than a bucket has one of its own."""
    cuts: list[list[str]] = []
    size = 0
    for name, parameter in reversed(list(parameters.items())):
        values = _padded(parameter.numel())
        if not cuts or size + values > bucket_values:
            cuts.append([])
            size = 0
        cuts[-1].append(name)
        size += values
    return cuts


def _padded(values: int) -> int:
    return -(-values // _ALIGNED) * _ALIGNED
