"""Checks of single fields: a plain value comes back, or a `RecordError` that names the place, field and remedy."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from seeker.errors import RecordError

Record = dict[str, Any]


class _Missing:
    """Stands for a field that is not there; prints as the word `nothing`."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was read. Example: ``Place("dev.jsonl", 17)`` prints as ``dev.jsonl:17``."""

    path: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.path}:{self.number}" if self.unit == "line" else f"{self.path}: {self.unit} {self.number}"

    def bad(self, field: str, value: object, expected: str) -> NoReturn:
        """Raise the `RecordError` for `field` of the record at this place."""
        raise RecordError(self.path, self.number, field, value, expected, self.unit)


def as_record(value: object, place: Place) -> Record:
    """The record itself: an object with string keys."""
    if not isinstance(value, dict):
        place.bad("(record)", value, "a JSON object")
    return cast(Record, value)


def get(record: Record, *names: str) -> Any:
    """The first of `names` that is there and not null, else `MISSING`."""
    return next((record[name] for name in names if record.get(name) is not None), MISSING)


def as_text(value: object, field: str, place: Place, *, empty: bool = False, expected: str = "") -> str:
    """A string that UTF-8 can hold, without white space at its ends; empty only when `empty`."""
    wanted = expected or ("a string" if empty else "a non-empty string")
    if not isinstance(value, str):
        place.bad(field, value, wanted)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        place.bad(field, value, "text that UTF-8 can hold (no lone surrogates)")
    text = value.strip()
    if not text and not empty:
        place.bad(field, value, wanted)
    return text


def as_id(value: object, place: Place) -> str:
    """An identity: a non-empty string, or an integer, which becomes its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # more digits than Python turns into text
            place.bad("id", "an integer of thousands of digits", "a non-empty string or an integer")
    return as_text(value, "id", place, expected="a non-empty string or an integer")


def as_title(value: object, field: str, place: Place) -> str:
    """A title with HTML escapes resolved: contexts and supporting facts must name a paragraph alike."""
    expected = "a title (a non-empty string)"
    return as_text(html.unescape(as_text(value, field, place, expected=expected)), field, place, expected=expected)


def as_texts(value: object, field: str, place: Place) -> tuple[str, ...]:
    """A non-empty string or a non-empty list of them, without repetition, in order."""
    values = cast(list[Any], value) if isinstance(value, list) else [value]
    if not values:
        place.bad(field, [], "at least one non-empty string")
    return tuple(dict.fromkeys(as_text(item, field, place) for item in values))


def as_list(value: object, field: str, place: Place, expected: str = "a list") -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        place.bad(field, value, expected)
    return cast(list[Any], value)


def pairs(value: object, field: str, place: Place, columns: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """Pairs from a list of pairs, or from an object of two equally long columns (`columns`: first, then synonyms)."""
    expected = f"a list of pairs, or an object with the equally long lists {columns[0]!r} and {columns[1]!r}"
    if isinstance(value, dict):
        record = cast(Record, value)
        firsts = as_list(get(record, columns[0]), f"{field}.{columns[0]}", place, expected)
        seconds = as_list(get(record, *columns[1:]), f"{field}.{columns[1]}", place, expected)
        if len(firsts) != len(seconds):
            place.bad(field, f"{len(firsts)} and {len(seconds)} items", expected)
        yield from zip(firsts, seconds, strict=True)
        return
    for item in as_list(value, field, place, expected):
        pair = cast(list[Any], item) if isinstance(item, list | tuple) else []
        if len(pair) != 2:
            place.bad(field, cast(object, item), expected)
        yield pair[0], pair[1]
