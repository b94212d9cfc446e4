"""Small records in the shapes that the readers know, and the way to real text where it is at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

REAL_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def real_file(name: str) -> Path:
    """A file of real text beside the checkout; the test is skipped where it is absent."""
    path = REAL_DATA / name
    if not path.is_file():
        pytest.skip(f"no real text here: {name} is looked for in ../shared/data beside the checkout")
    return path


def hotpot(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A HotpotQA record with list pairs; fields set to None are left out."""
    record = {
        "_id": f"q{number}",
        "question": f"In which town was the director of Film {number} born?",
        "answer": f"Town {number}",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[f"Film {number}", 0], [f"Person {number}", 1]],
        "context": [
            [f"Film {number}", [f"Film {number} is a film.", f" It was directed by Person {number}."]],
            [f"Person {number}", [f"Person {number} directs.", f" She was born in Town {number}."]],
            ["Shared & known", ["Everybody knows this paragraph."]],
        ],
    }
    return {name: value for name, value in (record | changes).items() if value is not None}


def columns(record: dict[str, Any]) -> dict[str, Any]:
    """The same record in the column layout of the hub's copy."""
    facts, context = record["supporting_facts"], record["context"]
    changed = {name: value for name, value in record.items() if name != "_id"} | {"id": record["_id"]}
    changed["supporting_facts"] = {"title": [title for title, _ in facts], "sent_id": [at for _, at in facts]}
    changed["context"] = {"title": [title for title, _ in context], "sentences": [body for _, body in context]}
    return changed


def write_lines(path: Path, records: list[Any]) -> Path:
    """JSON lines; a string stands for a raw line."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
