"""A disk that stops, fails or tears a write at its n-th operation."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seeker.runs.disk import Buffer, Disk


class Killed(BaseException):
    """The process is gone: nothing after it is written."""


@dataclass
class ScriptedDisk(Disk):
    """Counts operations; at number `at` (from 0) does what `how` says, ever after refuses (`how` but "full").

    "before": gone before the operation. "after": gone after it. "torn": gone with half of the bytes written. "power":
    gone after it, and with the power goes what was not flushed. "full": half of the bytes, then no space; removing
    works, writing stays impossible. "kill": kill -9 of this process.
    """

    at: int | None = None
    how: str = "before"
    operations: list[str] = field(default_factory=list)
    struck: bool = False
    _commits_left: int = 0
    _entries: list[tuple[Path, Callable[[], object]]] = field(default_factory=list)  # of folders, not flushed
    _data: dict[Path, bytes] = field(default_factory=dict)  # what is left of files that were not flushed

    def make_folder(self, path: Path) -> None:
        existed = path.is_dir()
        self._do("make_folder", path, lambda: super(ScriptedDisk, self).make_folder(path))
        if not existed:
            self._entries.append((path.parent, path.rmdir))

    def write(self, path: Path, data: Sequence[Buffer]) -> None:
        whole = b"".join(data)
        half = whole[: len(whole) // 2]
        self._do("write", path, lambda: super(ScriptedDisk, self).write(path, data), lambda: path.write_bytes(half))
        self._data[path] = half

    def append(self, path: Path, data: Buffer) -> None:
        half = bytes(data)[: len(data) // 2]

        def tear() -> None:
            with open(path, "ab") as file:
                file.write(half)

        self._do("append", path, lambda: super(ScriptedDisk, self).append(path, data), tear)

    def sync(self, path: Path) -> None:
        self._do("sync", path, lambda: None)  # nobody cuts the power of a test
        self._data.pop(path, None)
        self._entries = [(folder, undo) for folder, undo in self._entries if folder != path]

    def rename(self, source: Path, target: Path) -> None:
        before = target.read_bytes() if target.is_file() else None
        self._do("rename", target, lambda: super(ScriptedDisk, self).rename(source, target))
        self._entries.append((target.parent, lambda: _undo_rename(source, target, before)))
        if source in self._data:
            self._data[target] = self._data.pop(source)

        if target.name == "LATEST" and self._commits_left:
            self._commits_left -= 1
            if not self._commits_left:
                self.at = len(self.operations)

    def on_commit(self, number: int) -> None:
        """Strike right after `LATEST` was replaced for the `number`th time."""
        self._commits_left = number

    def remove(self, path: Path) -> None:
        self._do("remove", path, lambda: super(ScriptedDisk, self).remove(path))

    def remove_folder(self, path: Path) -> None:
        self._do("remove_folder", path, lambda: super(ScriptedDisk, self).remove_folder(path))

    def _do(
        self, name: str, path: Path, perform: Callable[[], object], tear: Callable[[], object] | None = None
    ) -> None:
        if self.struck and self.how == "full":
            self._refuse(name, path)
        elif self.struck:
            raise Killed
        number = len(self.operations)
        self.operations.append(f"{name} {path}")
        if number != self.at:
            perform()
            return
        self.struck = True
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how in ("torn", "full") and tear is not None:
            tear()
        if self.how == "full":
            self._refuse(name, path)
            perform()
            return
        if self.how in ("after", "power"):
            perform()
        if self.how == "power":
            self._cut_power()
        raise Killed

    def _refuse(self, name: str, path: Path) -> None:
        if name in ("make_folder", "write", "append"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _cut_power(self) -> None:
        for path, half in self._data.items():
            if path.is_file():
                path.write_bytes(half)
        for _, undo in reversed(self._entries):
            undo()


def _undo_rename(source: Path, target: Path, before: bytes | None) -> None:
    if target.exists():
        os.replace(target, source)
    if before is not None:
        target.write_bytes(before)
