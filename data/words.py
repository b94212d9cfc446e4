"""Invented words from a syllable generator, in two pools that never share a word.

A word belongs to the held-out pool when its hash says so, whatever the world's seed. So no held-out name of any world
can appear in the training half of any world, nor in a demonstration made from one: held-out names must be copied.
"""

from __future__ import annotations

import hashlib
import random
from enum import StrEnum

ONSETS = (*"bdfghjklmnprstvwyz", "br", "dr", "fl", "gl", "gr", "kl", "kr", "pl", "pr")
ONSETS = (*ONSETS, "sh", "sk", "sl", "st", "th", "tr", "vr")
VOWELS = (*"aeiou", "au", "ei", "ia")
INITIAL_CODAS = ("", "l", "m", "n", "r", "k", "sh", "d")
FINAL_CODAS = ("", "l", "m", "n", "r", "k", "th", "x")  # no "s", "ed" or "ing": a stemmer would strip them
NUM_SYLLABLES = 240
HELDOUT_SHARE = 3  # one word in three


class Pool(StrEnum):
    """Which half of a world a word may name."""

    TRAIN = "train"
    HELDOUT = "heldout"


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same on every machine. Example: ``stable_hash("Velmor") % 3``."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def pool_of(word: str) -> Pool:
    """The pool that `word` belongs to, in every world."""
    return Pool.HELDOUT if stable_hash(word) % HELDOUT_SHARE == 0 else Pool.TRAIN


def _syllables(codas: tuple[str, ...], salt: str) -> tuple[str, ...]:
    """`NUM_SYLLABLES` syllables, picked by hash so that no random generator's version matters."""
    every = {onset + vowel + coda for onset in ONSETS for vowel in VOWELS for coda in codas}
    every = {syllable for syllable in every if len(syllable) <= 4}
    return tuple(sorted(every, key=lambda syllable: stable_hash(salt + syllable))[:NUM_SYLLABLES])


FIRST_SYLLABLES = _syllables(INITIAL_CODAS, "first/")
LAST_SYLLABLES = _syllables(FINAL_CODAS, "last/")


class WordMaker:
    """Draws new words of one pool, each once. Example: ``WordMaker(rng, Pool.TRAIN).word()`` -> "Velmor"."""

    def __init__(self, rng: random.Random, pool: Pool) -> None:
        self.rng = rng
        self.pool = pool
        self.used: set[str] = set()

    def word(self) -> str:
        """A word that this maker has not given yet."""
        while True:
            word = self.rng.choice(FIRST_SYLLABLES).capitalize() + self.rng.choice(LAST_SYLLABLES)
            if word not in self.used and pool_of(word) is self.pool:
                self.used.add(word)
                return word

    def words(self, count: int) -> list[str]:
        """`count` new words."""
        return [self.word() for _ in range(count)]
