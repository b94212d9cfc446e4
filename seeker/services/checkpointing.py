"""Full trainer states on their way to the disk, beside the updates that follow.

A state is copied in memory, which takes a fraction of an update, and written by a thread: serialising, hashing, writing
and reading back leave the interpreter to the trainer. One at a time; the folder's final name is its last word.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from seeker.engines.checkpoint import write_checkpoint


@dataclass
class _Writing:
    folder: Path
    thread: threading.Thread
    error: BaseException | None = None


class CheckpointWriter:
    """Example: ``writer.begin(folder, tensors, {"version": 10})``, later ``writer.is_written(folder, wait=False)``."""

    def __init__(self) -> None:
        self._writing: _Writing | None = None

    def begin(self, folder: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write `tensors`, which nobody changes any more, when the state before them is on the disk."""
        self._settle(wait=True)

        def write() -> None:
            try:
                write_checkpoint(folder, tensors, facts)
            except BaseException as error:
                writing.error = error

        writing = _Writing(folder, threading.Thread(target=write, name=f"write {folder.name}"))
        self._writing = writing
        writing.thread.start()

    def is_written(self, folder: Path, wait: bool) -> bool:
        """Whether the state in `folder` is whole; raises what its writing failed with."""
        return self._settle(wait) and folder.is_dir()

    def is_writing(self, folder: Path) -> bool:
        return self._writing is not None and self._writing.folder == folder

    def _settle(self, wait: bool) -> bool:
        """True when nothing is being written any more."""
        writing = self._writing
        if writing is None:
            return True
        writing.thread.join(None if wait else 0.0)
        if writing.thread.is_alive():
            return False
        self._writing = None
        if writing.error is not None:
            raise writing.error
        return True
