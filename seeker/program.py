"""How `seeker` is called from where this process stands, for messages that name the command to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """``seeker`` where the shell finds this one, else its path: ``.venv/bin/seeker``."""
    beside = Path(sys.executable).parent / "seeker"
    found = shutil.which("seeker")
    if not beside.is_file() or (found is not None and os.path.samefile(found, beside)):
        return "seeker"
    path = Path(os.path.abspath(beside))
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def resume_command(root: Path) -> str:
    """``.venv/bin/seeker resume runs/demo``."""
    return f"{program()} resume {shlex.quote(str(root))}"
