"""The code of a service on this node: the same tree where it lies already, else unpacked once per node.

Unpacked trees live in a private folder, one per digest. A tree is used under a shared lock that its processes hold;
what nobody uses and is not among the newest goes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import uuid
from dataclasses import dataclass
from typing import Any

from ..archive import tree_digest, unpack
from .folder import locked, private_folder, try_lock
from .running import Failure, RunningCall
from .store import AwayError, MissingError, Store

NUM_KEPT = 5
LOCK_NAME = "unpack.lock"  # not "lock", by which the embedded cluster knows folders of its own
_FETCH_S = 300.0
_RETRY_S = 0.5


@dataclass(frozen=True)
class Code:
    """Where the code lies, and the lock that keeps it there (None: not ours to remove).

    Example: ``Code(["/tmp/seeker-code-1000/9f2c..."], 17)``.
    """

    paths: list[str]
    descriptor: int | None


def find_code(wanted: dict[str, Any], call: RunningCall, ca_file: str | None = None) -> Code:
    """`wanted`: digest, key and endpoint of the archive, packages, and roots where the same tree may lie."""
    digest, packages = wanted["digest"], list(wanted["packages"])
    roots = [root for root in wanted["roots"] if os.path.isdir(root)]
    if roots and _holds(roots, packages, digest):
        return Code(roots, None)
    folder = private_folder(os.path.join(tempfile.gettempdir(), f"seeker-code-{os.getuid()}"))
    with locked(os.path.join(folder, LOCK_NAME), call, f"{call.what}, waiting for the code to be unpacked,"):
        path = os.path.join(folder, digest)
        if not _is_whole(path, packages, digest):
            archive = _fetch(Store(wanted["endpoint"], ca_file), wanted["key"], call)
            _unpack(archive, path, packages, digest)
        os.utime(path)
        descriptor = os.open(f"{path}.use", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _prune(folder)
    return Code([path], descriptor)


def _holds(roots: list[str], packages: list[str], digest: str) -> bool:
    try:
        return tree_digest(packages, roots) == digest
    except OSError:  # unreadable, or changing right now: another tree, for all we can tell
        return False


def _is_whole(path: str, packages: list[str], digest: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and _holds([path], packages, digest)


def _fetch(store: Store, key: str, call: RunningCall) -> Any:
    while True:
        try:
            return store.read(key, seconds=min(call.left(), _FETCH_S)).base
        except MissingError as error:
            text = f"the code is not on node {socket.gethostname()}, and {error}"
            raise Failure("setup", text, kills=False) from error
        except AwayError as error:
            call.pause(_RETRY_S, f"{call.what}, fetching its code,", f"; {error}")


def _unpack(archive: Any, path: str, packages: list[str], digest: str) -> None:
    """Beside its place first, so that nothing partial ever has the name of a whole tree."""
    beside = f"{path}.{uuid.uuid4().hex[:8]}.part"
    try:
        os.mkdir(beside, 0o700)
        unpack(bytes(archive), beside)
        found = tree_digest(packages, [beside])
        if found != digest:
            raise ValueError(f"it holds the tree {found}")
        _remove(path)
        os.rename(beside, path)
    except Exception as error:  # a damaged archive fails in many ways
        text = f"the archive of code {digest} cannot be unpacked on node {socket.gethostname()} into {path}: {error}"
        raise Failure("setup", text, kills=False) from error
    finally:
        _remove(beside)


def _prune(folder: str) -> None:
    """Called under the folder's lock, so nobody begins to use what goes."""
    names = [name for name in os.listdir(folder) if "." not in name]
    names.sort(key=lambda name: os.path.getmtime(os.path.join(folder, name)), reverse=True)
    for name in names[NUM_KEPT:]:
        path = os.path.join(folder, name)
        descriptor = os.open(f"{path}.use", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if try_lock(descriptor, fcntl.LOCK_EX):
                _remove(path)
                os.unlink(f"{path}.use")
        finally:
            os.close(descriptor)
    for name in os.listdir(folder):  # of a process that was killed while it unpacked
        if name.endswith(".part"):
            _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
