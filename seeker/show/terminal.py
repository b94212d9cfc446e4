"""A run in the terminal: where it stands, its curves, where the time went, what it answers, what it wrote."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleRenderable, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from seeker.show.plot import Grid, Series, draw_curves
from seeker.show.reading import RunView, first_and_last
from seeker.show.samples import Sample
from seeker.show.tables import EVALUATION_COLUMNS, KIND_COLUMNS, config_facts, evaluation_rows, kind_rows, phase_rows
from seeker.types import Author

COLOURS = {
    Author.SYSTEM: "bright_black",
    Author.USER: "cyan",
    Author.POLICY: "green",
    Author.ENVIRONMENT: "yellow",
}
# Metric, label, colour, joined: the curves of every view.
CURVES = (
    ("reward/exact_match", "training exact match (sampled)", "cyan", True),
    ("eval/exact_match", "held-out exact match (greedy)", "green", False),
    ("eval_sampled/exact_match", "held-out exact match (sampled)", "magenta", False),
)


def print_run(view: RunView, samples: Sequence[Sample], console: Console | None = None) -> None:
    """Print the whole view."""
    console = console or Console()
    for part in render_run(view, samples, console.width):
        console.print(part)


def render_run(view: RunView, samples: Sequence[Sample], width: int = 100) -> list[ConsoleRenderable]:
    """The parts of the view from top to bottom; a part without data is left out."""
    parts: list[ConsoleRenderable] = [_header(view)]
    curves = run_curves(view)
    if curves:
        parts.append(_panel("Exact match by policy version", _plot(curves, min(width, 100) - 16)))
    if view.phase_seconds():
        parts.append(_panel("Seconds per step", _phases(view)))
    if view.evaluations:
        parts.append(_panel("Evaluations", _evaluations(view)))
    kinds = first_and_last(view.evaluations, "greedy")
    if kinds and kind_rows(*kinds):
        parts.append(_panel("Greedy exact match by kind of question, first and last evaluation", _kinds(view)))
    parts.append(_events(view))
    if samples:
        parts.append(_legend())
        parts += [_sample(sample) for sample in samples]
    return parts


def run_curves(view: RunView) -> list[Series]:
    """The curves that have at least one point."""
    found: list[Series] = []
    for metric, label, colour, joined in CURVES:
        xs, ys = view.curve(metric)
        if xs:
            found.append(Series(label, xs, ys, colour, joined))
    return found


def _panel(title: str, body: ConsoleRenderable) -> Panel:
    return Panel(body, title=title, title_align="left", border_style="bright_black", expand=False)


def _header(view: RunView) -> Panel:
    table = Table.grid(padding=(0, 2))
    for name, value in config_facts(view):
        table.add_row(Text(name, style="bright_black"), Text(value))
    return Panel(table, title=f"run {view.run_id}", title_align="left", border_style="cyan", expand=False)


def _plot(curves: Sequence[Series], width: int) -> Group:
    grid = draw_curves(curves, width=max(20, width), height=13)
    lines = [_plot_line(grid, row) for row in range(len(grid.cells))]
    low, high = (f"{round(x)}" for x in grid.x_range)
    axis = Text(" " * 7 + low + " " * (len(grid.cells[0]) - len(low) - len(high)) + high, style="bright_black")
    legend = [
        Text(("── " if each.joined else "● ") + f"{each.name}, last {each.ys[-1]:.3f}", style=each.colour)
        for each in curves
    ]
    return Group(*lines, axis, *legend)


def _plot_line(grid: Grid, row: int) -> Text:
    low, high = grid.y_range
    last = len(grid.cells) - 1
    labelled = row in (0, last // 2, last)
    label = f"{high - (high - low) * row / last:5.2f} ┤" if labelled else "      │"
    line = Text(label, style="bright_black")
    for character, colour in grid.cells[row]:
        line.append(character, style=colour or "")
    return line


def _phases(view: RunView) -> Table:
    table = Table.grid(padding=(0, 2))
    for phase, seconds, share in phase_rows(view):
        bar = Text("█" * round(share * 40), style="cyan")
        table.add_row(phase, Text(f"{seconds:.2f} s", justify="right"), Text(f"{share:.0%}", justify="right"), bar)
    return table


def _evaluations(view: RunView) -> Table:
    return _table(EVALUATION_COLUMNS, evaluation_rows(view.evaluations))


def _kinds(view: RunView) -> Table:
    pair = first_and_last(view.evaluations, "greedy")
    return _table(KIND_COLUMNS, kind_rows(*pair) if pair else [])


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bright_black")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    return table


def _events(view: RunView) -> Text:
    if not view.events:
        return Text("Infrastructure events: none", style="bright_black")
    told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(view.events.items()))
    return Text(f"Infrastructure events: {told} (events.jsonl)", style="yellow")


def _legend() -> Text:
    line = Text("Sample trajectories, from the best reward to the worst. Written by: ")
    return line + Text("  ").join(Text(author.value, style=f"bold {colour}") for author, colour in COLOURS.items())


def _sample(sample: Sample) -> Panel:
    text = Text()
    for author, words in sample.parts:
        text.append(words, style=COLOURS[author])
    text.rstrip()
    return Panel(
        text,
        title=Text(sample.title),
        subtitle=Text(sample.facts),
        title_align="left",
        subtitle_align="left",
        border_style="bright_black",
    )
