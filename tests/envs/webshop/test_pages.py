from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.webshop import html, pages
from rollenv.envs.webshop.product import Product


class Visible(HTMLParser):
    """The visible texts of a page with the innermost tag around each, found by parsing its markup."""

    VOID = ("link", "input", "img", "hr", "br")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.stack:
            while self.stack.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self.stack or self.stack[-1] in ("script", "head", "title", "style"):
            return
        if not data.strip(" \n\t\r\f"):
            if "\n" in data:
                return
            data = " "
        mark = {"button": "button", "label": "label", "a": "link"}.get(self.stack[-1], "text")
        self.found.append((mark, data))


def visible(markup: str) -> list[tuple[str, str]]:
    parser = Visible()
    parser.feed(markup)
    parser.close()
    return parser.found


# What shops write, and what breaks markup.
BREAKING = ["<b>", "&amp;", "&", '"', "'", "[x]", "/", "-->", "{{", "\xa0", "\t", "\n", " "]
WORD = st.sampled_from(["", "a", "Blue", "one size", "é", "🎉", *BREAKING])
TEXT = st.lists(WORD, max_size=5).map("".join)
PRODUCT = st.builds(
    Product,
    asin=st.just("B01"),
    name=TEXT,
    description=TEXT,
    bullet_points=st.lists(TEXT, min_size=1, max_size=3),
    prices=st.just([1.0]),
    price_tag=st.just("$1.0"),
    image=TEXT,
    options=st.dictionaries(TEXT.map(str.lower), st.lists(TEXT.map(str.lower), max_size=3), max_size=3),
    option_images=st.dictionaries(TEXT, st.none() | TEXT, max_size=2),
    category=TEXT,
    query=TEXT,
    product_category=TEXT,
    attributes=st.lists(TEXT, max_size=3),
)


def below_instruction(found: list[tuple[str, str]], instruction: str) -> list[tuple[str, str]]:
    assert found[0][1].strip() == "Instruction:"
    assert found[1] == ("text", instruction)
    return found[2:]


@given(PRODUCT, st.dictionaries(TEXT, TEXT, max_size=2), st.booleans())
def test_a_product_page_reads_as_its_markup(product: Product, options: dict[str, str], attributes: bool) -> None:
    markup = html.item_page("1", "find it", ["a", ""], 1, product, options, attributes)
    view = pages.item_view(product, attributes)
    assert below_instruction(visible(markup), "find it") == list(view.nodes)


@given(PRODUCT, st.sampled_from(pages.SUB_PAGES))
def test_a_sub_page_reads_as_its_markup(product: Product, name: str) -> None:
    markup = html.sub_page("1", "find it", ["a"], 1, product, {}, name)
    assert below_instruction(visible(markup), "find it") == list(pages.sub_view(product, name).nodes)


@given(st.lists(PRODUCT, max_size=3), st.integers(-1, 7), st.lists(TEXT, min_size=1, max_size=3))
def test_a_page_of_hits_reads_as_its_markup(products: list[Product], page: int, keywords: list[str]) -> None:
    markup = html.results_page("1", "find it", keywords, page, 50, products)
    view = pages.results_view(range(len(products)), products, page, 50)
    assert below_instruction(visible(markup), "find it") == list(view.nodes)


@given(st.dictionaries(TEXT, TEXT, max_size=3), st.floats(0, 1))
def test_the_last_page_reads_as_its_markup(options: dict[str, str], reward: float) -> None:
    assert visible(html.done_page("B01", options, reward)) == list(pages.done_view("B01", options, reward).nodes)


@given(PRODUCT)
def test_listed_actions_mean_what_they_name(product: Product) -> None:
    view = pages.item_view(product, True)
    for action in view.actions:
        name, argument = pages.parse_action(action)
        assert name == "click"
        assert argument in view.targets


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[Red HAT]", ("search", "red hat")),
        ("click[a]b]", ("click", "a]b")),
        ("click[x] and more", ("click", "x")),
        ("click[a[b]", ("click[a", "b")),
        ("Search[x]", ("Search", "x")),
        ("click[]", ("click[]", None)),
        ("click", ("click", None)),
        ("", ("", None)),
        ("click[a\nb]", ("click[a\nb]", None)),
    ],
)
def test_actions_are_parsed_greedily(action: str, parsed: tuple[str, str | None]) -> None:
    assert pages.parse_action(action) == parsed


def test_chosen_options_and_visited_products_are_marked() -> None:
    product = Product("B01", "Hat", "", [""], [1.0], "$1.0", "", {"color": ["red", "blue"]}, {}, "", "", "", [])
    clicked, text = pages.item_view(product, False).rich('/{"color": "red"}', ())
    assert clicked == "You have clicked red.\n"
    assert "  [clicked button] red [clicked button_]\n  [button] blue [button_]\n" in text
    _, text = pages.results_view([0], [product], 1, 1).rich("", ("B01",))
    assert "\n[clicked button] B01 [clicked button_]\n" in text
