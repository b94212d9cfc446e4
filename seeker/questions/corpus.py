"""A corpus as JSON lines of documents, and its digest, which names the index made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from seeker.errors import DataError
from seeker.questions.storing import read_lines, write_lines
from seeker.types import Document


def merge_documents(parts: Iterable[Iterable[Document]]) -> list[Document]:
    """The union in order of first appearance. Paragraph ids are digests of content, so equal ones meet."""
    merged: dict[str, Document] = {}
    for part in parts:
        for document in part:
            merged.setdefault(document.id, document)
    return list(merged.values())


def require_documents(documents: Sequence[Document]) -> Sequence[Document]:
    """The documents, or the error that there are none."""
    if not documents:
        raise DataError(
            "the corpus is empty: the questions bring no context paragraphs; name a corpus file (corpus.path)"
        )
    return documents


def corpus_digest(documents: Iterable[Document]) -> str:
    """sha256 over ids, titles and texts in order; lengths are hashed too, so that no two corpora run together."""
    digest = hashlib.sha256()
    for document in documents:
        parts = [part.encode() for part in (document.id, document.title, document.text)]
        digest.update(b",".join(b"%d" % len(part) for part in parts) + b":" + b"".join(parts))
    return digest.hexdigest()


def write_documents(path: Path, documents: Iterable[Document]) -> str:
    """Write one object per line, atomically; returns the file's sha256."""
    return write_lines(path, (asdict(document) for document in documents))


def read_documents(path: str | Path) -> list[Document]:
    """Read what `write_documents` wrote."""
    try:
        return [Document(item["id"], item["title"], item["text"]) for item in read_lines(path)]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: is no prepared corpus ({error!r}); run `seeker prepare`") from error
