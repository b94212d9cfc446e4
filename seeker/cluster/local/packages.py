"""Packages of Runner applications: fetched from the cache, a file or the web, and unpacked once per registration."""

from __future__ import annotations

import io
import tarfile
import threading
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urlparse

from seeker.cluster.local.cache import ObjectCache
from seeker.cluster.local.records import ApplicationRecord

_FETCH_DEADLINE_S = 60


class Packages:
    """Unpacked packages under `root`. Example: application ``demo`` registered third lies in ``root/demo-3``.

    With `kept_by_name` a name keeps its first package, also when it is registered anew, as on a real node.
    """

    def __init__(self, cache: ObjectCache, root: Path, kept_by_name: bool = False) -> None:
        self._kept_by_name = kept_by_name
        self._cache = cache
        self._root = root
        self._lock = threading.Lock()  # the first executor of an application unpacks, the others wait

    def paths(self, application: ApplicationRecord) -> list[Path]:
        """Directories to put on PYTHONPATH, none without a package. Blocking: run it in a thread."""
        spec = application.spec
        if not spec.HasField("url") or not spec.url:
            return []
        target = self._root / (application.name if self._kept_by_name else f"{application.name}-{application.serial}")
        with self._lock:
            if not target.exists():
                partial = target.with_name(f".{target.name}")
                _unpack(_fetch(spec.url, self._cache), partial)
                partial.rename(target)
        return [path for path in (target, target / "src") if path.is_dir()]


def _fetch(url: str, cache: ObjectCache) -> bytes:
    parsed = urlparse(url)
    if parsed.scheme in ("grpc", "grpcs"):
        return cache.read_bytes(parsed.path.lstrip("/"))
    if parsed.scheme == "file":
        return Path(parsed.path).read_bytes()
    if parsed.scheme in ("http", "https"):
        with urllib.request.urlopen(url, timeout=_FETCH_DEADLINE_S) as reply:
            return reply.read()
    raise ValueError(f"package url {url!r}: expected grpc://, file:// or http(s)://")


def _unpack(data: bytes, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if data[:2] == b"PK":
        zipfile.ZipFile(io.BytesIO(data)).extractall(target)
    else:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            if hasattr(tarfile, "data_filter"):  # not in the first releases of 3.11
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(target)
