"""Text -> words, the same for documents and queries: lower case, stop words out, stems."""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from seeker.config import IndexConfig
from seeker.errors import ConfigError

_WORD = re.compile(r"\w+")
_STOPWORD_LISTS = {
    "en": "EN",
    "en_plus": "EN_PLUS",
    "de": "GERMAN",
    "nl": "DUTCH",
    "fr": "FRENCH",
    "es": "SPANISH",
    "pt": "PORTUGUESE",
    "it": "ITALIAN",
    "ru": "RUSSIAN",
    "sv": "SWEDISH",
    "no": "NORWEGIAN",
    "zh": "CHINESE",
    "tr": "TURKISH",
    "ko": "KOREAN",
    "da": "DANISH",
}
Words = Callable[[str], list[str]]


def make_words(config: IndexConfig) -> Words:
    """The function that the settings describe.

    Example: with English stemming and stop words, ``"The towns of Oru"`` gives ``["town", "oru"]``.
    """
    stop = _stopwords(config.stopwords)
    stem = _stemmer(config.stemmer)

    def words(text: str) -> list[str]:
        folded = unicodedata.normalize("NFKC", text).lower()
        return stem([word for word in _WORD.findall(folded) if word not in stop])

    return words


def _stopwords(name: str) -> frozenset[str]:
    if name == "none":
        return frozenset()
    if name not in _STOPWORD_LISTS:
        raise ConfigError(f"index.stopwords: no list {name!r}; choose one of {', '.join(_STOPWORD_LISTS)}, or none")
    lists: Any = importlib.import_module("bm25s.stopwords")
    return frozenset(getattr(lists, f"STOPWORDS_{_STOPWORD_LISTS[name]}"))


def _stemmer(language: str) -> Callable[[list[str]], list[str]]:
    if language == "none":
        return list
    snowball: Any = importlib.import_module("Stemmer")
    languages = snowball.algorithms()
    if language not in languages:
        raise ConfigError(f"index.stemmer: no stemmer {language!r}; choose one of {', '.join(languages)}, or none")
    return snowball.Stemmer(language).stemWords
