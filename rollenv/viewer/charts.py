"""Curves and intervals as inline SVG, and as a line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 340, 150, 48, 18, 8, 14
POINTS = 300
"""Of a curve; longer ones are drawn as the means of so many pieces."""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Series:
    """A curve: `points` are (step, value), in the order of steps."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves in one picture; each has a point at least."""

    title: str
    series: Sequence[Series]


def svg(chart: Chart, colours: Sequence[int]) -> str:
    """The picture. `colours[i]` is the number of the class (`c0`, `c1`, ...) of the i-th curve."""
    curves = [thinned(each.points, POINTS) for each in chart.series]
    xs, ys = ([point[i] for points in curves for point in points] for i in (0, 1))
    x, y = _Axis(xs, LEFT, WIDTH - RIGHT), _Axis(ys, HEIGHT - BOTTOM, TOP, room=0.05)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    for tick in ticks(y.low, y.high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y(tick) + 3:.1f}" text-anchor="end">{number(tick)}</text>')
    parts += [
        f'<text x="{x(tick):.1f}" y="{HEIGHT - 4}" text-anchor="middle">{number(tick)}</text>'
        for tick in ticks(x.low, x.high, 5)
        if tick == int(tick)
    ]
    for points, colour in zip(curves, colours, strict=True):
        places = [f"{x(at):.1f},{y(value):.1f}" for at, value in points]
        parts.append(f'<polyline class="line c{colour}" points="{" ".join(places)}"/>')
        if len(points) < 15:
            dots = (place.split(",") for place in places)
            parts += [f'<circle class="dot c{colour}" cx="{cx}" cy="{cy}" r="2.2"/>' for cx, cy in dots]
    return "".join([*parts, "</svg>"])


def interval_svg(share: float, ci95: Sequence[float] | None) -> str:
    """A share as a bar from 0 to 1, with its interval."""
    bar = f'<rect class="share" width="{100 * share:.1f}" height="9"/>'
    line = "" if ci95 is None else f'<path class="ci" d="M{100 * ci95[0]:.1f} 4.5H{100 * ci95[1]:.1f}"/>'
    return (
        f'<svg class="bar" viewBox="0 0 100 9" aria-hidden="true"><rect class="all" width="100" height="9"/>'
        f"{bar}{line}</svg>"
    )


def sparkline(values: Sequence[float], length: int = 24) -> str:
    """A curve as a line of text.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    thin = [value for _, value in thinned([(float(i), value) for i, value in enumerate(values)], length)]
    low, high = min(thin), max(thin)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in thin)


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Points as they are, or the means of `most` pieces of about the same length; the last one stays the last step."""
    n = len(points)
    if n <= most:
        return list(points)
    pieces = [points[i * n // most : (i + 1) * n // most] for i in range(most)]
    return [(piece[-1][0], sum(value for _, value in piece) / len(piece)) for piece in pieces]


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers within a range, about so many.

    >>> ticks(0.0, 1.0), ticks(3.0, 97.0)
    ([0.0, 0.5, 1.0], [50.0])
    """
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(n for n in (1, 2, 5, 10) if n * size >= raw) * size
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def number(value: float) -> str:
    """A figure with four digits that tell.

    >>> number(12345.0), number(0.123456), number(2e-13)
    ('12,345', '0.1235', '2e-13')
    """
    return f"{round(value):,}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


class _Axis:
    """From values to places."""

    def __init__(self, values: Sequence[float], start: float, end: float, room: float = 0.0) -> None:
        low, high = min(values), max(values)
        size = max(abs(low), abs(high))
        if size < 1e-290 or high - low <= 1e-9 * size:  # as good as one value
            half = size / 2 if size >= 1e-290 else 0.5
            low, high = low - half, high + half
        more = room * (high - low)
        self.low, self.high, self._start, self._end = low - more, high + more, start, end

    def __call__(self, value: float) -> float:
        return self._start + (self._end - self._start) * (value - self.low) / (self.high - self.low)
