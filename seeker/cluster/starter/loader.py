"""Makes modules of sources that travelled as text. Its own source is executed first, by an expression in a pickle."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import Any

ROOT = "seeker_node"  # another name than Seeker's own, which the node may have in another version


def load(sources: dict[str, str]) -> Any:
    """Execute each source as a module, in order; the last one.

    Example: ``load({"archive": "...", "starter.request": "...", "starter.starter": "..."})``.
    """
    _package(ROOT)
    module: Any = None
    for name, source in sources.items():
        package = f"{ROOT}.{name}".rpartition(".")[0]
        _package(package)
        module = _execute(f"{ROOT}.{name}", package, source)
    return module


def _package(name: str) -> None:
    module = sys.modules.setdefault(name, ModuleType(name))
    module.__path__ = []


def _execute(name: str, package: str, source: str) -> ModuleType:
    module = ModuleType(name)
    path = f"<{name}>"
    module.__package__ = package
    module.__file__ = path
    sys.modules[name] = module
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)  # for tracebacks
    exec(compile(source, path, "exec"), module.__dict__)
    return module
