"""When a turn ends: stop strings that a tokenizer may spell with one token or with several, and end of sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seeker.prompt import decode
from seeker.types import FinishReason, Mask


class StopDetector:
    """Finds the end of a turn while looking at text only where a token could complete a stop string.

    Example: with ``</search>`` only tokens that hold ``>`` are candidates; for those the turn's tail is decoded.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str], eos_ids: Iterable[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stop_strings)
        self._tail = max((len(stop.encode()) for stop in stop_strings), default=0) + 4
        self.eos: Mask = np.zeros(vocab_size, np.bool_)  # [V]
        self.eos[[token for token in eos_ids if token < vocab_size]] = True
        self.candidates: Mask = self.eos | _may_complete(tokenizer, self._stops, vocab_size)  # [V]

    def finish(self, turn_ids: NDArray[np.int64]) -> FinishReason | None:
        """Why a turn ends with its newest token, a candidate; None when it goes on."""
        tail = decode(self._tokenizer, turn_ids[-self._tail :])
        if any(stop in tail for stop in self._stops):
            return FinishReason.STOP
        return FinishReason.EOS if self.eos[turn_ids[-1]] else None

    def text(self, turn_ids: NDArray[np.int64]) -> str:
        """The turn's text, cut right after its first stop string."""
        text = decode(self._tokenizer, turn_ids)
        ends = [found + len(stop) for stop in self._stops if (found := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text


def _may_complete(tokenizer: Any, stops: Sequence[str], vocab_size: int) -> Mask:
    """Tokens that may hold the last character of a stop string. Shape [V]."""
    if any(ord(stop[-1]) > 126 for stop in stops):
        return np.ones(vocab_size, np.bool_)  # vocabularies spell such characters in more than one way
    last = {stop[-1] for stop in stops}
    pieces: list[str | None] = tokenizer.convert_ids_to_tokens(list(range(min(vocab_size, len(tokenizer)))))
    # "<0x3E>" is how vocabularies with byte fallback name a single byte, whatever its character.
    found = [piece is not None and (piece.startswith("<0x") or not last.isdisjoint(piece)) for piece in pieces]
    return np.asarray(found + [False] * (vocab_size - len(found)), np.bool_)


def eos_token_ids(tokenizer: Any, model: Any) -> set[int]:
    """The tokens that end a sequence, by the tokenizer and by the model's generation settings."""
    named: list[Any] = [
        tokenizer.eos_token_id,
        getattr(getattr(model, "generation_config", None), "eos_token_id", None),
    ]
    return {int(token) for value in named if value is not None for token in np.atleast_1d(value)}
