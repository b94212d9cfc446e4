"""Files that are either whole or not there, and references to them that can be checked.

Everything in a run directory is written through `write_atomic`: a temporary file beside the target, flushed to the
disk, then moved into place. So a reader, or a resume after kill -9, never meets half a file. JSON that decides what a
run is (`LATEST`, the manifests, evaluations) is sealed: it holds its own digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from seeker.errors import RunDirectoryError, StorageError
from seeker.runs import disk
from seeker.runs.disk import Buffer

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


def sha256_hex(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: Buffer, *, within: Path | None = None, durable: bool = True) -> None:
    """Write `data` to `path` so that after a crash the file is the old one or the new one, never a part.

    Missing folders are created, but not `within`. Without `durable` a power cut may take the file back to what it
    was: right for what can be derived again.
    """
    disk.make_folders(path.parent, within)
    temporary = disk.temporary_name(path)
    try:
        disk.write(temporary, [data])
        if durable:
            disk.sync(temporary)
        disk.rename(temporary, path)
    except (StorageError, TypeError):
        _discard(temporary)
        raise
    if durable:
        disk.sync(path.parent)


def _discard(temporary: Path) -> None:
    """Remove a file that was not finished. Where even that fails, the next writer of the run removes it."""
    try:
        if temporary.exists():
            disk.remove(temporary)
    except (StorageError, OSError):
        return  # the caller raises what came first


def dump_json(value: Mapping[str, Any]) -> bytes:
    """Readable and deterministic JSON: sorted keys, no NaN (a NaN in a metric is an error where it arises)."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Mapping[str, Any], *, within: Path | None = None, durable: bool = True) -> None:
    write_atomic(path, dump_json(value), within=within, durable=durable)


def sealed(value: Mapping[str, Any]) -> Json:
    """`value` with its own digest: ``{"step": 3, …, "seal": "5f2c…"}``."""
    bare = {name: each for name, each in value.items() if name != "seal"}
    return {**bare, "seal": sha256_hex(dump_json(bare))}


def read_sealed(path: Path) -> Json:
    """What was sealed; an error when the file does not hold that any more."""
    value = read_json(path)
    seal = value.pop("seal", None)
    if seal is not None and seal != sealed(value)["seal"]:
        raise RunDirectoryError(f"{path}: damaged, its content has not the digest that it was sealed with")
    return value


def read_json(path: Path) -> Json:
    try:
        value = json.loads(disk.read(path))
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path}: the file is missing; is this a run directory?") from error
    except ValueError as error:
        raise RunDirectoryError(f"{path}: damaged, not JSON ({error}); restore the file or start a new run") from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path}: damaged, expected a JSON object, found {type(value).__name__}")
    return cast(Json, value)


def write_file(root: Path, path: str, data: Buffer) -> FileRef:
    """Write one file of the run directory at `root`, which must be there, and return its reference."""
    write_atomic(root / path, data, within=root)
    return FileRef(path, sha256_hex(data))


def read_file(root: Path, ref: FileRef) -> bytes:
    """The bytes behind a reference; an error when they are not the bytes that were written."""
    path = root / ref.path
    try:
        data = disk.read(path)
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path}: the file is missing, sha256 {ref.sha256[:12]} was expected") from error
    if sha256_hex(data) != ref.sha256:
        raise RunDirectoryError(
            f"{path}: damaged, sha256 is {sha256_hex(data)[:12]}, expected {ref.sha256[:12]}; "
            "resume the run: it goes back to the newest commit whose files are whole"
        )
    return data


def is_intact(root: Path, ref: FileRef) -> bool:
    """True when the referenced file is there and holds what was written."""
    path = root / ref.path
    return path.is_file() and sha256_hex(disk.read(path)) == ref.sha256
