"""Text and chance that must come out alike everywhere: comparable words, and seeded numbers from ids."""

from __future__ import annotations

import re
import unicodedata

import xxhash

_WORD = re.compile(r"\w+")


def comparable(text: str) -> str:
    """Words only, case and Unicode form folded. Example: ``comparable("Who is  Ada?") == "who is ada"``."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def unit_hash(seed: int, purpose: str, identity: str) -> float:
    """A number in [0, 1) that depends only on its arguments; `purpose` keeps independent choices apart."""
    return xxhash.xxh3_64_intdigest(f"{seed}\n{purpose}\n{identity}".encode()) / 2**64
