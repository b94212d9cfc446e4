"""What building an index will take, estimated before it starts: running out half-way loses an hour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seeker.errors import DataError
from seeker.types import Document

_MEMINFO = Path("/proc/meminfo")
# Peak resident size over the documents' own, per character of text: 8.6 at 17,526 documents, 8.0 at 70,104.
BUILD_BYTES_PER_CHARACTER = 9.0


def build_bytes(documents: Sequence[Document]) -> int:
    """Estimate of the memory that building takes on top of the documents themselves."""
    return int(BUILD_BYTES_PER_CHARACTER * sum(len(document.title) + len(document.text) for document in documents))


def available_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    if not _MEMINFO.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024


def check_build_memory(documents: Sequence[Document]) -> None:
    """Refuse a build that would not fit."""
    needed, available = build_bytes(documents), available_bytes()
    if available is not None and needed > available:
        raise DataError(
            f"the index of {len(documents)} documents needs about {needed / 1e9:.1f} GB to build, "
            f"{available / 1e9:.1f} GB are available; build it on a larger machine, or name a smaller corpus"
        )
