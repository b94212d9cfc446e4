"""What building and searching an index take, estimated before they start: running out half-way loses an hour."""

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


def describe_load(folder: Path, num_documents: int) -> str:
    """What searching the index takes, in one line; it warns where the mapped files outgrow the memory.

    Example: ``3.3 MB mapped once for all executors of a node, 12 kB more per search``.
    """
    mapped, available = sum(path.stat().st_size for path in folder.iterdir()), available_bytes()
    per_search_kb = 4 * num_documents / 1e3  # one float32 score per document
    line = f"{mapped / 1e6:.1f} MB mapped once for all executors of a node, {per_search_kb:.0f} kB more per search"
    if available is not None and mapped > available:
        line += f"; only {available / 1e6:.0f} MB are available here, so that searches will read from the disk"
    return line


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
