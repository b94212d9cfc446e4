"""The driver's code on its way to the executors: found, packed, and put once per content."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from dataclasses import dataclass

from seeker.cluster import archive
from seeker.cluster.objects import FlightObjects, ObjectHandle
from seeker.errors import ConfigError

CODE_PREFIX = "seeker-code"
ARCHIVE_NAME = "archive"


@dataclass(frozen=True, slots=True)
class Code:
    """What executors must be able to import.

    Example: ``Code("5f0a...", ("seeker", "tests"), ("/home/me/seeker",))``.
    """

    digest: str
    packages: tuple[str, ...]  # top-level names
    roots: tuple[str, ...]  # the directories that hold them here

    @property
    def prefix(self) -> str:
        return f"{CODE_PREFIX}/{self.digest}"

    def to_setup(self, endpoint: str, more_roots: tuple[str, ...]) -> dict[str, object]:
        """For the starter. Installed packages are never used in place: their directory holds all others, too."""
        usable = [root for root in (*more_roots, *self.roots) if not _is_installed(root)]
        key = f"{self.prefix}/{ARCHIVE_NAME}"
        roots = list(dict.fromkeys(usable))
        return {"digest": self.digest, "key": key, "endpoint": endpoint, "roots": roots, "packages": self.packages}


def code_of(target: str) -> Code:
    """Seeker's, and that of the package which `target` ("package.module:Class") is in, unless it is installed."""
    places = {"seeker": _place_of("seeker")}
    package = target.partition(":")[0].partition(".")[0]
    if package == "__main__":
        raise ConfigError(f"target {target!r}: executors cannot import a script; move the class into a module")
    place = _place_of(package)
    if place is not None and not _is_installed(place):
        places[package] = place
    packages = tuple(sorted(places))
    roots = tuple(dict.fromkeys(place for place in places.values() if place is not None))
    digest = archive.tree_digest(packages, roots)
    assert digest is not None  # every package was just found
    return Code(digest, packages, roots)


def ship(code: Code, objects: FlightObjects) -> bool:
    """Put the archive unless it is there. False: the tree is no longer what its digest says."""
    handle = ObjectHandle(f"{code.prefix}/{ARCHIVE_NAME}", 1, objects.endpoint)
    if objects.exists(handle):
        return True
    try:
        data, digest = archive.pack(code.packages, code.roots)
    except FileNotFoundError:
        return False
    if digest == code.digest:
        objects.put(code.prefix, data, ARCHIVE_NAME)
    return digest == code.digest


def _place_of(package: str) -> str | None:
    """The directory that holds a top-level package or module; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return os.path.dirname(os.path.abspath(next(iter(spec.submodule_search_locations))))
    return os.path.dirname(os.path.abspath(spec.origin)) if spec.has_location and spec.origin else None


def _is_installed(directory: str) -> bool:
    return os.path.realpath(directory) in {os.path.realpath(sysconfig.get_path(name)) for name in _INSTALLED}


_INSTALLED = ("purelib", "platlib", "stdlib", "platstdlib")
