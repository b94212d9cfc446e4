"""A wish to pause, as a file in the run directory: whoever writes the run obeys it after its next commit."""

from __future__ import annotations

from pathlib import Path

from seeker.errors import RunDirectoryError
from seeker.runs import disk
from seeker.runs.files import write_atomic
from seeker.runs.state import read_state


def request_pause(root: Path) -> None:
    """Ask the writer of the run at `root` to stop after its next commit; refused where nobody writes it."""
    told = read_state(root)
    if told.state != "running":
        raise RunDirectoryError(f"{root}: nothing to pause, nobody is writing this run (state: {told.state})")
    write_atomic(_request(root), b"", within=root, durable=False)


def is_pause_requested(root: Path) -> bool:
    return _request(root).is_file()


def clear_pause(root: Path) -> None:
    """Forget the wish: it was obeyed, or the run goes on."""
    if is_pause_requested(root):
        disk.remove(_request(root))


def _request(root: Path) -> Path:
    return root / "pause"
