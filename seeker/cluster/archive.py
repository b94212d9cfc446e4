"""Code as an archive that is named by its content, so that executors run the driver's very code.

This source travels beside the starter's: standard library only, and nothing of ours. The driver packs; a node that has
the same tree uses it in place, any other unpacks the archive once.

A tree is named by the digest over the paths and contents of its packages' files:
``tree_digest(["seeker", "tests"], ["/home/me/seeker"])`` is the same wherever these packages lie.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

MAX_FILE_BYTES = 16 * 2**20  # a larger one is data, which travels as an object
_NOT_CODE = ("__pycache__", "node_modules")
_NOT_CODE_ENDINGS = (".pyc", ".pyo", ".egg-info", ".dist-info")


def find_package(package: str, roots: Sequence[str]) -> str | None:
    """Where a package's directory or a module's file lies: under the first root that has it."""
    for root in roots:
        for path in (os.path.join(root, package), os.path.join(root, f"{package}.py")):
            if os.path.exists(path):
                return path
    return None


def tree_digest(packages: Sequence[str], roots: Sequence[str]) -> str | None:
    """The digest of the packages as they lie under `roots`; None where one of them is missing."""
    digest = hashlib.sha256()
    for package in sorted(set(packages)):
        path = find_package(package, roots)
        if path is None:
            return None
        for name, file in _files(path):
            with open(file, "rb") as opened:
                _add_to_digest(digest, name, opened.read())
    return digest.hexdigest()[:32]


def _add_to_digest(digest: Any, name: str, content: bytes) -> None:
    digest.update(f"{hashlib.sha256(content).hexdigest()} {name}\n".encode())


def pack(packages: Sequence[str], roots: Sequence[str]) -> tuple[bytes, str]:
    """A tar.gz whose bytes depend on names, contents and the executable bit only; and the digest of what is in it.

    That is not the `tree_digest` of a moment before where somebody edits the tree meanwhile.
    """
    buffer, digest = io.BytesIO(), hashlib.sha256()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for package in sorted(set(packages)):
            path = find_package(package, roots)
            if path is None:
                raise FileNotFoundError(f"package {package} is under none of {list(roots)}")
            for name, file in _files(path):
                _add_to_digest(digest, name, _add(archive, name, file))
    return buffer.getvalue(), digest.hexdigest()[:32]


def unpack(data: bytes | memoryview, directory: str) -> None:
    """Unpack into a directory that exists; names that lead out of it are refused."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        top = os.path.realpath(directory)
        for member in archive.getmembers():
            target = os.path.realpath(os.path.join(top, member.name))
            if not member.isfile() or not target.startswith(top + os.sep):
                raise ValueError(f"code archive: member {member.name!r} is not a plain file under its root")
        archive.extractall(top)


def _files(path: str) -> Iterator[tuple[str, str]]:
    """Name in the archive and path of every file, in the order of the names."""
    base = os.path.dirname(path)
    if os.path.isfile(path):
        yield os.path.basename(path), path
        return
    found: list[tuple[str, str]] = []
    for directory, subdirectories, names in os.walk(path):
        subdirectories[:] = [name for name in subdirectories if _is_code(name)]
        files = [os.path.join(directory, name) for name in names if _is_code(name)]
        found += [(os.path.relpath(file, base).replace(os.sep, "/"), file) for file in files if os.path.isfile(file)]
    yield from sorted(found)


def _is_code(name: str) -> bool:
    return not name.startswith(".") and name not in _NOT_CODE and not name.endswith(_NOT_CODE_ENDINGS)


def _add(archive: tarfile.TarFile, name: str, file: str) -> bytes:
    with open(file, "rb") as opened:
        content = opened.read()
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{file} has {len(content)} bytes, above {MAX_FILE_BYTES} for code: keep data elsewhere")
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o755 if os.access(file, os.X_OK) else 0o644
    archive.addfile(member, io.BytesIO(content))
    return content
