"""The page is whole, and what episodes say stays data in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.viewer.index import SHOW, SORT
from rollenv.viewer.page import SCRIPTS, page

NASTY = st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "<!--",
        "-->",
        "<script>",
        "]]>",
        "\u2028",
        "&lt;",
        '"',
        "{script}",
        "{data}",
        "\\1",
    ]
)


class Elements(HTMLParser):
    """The elements of a page, and what stands in its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("script", "style"):
            self.inside.append((dict(attrs).get("type") or tag, ""))

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] in (["script"], ["style"]) and self.inside:
            kind, before = self.inside[-1]
            self.inside[-1] = (kind, before + data)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def of(self, kind: str) -> str:
        (found,) = [text for each, text in self.inside if each == kind]
        return found


PLAIN = Elements(page())


@given(st.recursive(NASTY | st.text(), lambda inner: st.lists(inner) | st.dictionaries(NASTY | st.text(), inner)))
def test_no_text_of_an_episode_gets_out_of_its_block(data: object) -> None:
    found = Elements(page({"data": data}))
    assert found.tags == PLAIN.tags
    assert found.of("script") == PLAIN.of("script")
    assert json.loads(found.of("application/json")) == {"data": data}


@pytest.mark.parametrize("kind", ["script", "style"])
def test_the_policy_knows_the_page_s_own_script_and_style_by_their_digests(kind: str) -> None:
    digest = base64.b64encode(hashlib.sha256(PLAIN.of(kind).encode()).digest()).decode()
    assert f"{kind}-src 'sha256-{digest}'" in page()


def test_nothing_is_made_of_strings_of_html_and_nothing_comes_from_elsewhere() -> None:
    script = PLAIN.of("script")
    makers = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|javascript:"
    )
    assert not re.search(makers, script)
    assert set(re.findall(r"https?://[^\"' ]+", page())) == {"http://www.w3.org/2000/svg"}


def test_every_script_is_in_the_page() -> None:
    there = {each.name for each in files("rollenv.viewer").joinpath("page").iterdir() if each.name.endswith(".js")}
    assert there == set(SCRIPTS)


def test_the_page_filters_and_sorts_by_what_the_index_knows() -> None:
    for table, names in (("SHOWN", SHOW), ("ORDER", SORT), ("SHOW_NAMES", SHOW), ("SORT_NAMES", SORT)):
        body = re.search(rf"const {table} = \{{(.*?)\n\}};", PLAIN.of("script"), re.DOTALL)
        assert body, table
        assert [name for name in names if not re.search(rf"\b{name}:", body[1])] == []
