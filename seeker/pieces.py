"""Text that others wrote never becomes a control token.

A tokenizer turns every spelling of its added tokens (``<|im_end|>``, ``</information>``) into that one token, whoever
wrote it. Of the pieces that make up a prompt or an observation, only the preset's own wrapping may do that: a question
or passage that spells such a token gets the ordinary tokens of its characters. All other text keeps the ids that the
tokenizer gives to the whole. (Where tags are ordinary text to the tokenizer, they stay that: who wrote them is known
from the spans.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seeker.errors import PolicyError


class Encoder(Protocol):
    """What this module needs of a transformers tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def get_added_vocab(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text. Example: ``[Piece("Q: "), Piece("Who is Ada?", is_content=True), Piece("\\n")]``."""

    text: str
    is_content: bool = False  # written by a user or found in a corpus, not by the preset


def fill(text: str, placeholder: str, content: str, *, is_content: bool = True) -> list[Piece]:
    """`text` with `content` in each place of `placeholder`."""
    first, *rest = text.split(placeholder)
    pieces = [Piece(first)]
    for part in rest:
        pieces += [Piece(content, is_content), Piece(part)]
    return pieces


def joined(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def encode_pieces(tokenizer: Encoder, pieces: Sequence[Piece]) -> NDArray[np.int32]:
    """Ids of the pieces read in one go, where no content gives a control token. Shape [T]."""
    control = _control(tokenizer)
    wrappers = tuple(piece.text for piece in _merged(pieces) if not piece.is_content)
    wanted = _control_ids(tokenizer, wrappers)
    for chunks in (_cut_spellings(pieces, control), _single_characters(pieces)):
        ids = [token for chunk in chunks for token in tokenizer.encode(chunk, add_special_tokens=False)]
        if tuple(token for token in ids if token in control.ids) == wanted:
            return np.asarray(ids, np.int32)
    raise PolicyError(
        f"the tokenizer reads a control token in {joined([p for p in pieces if p.is_content])[:80]!r}, also letter by "
        "letter; use a tokenizer whose added tokens are longer than a letter"
    )


def spelled_control_token(tokenizer: Encoder, text: str) -> str | None:
    """The first control token that `text` spells."""
    found = _control(tokenizer).spelling.search(text)
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class _Control:
    """A tokenizer's control tokens: all added ones but white space and single characters, which are ordinary text."""

    ids: frozenset[int]
    spelling: re.Pattern[str]


@lru_cache(maxsize=8)
def _control(tokenizer: Encoder) -> _Control:
    added = {text: token for text, token in tokenizer.get_added_vocab().items() if len(text.strip()) > 1}
    longest_first = sorted(added, key=lambda text: (-len(text), text))
    spelling = "|".join(re.escape(text) for text in longest_first) or "(?!)"  # nothing matches (?!)
    return _Control(frozenset(added.values()), re.compile(spelling))


@lru_cache(maxsize=64)
def _control_ids(tokenizer: Encoder, texts: tuple[str, ...]) -> tuple[int, ...]:
    ids = _control(tokenizer).ids
    return tuple(token for text in texts for token in tokenizer.encode(text, add_special_tokens=False) if token in ids)


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one kind together, empty pieces left out."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and piece.text and merged[-1].is_content == piece.is_content:
            merged[-1] = Piece(merged[-1].text + piece.text, piece.is_content)
        elif piece.text:
            merged.append(piece)
    return merged


def _cut_spellings(pieces: Sequence[Piece], control: _Control) -> list[str]:
    """The text, cut behind the first character of each control token that is not spelled by the wrapping alone."""
    text = joined(pieces)
    content: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        if piece.is_content:
            content.append((at, at + len(piece.text)))
        at += len(piece.text)
    chunks: list[str] = []
    begin = look = 0
    while found := control.spelling.search(text, look):
        look = found.end()
        if any(start < found.end() and found.start() < stop for start, stop in content):
            look = found.start() + 1
            chunks.append(text[begin:look])
            begin = look
    return [*chunks, text[begin:]]


def _single_characters(pieces: Sequence[Piece]) -> list[str]:
    """For tokenizers that find their tokens in other spellings too (another case, say)."""
    return [part for piece in _merged(pieces) for part in (piece.text if piece.is_content else [piece.text])]
