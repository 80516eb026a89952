"""Pictures of curves: whole, within their frame, and with round numbers on their axes."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.viewer.charts import HEIGHT, WIDTH, Chart, Series, interval_svg, sparkline, svg, thinned, ticks

VALUES = st.floats(-1e9, 1e9)
CURVES = st.lists(VALUES, min_size=1, max_size=400).map(lambda values: list(enumerate(values)))


@given(st.lists(CURVES, min_size=1, max_size=3), st.text(st.characters(categories=["L", "P", "S"]), max_size=9))
def test_a_picture_is_well_formed_and_holds_every_curve_within_its_frame(curves: list, title: str) -> None:
    chart = Chart(title, [Series(str(i), points) for i, points in enumerate(curves)])
    picture = ET.fromstring(svg(chart, range(len(curves))))
    assert picture.get("aria-label") == title
    lines = picture.findall("polyline")
    assert len(lines) == len(curves)
    for line in lines:
        for place in (line.get("points") or "").split():
            x, y = map(float, place.split(","))
            assert -0.1 <= x <= WIDTH + 0.1
            assert -0.1 <= y <= HEIGHT + 0.1


@given(VALUES, st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_within_the_range(low: float, span: float) -> None:
    high = low + span
    if high - low < 1e-9 * max(1.0, abs(low)):
        return
    found = ticks(low, high)
    assert 0 <= len(found) <= 6
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in found)
    steps = {float(f"{b - a:.6g}") for a, b in itertools.pairwise(found)}
    if max(abs(low), abs(high)) / span < 1e4:
        assert all(re.fullmatch(r"[125]", f"{step:.3e}"[0]) for step in steps)


@given(CURVES, st.integers(1, 50))
def test_a_long_curve_is_drawn_by_the_means_of_its_pieces(points: list, most: int) -> None:
    thin = thinned(points, most)
    assert len(thin) == min(len(points), most)
    assert thin[-1][0] == points[-1][0]
    values = [value for _, value in points]
    assert all(min(values) - 1 <= value <= max(values) + 1 for _, value in thin)
    if len(points) % most == 0:
        mean = sum(value for _, value in thin) / len(thin)
        assert mean == pytest.approx(sum(values) / len(values), abs=1e-3)


def test_a_line_of_bars_rises_with_its_values() -> None:
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert list(sparkline([0.1 * i for i in range(8)])) == sorted("▁▂▃▄▅▆▇█")
    assert len(sparkline(list(range(1000)), 24)) == 24


def test_an_interval_is_drawn_where_it_lies() -> None:
    picture = ET.fromstring(interval_svg(0.25, (0.2, 0.4)))
    assert picture.findall("rect")[1].get("width") == "25.0"
    line = picture.find("path")
    assert line is not None
    assert line.get("d") == "M20.0 4.5H40.0"
    assert ET.fromstring(interval_svg(0.25, None)).find("path") is None
