"""A report as headings, tables and charts, and how these become one HTML file or Markdown.

Names come from folders, models and tasks: in both forms they are text, never markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from rollenv.viewer.charts import Chart, interval_svg, number, sparkline, svg

COLOURS = 8
"""Of curves; the next ones begin again."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its 95% interval, if it has one."""

    value: float | None
    ci95: Sequence[float] | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "–"
        between = "" if self.ci95 is None else f" ({100 * self.ci95[0]:.1f}–{100 * self.ci95[1]:.1f})"
        return f"{100 * self.value:.1f}%{between}"


@dataclass(frozen=True, slots=True)
class Heading:
    """`level` 1 is the title."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or several."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below a head; a column whose name ends in `#` is one of numbers (the sign is not shown)."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | Share]]


@dataclass(frozen=True, slots=True)
class Charts:
    """Pictures of the same runs: a run has one colour in all of them."""

    charts: Sequence[Chart]


Block = Heading | Paragraph | Table | Charts


# -- HTML ----------------------------------------------------------------------------------------------------------


def as_html(blocks: Sequence[Block]) -> str:
    """One file that needs nothing from elsewhere, and runs no script."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "report")
    style = files("rollenv.viewer").joinpath("page", "report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(_html(block) for block in blocks)
        + "\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Table():
            return _html_table(block)
        case Charts(charts):
            return _html_charts(charts)


def _html_table(table: Table) -> str:
    numeric = [name.endswith("#") for name in table.head]

    def line(cells: Sequence[str], tag: str) -> str:
        parts = zip(cells, numeric, strict=True)
        return "<tr>" + "".join(f"<{tag}{' class=number' if right else ''}>{cell}</{tag}>" for cell, right in parts)

    head = line([html.escape(name.removesuffix("#")) for name in table.head], "th")
    rows = [line([_html_cell(cell) for cell in row], "td") for row in table.rows]
    return f"<table>\n<thead>{head}</thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table>"


def _html_cell(cell: str | Share) -> str:
    if isinstance(cell, Share) and cell.value is not None:
        return f"<span class=share>{interval_svg(cell.value, cell.ci95)} {cell}</span>"
    return html.escape(str(cell))


def _html_charts(charts: Sequence[Chart]) -> str:
    names = _names(charts)
    colour = {name: i % COLOURS for i, name in enumerate(names)}
    legend = "".join(f'<span><i class="b{colour[name]}"></i>{html.escape(name)}</span>' for name in names)
    pictures = (
        f"<figure><figcaption>{html.escape(chart.title)}</figcaption>"
        f"{svg(chart, [colour[each.name] for each in chart.series])}</figure>"
        for chart in charts
    )
    return f'<p class="legend">{legend}</p>\n<div class="charts">\n' + "\n".join(pictures) + "\n</div>"


def _names(charts: Sequence[Chart]) -> list[str]:
    return list(dict.fromkeys(each.name for chart in charts for each in chart.series))


# -- Markdown ------------------------------------------------------------------------------------------------------


def as_markdown(blocks: Sequence[Block]) -> str:
    """The same in Markdown; curves become lines of small bars, with their first and last values."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {plain(text)}"
        case Paragraph(text):
            return plain(text)
        case Table():
            return _markdown_table(block)
        case Charts(charts):
            return _markdown_table(
                Table(
                    ["figure", "run", "curve", "first#", "last#", "lowest#", "highest#"],
                    [[chart.title, *_curve(each.name, each.points)] for chart in charts for each in chart.series],
                )
            )


def _markdown_table(table: Table) -> str:
    rule = ["---:" if name.endswith("#") else "---" for name in table.head]
    lines = [[plain(name.removesuffix("#")) for name in table.head], rule]
    lines += [[plain(str(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _curve(name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    values = [value for _, value in points]
    return [name, sparkline(values), *(number(value) for value in (values[0], values[-1], min(values), max(values)))]


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line.

    >>> plain("a|b <i>*x*</i>")
    'a\\\\|b &lt;i&gt;\\\\*x\\\\*&lt;/i&gt;'
    """
    one_line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", one_line)
