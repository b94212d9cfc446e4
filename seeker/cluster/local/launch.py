"""How an application's command becomes a process: command line, environment, working directory.

The stock templates (``uv run ... python -m flamepy.runner.runpy``) are run by the executors' interpreter, with the
unpacked package on PYTHONPATH: on one machine there is nothing to install.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_OPTIONS_WITH_VALUE = ("--python", "-p", "--with", "--project", "--directory", "--extra", "--group")
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__")

RUNNER_TEMPLATE = "flmrun"
RUNNER_COMMAND = "${FLAME_HOME}/bin/uv"
RUNNER_ARGUMENTS = ("run", "--python", "python${FLAME_PYTHON_VERSION}", "python", "-m", "flamepy.runner.runpy")

# Run between fork and the command: dies with the cluster's process (Linux), then becomes the command.
LEASH = """
import os, signal, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit("the cluster ended before its executor started")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error}")
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start. Example: ``Command(("/venv/bin/python", "-m", "my.service"), {...}, Path("/x"))``."""

    line: tuple[str, ...]
    environment: dict[str, str]
    directory: Path


def command_line(spec: Any, environment: dict[str, str], python: str) -> tuple[str, ...]:
    """The application's command with variables filled in; ``uv run`` becomes the executors' interpreter."""

    def expand(text: str) -> str:
        return _VARIABLE.sub(lambda match: environment.get(match[1], ""), text)

    command = spec.command if spec.HasField("command") else ""
    arguments = [expand(argument) for argument in spec.arguments]
    if not command:
        return (python, "-m", "flamepy.runner.runpy")
    if os.path.basename(command) == "uv" and arguments[:1] == ["run"]:
        return (python, *_without_uv(arguments[1:]))
    return (expand(command), *arguments)


def _without_uv(arguments: list[str]) -> list[str]:
    """``--python python3.12 python -m x`` -> ``-m x``: uv's own options and the interpreter's name are dropped."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in _OPTIONS_WITH_VALUE and rest:
            rest.pop(0)
    if rest and re.fullmatch(r"python[\d.]*", rest[0]):
        rest.pop(0)
    return rest


def environment_of(spec: Any, own: dict[str, str], packages: list[Path], gpus: tuple[str, ...]) -> dict[str, str]:
    """The cluster's environment, the application's over it, ours (`own`) over both."""
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    environment.update({each.name: each.value for each in spec.environments})
    environment.update(own)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    if packages:
        paths = [str(path) for path in packages] + [environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment
