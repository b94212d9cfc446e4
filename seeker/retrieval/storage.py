"""Content-addressed folders: written whole under a lock, named by what made them, checked against their manifest."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

MANIFEST = "manifest.json"


class DamagedFolderError(Exception):
    """A folder that does not hold what its manifest says. The caller names the remedy."""


def make_folder(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> bool:
    """Have `fill` write the files of `folder` beside it, then rename. False where an intact folder stands already.

    `fill` gives the manifest's facts; sizes and digests of the files are added. A damaged folder is made again:
    readers that have its files mapped keep them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f".{folder.name}.lock"):
        if folder.exists():
            try:
                check_folder(folder)
            except DamagedFolderError:
                shutil.rmtree(folder)
            else:
                return False
        for left_over in folder.parent.glob(f".{folder.name}.*.part"):  # of a process that was killed: we hold the lock
            shutil.rmtree(left_over)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            _write_manifest(temporary, fill(temporary))
            temporary.chmod(0o755)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def check_folder(folder: Path, *, digests: bool = True) -> dict[str, Any]:
    """The manifest, after sizes (and digests) of all its files were compared."""
    manifest = _read_manifest(folder)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"]:
            size = path.stat().st_size if path.is_file() else "no"
            raise DamagedFolderError(f"{path}: expected {expected['bytes']} bytes, found {size}")
        if digests and (found := file_digest(path)) != expected["xxh3"]:
            raise DamagedFolderError(f"{path}: expected digest {expected['xxh3']}, found {found}")
    return manifest


def file_digest(path: Path) -> str:
    """xxh3-128 of a file: several gigabytes a second, and reading warms the page cache for the mapping."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
        claimed = manifest.pop("digest")
        found = _facts_digest(manifest)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedFolderError(f"{path}: cannot be read ({error!r})") from error
    if claimed != found:
        raise DamagedFolderError(f"{path}: expected digest {claimed}, found {found}")
    return manifest | {"digest": claimed}


def _write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    files = {path.name: {"bytes": path.stat().st_size, "xxh3": file_digest(path)} for path in sorted(folder.iterdir())}
    manifest = facts | {"files": files}
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest | {"digest": _facts_digest(manifest)}, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())


def _facts_digest(facts: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())


@contextmanager
def _lock(path: Path) -> Generator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # freed by the kernel, also after kill -9
        yield
