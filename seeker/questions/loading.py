"""Question sets and corpora from files: checked records, unique ids, nothing silently dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from seeker.errors import DataError, RecordError
from seeker.questions.fields import Place
from seeker.questions.files import Raw, read_records
from seeker.questions.records import parse_document, parse_question
from seeker.types import Document, Question

MAX_SHOWN_ERRORS = 5  # bad records named in one error: enough to see a pattern, few enough to read
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions with the place of each, their context paragraphs (each once), and the records left out.

    Example: two records of dev.jsonl, the second without an answer and skipping allowed:
    ``QuestionSet("dev.jsonl", [q1], [Place("dev.jsonl", 1)], [d1, d2], [RecordError("dev.jsonl:2: ...")])``.
    """

    name: str
    questions: list[Question]
    places: list[Place]  # one per question
    documents: list[Document] = field(default_factory=list[Document])
    skipped: list[RecordError] = field(default_factory=list[RecordError])


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents with unique ids, and the records left out."""

    documents: list[Document]
    skipped: list[RecordError] = field(default_factory=list[RecordError])


Progress = Callable[[int], None]


def load_questions(
    source: str | Path, *, skip_bad_records: bool = False, progress: Progress | None = None
) -> QuestionSet:
    """Read `source` whole (see `read_records`). `progress` is called with the number of records read so far."""
    questions: list[Question] = []
    places: list[Place] = []
    documents: dict[str, Document] = {}
    skipped: list[RecordError] = []
    parsed = _parsed(read_records(source), parse_question, _question_id, skip_bad_records, skipped, progress)
    for place, (question, context) in parsed:
        questions.append(question)
        places.append(place)
        for document in context:
            documents.setdefault(document.id, document)
    _refuse_empty(source, "question", questions, skipped)
    return QuestionSet(str(source), questions, places, list(documents.values()), skipped)


def load_documents(source: str | Path, *, skip_bad_records: bool = False, progress: Progress | None = None) -> Corpus:
    """A corpus file: ``{id, contents}`` or ``{id, title, text}`` in any of the formats."""
    skipped: list[RecordError] = []
    parsed = _parsed(read_records(source), parse_document, _document_id, skip_bad_records, skipped, progress)
    documents = [document for _, document in parsed]
    _refuse_empty(source, "document", documents, skipped)
    return Corpus(documents, skipped)


def _question_id(parsed: tuple[Question, list[Document]]) -> str:
    return parsed[0].id


def _document_id(document: Document) -> str:
    return document.id


def _parsed(
    records: Iterator[Raw],
    parse: Callable[[object, Place], T],
    identity: Callable[[T], str],
    skip: bool,
    skipped: list[RecordError],
    progress: Progress | None,
) -> Iterator[tuple[Place, T]]:
    """The good records; bad ones go to `skipped`, and without `skip` a few of them stop everything."""
    seen: dict[str, Place] = {}
    for count, (place, raw) in enumerate(records, 1):
        try:
            item = _parse_one(place, raw, parse, identity, seen)
        except RecordError as error:
            skipped.append(error)
            if not skip and len(skipped) >= MAX_SHOWN_ERRORS:
                break
        else:
            yield place, item
        if progress is not None:
            progress(count)
    if skipped and not skip:
        raise _first_with_others(skipped)


def _parse_one(
    place: Place, raw: Any, parse: Callable[[object, Place], T], identity: Callable[[T], str], seen: dict[str, Place]
) -> T:
    if isinstance(raw, RecordError):
        raise raw
    item = parse(raw, place)
    key = identity(item)
    if key in seen:
        place.bad("id", key, f"an id that no other record has (first at {seen[key]})")
    seen[key] = place
    return item


def _first_with_others(errors: list[RecordError]) -> RecordError:
    first = errors[0]
    others = tuple(error.summary() for error in errors[1:])
    return RecordError(first.path, first.line, first.field, first.value, first.expected, first.unit, others)


def _refuse_empty(source: str | Path, noun: str, found: list[Any], skipped: list[RecordError]) -> None:
    if found:
        return
    why = f"all {len(skipped)} records are bad, the first: {skipped[0].summary()}" if skipped else "no record in it"
    raise DataError(f"{source}: no usable {noun} ({why}); name a file with at least one")
