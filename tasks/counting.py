"""A line of progress for one phase: an estimate where the total is known, the count where it is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_REFRESH_S = 0.1  # counting is called once per record: drawing each call would cost more than the work


@contextmanager
def counting(label: str, total: int | None = None, console: Console | None = None) -> Generator[Callable[[int], None]]:
    """Give the block a function that takes the count so far. Shown in a terminal only, gone when the block ends."""
    console = console or Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:.0f}"), TimeElapsedColumn())
    if total is not None:
        columns = (*columns, BarColumn(bar_width=24), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task(label, total=total)
        last = 0.0

        def update(done: int) -> None:
            nonlocal last
            now = time.perf_counter()
            if now - last >= _REFRESH_S:
                last = now
                progress.update(line, completed=done)

        yield update
