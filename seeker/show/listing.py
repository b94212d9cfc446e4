"""The runs of a folder as a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seeker.program import resume_command
from seeker.runs.listing import RunLine

COLUMNS = ("run", "state", "steps", "exact match", "size", "since", "path")
STYLES = {"running": "cyan", "completed": "green", "failed": "red", "died": "red", "damaged": "red"}


def print_runs(runs: Sequence[RunLine], console: Console | None = None) -> None:
    """One row a run, then why runs stopped; elsewhere than in a terminal as wide as it takes."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=200, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, overflow="fold", justify="right" if name in ("steps", "size") else "left")
    for run in runs:
        table.add_row(*(Text(cell, STYLES.get(run.state, "") if i == 1 else "") for i, cell in enumerate(_cells(run))))
    console.print(table)
    for run in runs:
        if why := _why(run):
            console.print(f"{run.run_id} {run.state}: {why}", markup=False, highlight=False, soft_wrap=True)


def _why(run: RunLine) -> str:
    """Why a run stopped, and the command that goes on with it."""
    return "; ".join(filter(None, (run.reason, f"go on with: {resume_command(Path(run.path))}" * run.can_go_on)))


def _cells(run: RunLine) -> tuple[str, ...]:
    lineage = f" (lineage {run.lineage})" if run.lineage else ""
    score = "" if run.exact_match is None else f"{run.exact_match:.3f} at {run.evaluated_version}"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.time)) if run.time else ""
    steps = f"{run.step}/{run.steps}{lineage}"
    return (run.run_id, run.state, steps, score, describe_size(run.num_bytes), since, run.path)


def describe_size(num_bytes: int) -> str:
    """``52.0 MB``."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{num_bytes} B"
        size /= 1000
    return f"{size:.1f} TB"
