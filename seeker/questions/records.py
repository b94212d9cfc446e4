"""One record of a question set or corpus -> `Question` and `Document`. Pure: any JSON value, or a `RecordError`."""

from __future__ import annotations

from typing import Any, cast

import xxhash

from seeker.questions.fields import (
    MISSING,
    Place,
    Record,
    as_id,
    as_list,
    as_record,
    as_text,
    as_texts,
    as_title,
    get,
    pairs,
)
from seeker.types import Document, Question

_ANSWER = (
    "a non-empty string, or a list of them in 'golden_answers' (HotpotQA's test set is published without answers: "
    "use its train or validation set)"
)


def parse_question(value: object, place: Place) -> tuple[Question, list[Document]]:
    """A question and its context paragraphs (none in Search-R1 style), from either layout.

    Example: ``{"_id": "5a", "question": "Who?", "answer": "Ada", "context": [["T", ["One.", " Two."]]]}`` gives
    ``Question("5a", "Who?", ("Ada",))`` and one document ``T: One. Two.``
    """
    record = as_record(value, place)
    text = as_text(get(record, "question"), "question", place)
    answers = _answers(record, place)
    documents = [_paragraph(title, body, place) for title, body in _context(record, place)]
    question = Question(
        id=_question_id(record, place),
        text=text,
        answers=answers,
        kind=_optional_text(_nested(record, "type"), "type", place),
        supporting_titles=_supporting_titles(record, place),
        source=_source(record, place),
    )
    return question, documents


def parse_document(value: object, place: Place) -> Document:
    """A corpus row: ``{id, contents}`` (first line the quoted title) or ``{id, title, text}``."""
    record = as_record(value, place)
    identity = as_id(get(record, "id", "_id"), place)
    contents = get(record, "contents")
    if contents is MISSING:
        return Document(
            identity, as_title(get(record, "title"), "title", place), as_text(get(record, "text"), "text", place)
        )
    expected = "a string: the quoted title, a line break, the text"
    title, _, text = as_text(contents, "contents", place, expected=expected).partition("\n")
    if not text:
        place.bad("contents", contents, expected)
    return Document(identity, as_title(title.strip().strip('"'), "contents", place), text.strip())


def document_id(title: str, text: str) -> str:
    """Identity of a context paragraph: 16 hex digits of its content, the same in every question that holds it."""
    squeezed = " ".join(text.split())
    return xxhash.xxh3_64_hexdigest(f"{title}\n{squeezed}".encode())


def _optional_text(record: Record, field: str, place: Place) -> str:
    value = get(record, field)
    return "" if value is MISSING else as_text(value, field, place, empty=True)


def _nested(record: Record, name: str) -> Record:
    """The record, or its `metadata` object where `name` lies only there (files written with FlashRAG)."""
    metadata = record.get("metadata")
    if record.get(name) is None and isinstance(metadata, dict):
        return cast(Record, metadata)
    return record


def _question_id(record: Record, place: Place) -> str:
    """`id` or `_id`; Search-R1's merged file repeats ids between its data sources, so theirs is put in front."""
    identity = as_id(get(record, "id", "_id"), place)
    source = _source(record, place)
    return f"{source}/{identity}" if source else identity


def _source(record: Record, place: Place) -> str:
    return _optional_text(record, "data_source", place)


def _answers(record: Record, place: Place) -> tuple[str, ...]:
    """`answer`, then `golden_answers`, then `answer_aliases`, each once."""
    found: list[str] = []
    for field in ("answer", "golden_answers"):
        value = get(record, field)
        if value is not MISSING:
            found += as_texts(value, field, place) if field != "answer" else (as_text(value, field, place),)
    if not found:
        place.bad("answer", MISSING, _ANSWER)
    aliases = get(record, "answer_aliases")
    if aliases is not MISSING:
        found += [as_text(alias, "answer_aliases", place) for alias in as_list(aliases, "answer_aliases", place)]
    return tuple(dict.fromkeys(found))


def _supporting_titles(record: Record, place: Place) -> tuple[str, ...]:
    facts = get(_nested(record, "supporting_facts"), "supporting_facts")
    if facts is MISSING:
        return ()
    found = pairs(facts, "supporting_facts", place, ("title", "sent_id"))
    return tuple(dict.fromkeys(as_title(title, "supporting_facts", place) for title, _ in found))


def _context(record: Record, place: Place) -> list[tuple[Any, Any]]:
    context = get(_nested(record, "context"), "context")
    if context is MISSING:
        return []
    return list(pairs(context, "context", place, ("title", "sentences", "content")))


def _paragraph(title: object, body: object, place: Place) -> Document:
    """One context entry; the body is one string, or sentences that mostly keep their leading space."""
    name = as_title(title, "context", place)
    text = body if isinstance(body, str) else _join(as_list(body, "context", place, "sentences"), place)
    text = as_text(text, "context", place, empty=True)
    return Document(document_id(name, text), name, text)


def _join(sentences: list[Any], place: Place) -> str:
    for sentence in sentences:
        as_text(sentence, "context", place, empty=True)
    keeps_spaces = any(sentence[:1].isspace() for sentence in sentences[1:])
    return ("" if keeps_spaces else " ").join(sentences)
