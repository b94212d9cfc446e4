"""The nearest existing name to one that does not exist. Standard library only: error paths start fast."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str]) -> str:
    """``, did you mean 'x'?``: whole names first, then the part after the last dot; empty when nothing is near."""
    names = list(candidates)
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    if not found:
        leaves = {each.rpartition(".")[2]: each for each in reversed(names)}
        found = [leaves[leaf] for leaf in difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=0.6)]
    if not found:
        found = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f", did you mean {found[0]!r}?" if found else ""
