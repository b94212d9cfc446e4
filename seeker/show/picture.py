"""The curves of a run as a PNG. Needs matplotlib, so only the driver's environment can draw."""

from __future__ import annotations

import io
from typing import Any

from seeker.show.reading import RunView
from seeker.show.terminal import run_curves

# Metric, label: the small plots beside the main one, each left out where nothing was measured.
SIDE_CURVES = (
    ("search_r1/search_calls_per_sample", "searches per trajectory"),
    ("update/entropy", "entropy (nats per token)"),
    ("update/grad_norm", "gradient norm"),
)
_COLOURS = {"cyan": "#0b84a5", "green": "#2a8c4a", "magenta": "#9d3c9d"}


def draw_picture(view: RunView) -> bytes:
    """A PNG: exact match over policy versions, and small plots of searches, entropy and gradient norm."""
    sides = [(label, *view.curve(metric)) for metric, label in SIDE_CURVES if view.curve(metric)[0]]
    figure = _new_figure(height=6.4 if sides else 4.8)
    grid = figure.add_gridspec(2 if sides else 1, max(1, len(sides)), height_ratios=[2, 1] if sides else [1])
    _draw_main(figure.add_subplot(grid[0, :]), view)
    for column, (label, xs, ys) in enumerate(sides):
        axes = figure.add_subplot(grid[1, column])
        axes.plot(xs, ys, color="#555555", linewidth=1)
        axes.set_title(label, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
    output = io.BytesIO()
    figure.savefig(output, format="png", metadata={"Software": None})
    return output.getvalue()


def _new_figure(height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_main(axes: Any, view: RunView) -> None:
    for each in run_curves(view):
        style = {"linewidth": 1.2} if each.joined else {"linewidth": 1, "marker": "o", "linestyle": "--"}
        axes.plot(each.xs, each.ys, label=each.name, color=_COLOURS[each.colour], **style)
    axes.set_title(f"run {view.run_id}: {view.step} of {view.config.steps} steps")
    axes.set_xlabel("policy version")
    axes.set_ylabel("exact match")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    if axes.lines:
        axes.legend(fontsize=9)
