"""`deployments/server.env`: the settings of Prefect's server, read here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from seeker.errors import ConfigError
from seeker.presets import project_root

SERVER_ENV = "deployments/server.env"


def server_settings(path: Path | None = None) -> dict[str, str]:
    """The settings by variable name."""
    path = path or project_root() / SERVER_ENV
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); restore the file") from error
    return dict(_settings(path, text.splitlines()))


def _settings(path: Path, lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.strip().partition("=")
        if not separator or not name.replace("_", "").isalnum() or not name.isupper():
            raise ConfigError(f"{path}:{number}: expected NAME=value or a comment, found {line.strip()!r}")
        yield name, value
