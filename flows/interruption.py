"""A run that is interrupted from the terminal: what the command says last is the command that goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Terminated(KeyboardInterrupt):
    """The process was told to end (SIGTERM)."""


@contextmanager
def telling_how_to_go_on(root: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM leave with a `KeyboardInterrupt` that says where the run at `root` stopped."""
    with _raising_on_termination():
        try:
            yield
        except KeyboardInterrupt as error:
            word = "terminated" if isinstance(error, Terminated) else "interrupted"
            raise type(error)(f"{word}; {where_it_stopped(root)}") from None


def where_it_stopped(root: Path) -> str:
    """``runs/demo stopped at its last commit, after step 3 of 40; go on with: .venv/bin/seeker resume runs/demo``."""
    from seeker.program import resume_command
    from seeker.runs.listing import describe_run

    if not (root / "run.json").is_file():
        return f"nothing of {root} was begun: give the same command again"
    run = describe_run(root)
    if run.state == "damaged":
        return f"{root}: {run.reason}; try: {resume_command(root)}"
    where = f"stopped at its last commit, after step {run.step} of {run.steps}"
    if not run.step:
        where = f"stopped before the first of its {run.steps} steps was committed"
    return f"{root} {where}; go on with: {resume_command(root)}"


@contextmanager
def _raising_on_termination() -> Iterator[None]:
    """SIGTERM as `Terminated`. While a flow runs Prefect has its own handler, which hands the signal on to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_terminated(_number: int, _frame: Any) -> None:
    raise Terminated
