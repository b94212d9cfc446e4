"""Documents in one memory-mapped file: every executor of a node reads the same pages, and none loads them whole."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seeker.types import Document

TEXT_FILE = "documents.txt"
OFFSETS_FILE = "documents.offsets.npy"
FILES = (TEXT_FILE, OFFSETS_FILE)


def write_store(folder: Path, documents: Sequence[Document]) -> None:
    """UTF-8 of id, title, text of each document, end to end, and the byte offsets of all parts.

    Example: one document ``Document("d3", "Velm", "A town.")`` gives ``d3VelmA town.`` and offsets ``[0, 2, 6, 13]``.
    """
    offsets: NDArray[np.int64] = np.zeros(3 * len(documents) + 1, np.int64)  # [3 * documents + 1]
    at = 0
    with (folder / TEXT_FILE).open("wb") as file:
        for row, document in enumerate(documents):
            for column, part in enumerate((document.id, document.title, document.text)):
                at += file.write(part.encode("utf-8"))
                offsets[3 * row + column + 1] = at
    np.save(folder / OFFSETS_FILE, offsets)


class DocumentStore:
    """Read access by row."""

    def __init__(self, folder: Path) -> None:
        offsets = np.load(folder / OFFSETS_FILE, mmap_mode="r")
        # A plain array over the same pages: slicing np.memmap costs a microsecond more each time.
        self._offsets: NDArray[np.int64] = offsets.view(np.ndarray)
        with (folder / TEXT_FILE).open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return (len(self._offsets) - 1) // 3

    def __getitem__(self, row: int) -> Document:
        a, b, c, d = self._offsets[3 * row : 3 * row + 4].tolist()
        part = self._text
        return Document(part[a:b].decode("utf-8"), part[b:c].decode("utf-8"), part[c:d].decode("utf-8"))
