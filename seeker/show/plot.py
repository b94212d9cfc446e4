"""Curves in a terminal: points set in a grid of braille cells, two dots wide and four dots high each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Bit of each dot of a braille cell, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLANK = 0x2800


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. Example: ``Series("reward", xs=(0, 1, 2), ys=(0.1, 0.2, 0.4), colour="cyan")``."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    joined: bool = True  # a line through the points; else a mark at each


@dataclass(frozen=True, slots=True)
class Grid:
    """A drawn plot: `cells[row][column]` is a character and the colour of the last series that touched it, or None."""

    cells: list[list[tuple[str, str | None]]]
    x_range: tuple[float, float]
    y_range: tuple[float, float]


def draw_curves(series: Sequence[Series], width: int = 64, height: int = 12) -> Grid:
    """All series over one pair of axes; y starts at 0 and ends at a round number above the largest value."""
    points = [(x, y) for each in series for x, y in zip(each.xs, each.ys, strict=True) if math.isfinite(y)]
    x_range = (min((x for x, _ in points), default=0.0), max((x for x, _ in points), default=1.0))
    y_range = (min(0.0, min((y for _, y in points), default=0.0)), _round_up(max((y for _, y in points), default=1.0)))
    bits = [[0] * width for _ in range(height)]
    cells: list[list[tuple[str, str | None]]] = [[(" ", None)] * width for _ in range(height)]
    for each in series:
        for column, row in _dots(each, x_range, y_range, width * 2, height * 4):
            cell_row, cell_column = row // 4, column // 2
            bits[cell_row][cell_column] |= _DOTS[row % 4][column % 2]
            cells[cell_row][cell_column] = (chr(_BLANK + bits[cell_row][cell_column]), each.colour)
        if not each.joined:
            for column, row in _places(each, x_range, y_range, width, height):
                cells[row][column] = ("●", each.colour)
    return Grid(cells, x_range, y_range)


def _dots(
    series: Series, x_range: tuple[float, float], y_range: tuple[float, float], width: int, height: int
) -> list[tuple[int, int]]:
    """Dots of the line through the points; none for a series of marks."""
    if not series.joined:
        return []
    places = _places(series, x_range, y_range, width, height)
    dots = places[:1]
    for (x0, y0), (x1, y1) in pairwise(places):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots += [(x0 + (x1 - x0) * i // length, y0 + (y1 - y0) * i // length) for i in range(1, length + 1)]
    return dots


def _places(
    series: Series, x_range: tuple[float, float], y_range: tuple[float, float], width: int, height: int
) -> list[tuple[int, int]]:
    """Each finite point as (column, row) in a grid of `width` by `height`, row 0 on top."""
    return [
        (_scaled(x, x_range, width), height - 1 - _scaled(y, y_range, height))
        for x, y in zip(series.xs, series.ys, strict=True)
        if math.isfinite(y)
    ]


def _scaled(value: float, bounds: tuple[float, float], size: int) -> int:
    low, high = bounds
    share = (value - low) / (high - low) if high > low else 0.0
    return min(size - 1, max(0, round(share * (size - 1))))


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 or 10 tenths of the value's power of ten: 0.43 -> 0.5, 0.83 -> 1.0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if value <= power * step * (1 + 1e-9))
