"""The tool behind the policy's action: text in, observation out. Search is the first one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from seeker.errors import RetrievalError
from seeker.types import Passage


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tool gives back, before it is cut to the token limit and wrapped.

    `passages` stand in order of worth: a cut takes from the end. `document_ids` name them one by one; a tool that
    shows no documents leaves them empty.
    Example: ``Observation(passages=("Velm: Velm is a town.",), document_ids=("d3",))``.
    """

    passages: tuple[str, ...]
    document_ids: tuple[str, ...] = ()


class Tool(Protocol):
    """Text in, observation out. An infrastructure failure is raised, never returned as an observation."""

    def __call__(self, text: str) -> Observation: ...


class Retriever(Protocol):
    """What `SearchTool` needs of an index: the best `k` passages for a query, best first, ties always alike."""

    def search(self, query: str, k: int) -> Sequence[Passage]: ...


class SearchTool:
    """The index as a tool. Remembers its queries: siblings of a group often ask the same."""

    def __init__(self, index: Retriever, top_k: int, passage: str = "{title}: {text}") -> None:
        self._index = index
        self._top_k = top_k
        self._passage = passage
        self._seen: dict[str, Observation] = {}

    def __call__(self, text: str) -> Observation:
        if text not in self._seen:
            if len(self._seen) >= 16_384:
                self._seen.clear()
            self._seen[text] = self._search(text)
        return self._seen[text]

    def _search(self, query: str) -> Observation:
        try:
            passages = self._index.search(query, self._top_k)
        except RetrievalError:
            raise
        except Exception as error:
            raise RetrievalError(f"search for {query!r} failed: {type(error).__name__}: {error}") from error
        return Observation(
            tuple(self._render(passage) for passage in passages), tuple(passage.document.id for passage in passages)
        )

    def _render(self, passage: Passage) -> str:
        # In one pass: a title or text that holds "{text}" or "{title}" stays as it is.
        parts = {"title": passage.document.title, "text": passage.document.text}
        return re.sub(r"\{(title|text)\}", lambda found: parts[found[1]], self._passage)
