"""Every file operation that changes a run directory, one function each.

They are here and nowhere else, so that a test can put a scripted disk in their place: one that stops, fails or tears a
write at any operation. An `OSError` becomes a `StorageError` that names the file, the cause and the remedy.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from seeker.errors import StorageError, explain_storage

Buffer = bytes | bytearray | memoryview


class Disk:
    """The operations. A scripted disk overrides them."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def write(self, path: Path, data: Sequence[Buffer]) -> None:
        with open(path, "wb", buffering=0) as file:
            for piece in data:
                _write_all(file, piece)

    def append(self, path: Path, data: Buffer) -> None:
        with open(path, "ab") as file:
            file.write(data)

    def sync(self, path: Path) -> None:
        """Flush a file's data, or a folder's entries, so that they outlive a power cut."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        path.rmdir()


_disks: list[Disk] = [Disk()]


@contextmanager
def use_disk(disk: Disk) -> Generator[None]:
    """Let everything inside go through `disk`."""
    _disks.append(disk)
    try:
        yield
    finally:
        _disks.remove(disk)


def read(path: Path) -> bytes:
    """The bytes of a file. A missing file is a `FileNotFoundError`, which most readers expect."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror or error}); {explain_storage(error)}") from error


def write(path: Path, data: Sequence[Buffer]) -> None:
    """Write a file in pieces, which saves joining large ones."""
    with _told(path, "written"):
        _disks[-1].write(path, data)


def append(path: Path, data: Buffer) -> None:
    with _told(path, "written"):
        _disks[-1].append(path, data)


def sync(path: Path) -> None:
    with _told(path, "flushed"):
        _disks[-1].sync(path)


def rename(source: Path, target: Path) -> None:
    with _told(target, "put in place"):
        _disks[-1].rename(source, target)


def remove(path: Path) -> None:
    with _told(path, "removed"):
        _disks[-1].remove(path)


def remove_tree(path: Path) -> None:
    """Remove a folder and what is in it, file by file."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            remove(entry)
    with _told(path, "removed"):
        _disks[-1].remove_folder(path)


def make_folders(path: Path, within: Path | None = None) -> None:
    """Create `path` and what is missing above it, each entry flushed.

    `within` must be there: a run directory that was moved away or unmounted is not begun anew as a ruin.
    """
    missing: list[Path] = []
    while not path.is_dir():
        if path == within:
            raise StorageError(f"{path}: the folder is gone; {explain_storage(FileNotFoundError())}")
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with _told(folder, "created"):
            _disks[-1].make_folder(folder)
        sync(folder.parent)


def temporary_name(path: Path) -> Path:
    """Where `path` is prepared: ``.LATEST.node7-4711.tmp``, named by its writer so that a dead one's can be removed."""
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")


def _write_all(file: FileIO, data: Buffer) -> None:
    """One call of the system writes at most 2 GiB."""
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) :]


@contextmanager
def _told(path: Path, done: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: cannot be {done} ({error.strerror or error}); {explain_storage(error)}") from error
