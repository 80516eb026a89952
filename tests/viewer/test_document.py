"""A report's blocks as HTML and Markdown: what they say is text in both."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from rollenv.viewer.charts import Chart, Series
from rollenv.viewer.document import Block, Charts, Heading, Paragraph, Share, Table, as_html, as_markdown

NAMES = st.sampled_from(["<script>", "a|b", "</td>", "`x`", "line\nbreak", "&amp;", "# head", "\\"]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8
)


class Structure(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def blocks(name: str, other: str) -> list[Block]:
    curves = [Series(f"1{name}", [(0, 1.0), (1, 2.0)]), Series(f"2{other}", [(0, 1.0)])]
    return [
        Heading(1, name),
        Paragraph(other),
        Table([name, "n#"], [[other, "1"], [Share(0.5, (0.4, 0.6)), name]]),
        Charts([Chart(name, curves)]),
    ]


@given(NAMES, NAMES)
def test_names_never_become_markup_in_html(name: str, other: str) -> None:
    found, plain = Structure(as_html(blocks(name, other))), Structure(as_html(blocks("a", "b")))
    assert found.tags == plain.tags
    assert "script" not in found.tags
    assert name in found.text


@given(NAMES, NAMES)
def test_names_never_break_a_table_or_become_html_in_markdown(name: str, other: str) -> None:
    said = as_markdown(blocks(name, other))
    assert not re.search("<", said)
    rows = [line for line in said.splitlines() if line.startswith("| ")]
    bars = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows]
    assert bars[:4] == [3, 3, 3, 3]
    assert set(bars[4:]) == {8}
    assert len(said.splitlines()) == len(as_markdown(blocks("a", "b")).splitlines())


def test_a_share_is_told_with_its_interval() -> None:
    assert str(Share(0.4567, (0.4, 0.5))) == "45.7% (40.0–50.0)"
    assert str(Share(1.0)) == "100.0%"
    assert str(Share(None)) == "–"
