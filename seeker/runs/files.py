"""Files that are either whole or not there, and references to them that can be checked.

Everything in a run directory is written through `write_atomic`: a temporary file beside the target, flushed to the
disk, then moved into place. So a reader, or a resume after kill -9, never meets half a file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from seeker.errors import RunDirectoryError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of the run directory and what it holds; this, never an object reference, is what a task hands on.

    Example: ``FileRef(path="steps/000003/batch.bin", sha256="9f86d0…")``.
    """

    path: str  # relative to the run directory
    sha256: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, str]) -> FileRef:
        return FileRef(path=value["path"], sha256=value["sha256"])


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Write `data` to `path` so that after a crash the file is the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename inside it outlives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def dump_json(value: Mapping[str, Any]) -> bytes:
    """Readable and deterministic JSON: sorted keys, no NaN (a NaN in a metric is an error where it arises)."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, dump_json(value))


def read_json(path: Path) -> Json:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path}: the file is missing; is this a run directory?") from error
    except ValueError as error:
        raise RunDirectoryError(f"{path}: damaged, not JSON ({error}); restore the file or start a new run") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path}: damaged, expected a JSON object, found {type(value).__name__}")
    return cast(Json, value)


def write_file(root: Path, path: str, data: bytes | bytearray | memoryview) -> FileRef:
    """Write one file of the run directory at `root` and return its reference."""
    write_atomic(root / path, data)
    return FileRef(path, sha256_hex(data))


def read_file(root: Path, ref: FileRef) -> bytes:
    """The bytes behind a reference; an error when they are not the bytes that were written."""
    path = root / ref.path
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path}: the file is missing, sha256 {ref.sha256[:12]} was expected") from error
    if sha256_hex(data) != ref.sha256:
        raise RunDirectoryError(
            f"{path}: damaged, sha256 is {sha256_hex(data)[:12]}, expected {ref.sha256[:12]}; "
            "delete it and start the run again: finished work is taken from the run directory, the rest is done again"
        )
    return data


def is_intact(root: Path, ref: FileRef) -> bool:
    """True when the referenced file is there and holds what was written."""
    path = root / ref.path
    return path.is_file() and sha256_hex(path.read_bytes()) == ref.sha256
