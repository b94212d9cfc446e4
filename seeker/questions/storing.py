"""JSON lines of `Question` records: written by preparation, read by every later phase. Same content, same bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seeker.errors import DataError
from seeker.types import Question


def write_questions(path: Path, questions: Iterable[Question]) -> str:
    """Write one object per line, atomically; returns the file's sha256."""
    return write_lines(path, (asdict(question) for question in questions))


def read_questions(path: str | Path) -> list[Question]:
    """Read what `write_questions` wrote."""
    try:
        return [question_from_json(item) for item in read_lines(path)]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: is no file of prepared questions ({error!r}); run `seeker prepare`") from error


def question_from_json(item: dict[str, Any]) -> Question:
    """The inverse of ``dataclasses.asdict`` (JSON turns tuples into lists)."""
    return Question(
        id=item["id"],
        text=item["text"],
        answers=tuple(item["answers"]),
        kind=item["kind"],
        supporting_titles=tuple(item["supporting_titles"]),
        source=item["source"],
    )


def write_lines(path: Path, items: Iterable[dict[str, Any]]) -> str:
    """JSON lines beside `path`, then one rename; returns the sha256 of the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        for item in items:
            line = json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            digest.update(line)
            file.write(line)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return digest.hexdigest()


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """Items of a file of ours, one at a time."""
    try:
        with Path(path).open("rb") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); run `seeker prepare` again") from error
