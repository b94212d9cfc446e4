"""Copying exercises: names and years that come again, in another order.

A name is two syllables or four; to write one that was never seen, the policy must find its first syllable in the text
and go on as the text does. Demonstrations teach that slowly, a list of facts told twice teaches it fast.
"""

from __future__ import annotations

import random

from data.demonstrations import Segment
from data.entities import FIRST_YEAR, LAST_YEAR, Half
from seeker.types import Author


def copy_exercise(half: Half, rng: random.Random, num_facts: int = 7, num_repeats: int = 2) -> list[Segment]:
    """Facts, each a name and what belongs to it, then the same facts again in other orders.

    Example: `` Velm: Kel Tamor.\\n Oru: 1934.\\n``, then `` Oru: 1934.\\n Velm: Kel Tamor.\\n``.
    """
    names = [*half.films, *half.people, *half.towns]
    facts = [f" {rng.choice(names)}: {_value(names, rng)}.\n" for _ in range(num_facts)]
    segments = [Segment(Author.ENVIRONMENT, "".join(facts))]
    for _ in range(num_repeats):
        rng.shuffle(facts)
        segments.append(Segment(Author.POLICY, "".join(facts)))
    return segments


def _value(names: list[str], rng: random.Random) -> str:
    return str(rng.randint(FIRST_YEAR, LAST_YEAR)) if rng.random() < 0.3 else rng.choice(names)
