"""The shop's pages: what is visible on them, what can be clicked, and both text forms.

Invariant: a page is a sequence of visible texts in document order, each of a kind (`Mark`); the text observations
follow from it alone, equal to what the original gets by parsing its own HTML.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any, Literal

from rollenv.envs.webshop.product import Product

SEPARATOR = " [SEP] "
PER_PAGE = 10

BACK, NEXT, PREV, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
SUB_PAGE_OF = {name.lower(): name for name in SUB_PAGES}

Mark = Literal["text", "button", "label", "link"]
Node = tuple[Mark, str]
"""A visible text and what it is part of: a button, an option's label, a link to a product, or nothing clickable."""
Target = tuple[Literal["button", "link", "option"], Any]
"""What a click hits: a button, the link to the product of that number, or a value of the option of that name."""

_ACTION = re.compile(r"(.+)\[(.+)\]")
_NODE_SPACE = re.compile(r"[ \n\t\f\r]+")


def parse_action(action: str) -> tuple[str, str | None]:
    """An action's name and its argument, lower-cased; the argument is None when there are no brackets.

    >>> parse_action("search[Red [Wool] Hat]")
    ('search[Red ', 'wool] hat')
    """
    match = _ACTION.match(action)
    return (match[1], match[2].lower()) if match else (action, None)


class View:
    """A page without the instruction above it: what is the same for every goal and every session.

    Attributes:
        clickables: what `click[...]` takes, in order.
        targets: what each of them is.
        text: the text observation after the instruction; None when nothing is left of it.
        actions: a valid action for every clickable that an action can name.
        data: the products a page of hits shows.
    """

    __slots__ = ("_marks", "_rich", "actions", "clickables", "data", "nodes", "targets", "text")

    def __init__(self, nodes: Iterable[tuple[Mark, str]], targets: dict[str, Target], data: Any = None) -> None:
        self.nodes = tuple(node for mark, raw in nodes if (node := _node(mark, raw)) is not None)
        self.targets = targets
        self.clickables = tuple(targets)
        self.actions = tuple(f"click[{name}]" for name in targets if name != "search" and _is_named(name))
        segments = [text.strip() for _, text in self.nodes]
        self.text = SEPARATOR.join(segments) if segments else None
        self._rich: str | None = None
        self._marks = {mark for mark, _ in self.nodes}
        self.data = data

    def rich(self, url: str, visited: Container[str]) -> tuple[str, str]:
        """The page in the form `text_rich`: what has been clicked (which stands above all else), and the rest.

        Args:
            url: the page's address, which tells the chosen options.
            visited: asins of the products that have been opened.
        """
        if ("label" not in self._marks or '"' not in url) and ("link" not in self._marks or not visited):
            if self._rich is None:
                self._rich = "".join(f"{_rich(mark, text, False)}\n" for mark, text in self.nodes)
            return "", self._rich
        lines, clicked = [], []
        for mark, text in self.nodes:
            chosen = (mark == "label" and f'"{text}"' in url) or (mark == "link" and text in visited)
            if chosen and mark == "label":
                clicked.append(f"You have clicked {text}.\n")
            lines.append(f"{_rich(mark, text, chosen)}\n")
        return "".join(reversed(clicked)), "".join(lines)


def _is_named(name: str) -> bool:
    """Whether `click[NAME]` is understood as a click on that."""
    return (name.isalnum() and name == name.lower()) or parse_action(f"click[{name}]") == ("click", name)


def _node(mark: Mark, raw: str) -> Node | None:
    """A text as a parser of HTML keeps it: white space alone shrinks to one character, and a new line is no node."""
    if not raw:
        return None
    if raw.isspace() and _NODE_SPACE.fullmatch(raw):  # asked first, as it is quick and mostly untrue
        return None if "\n" in raw else (mark, " ")
    return mark, raw


def _rich(mark: Mark, text: str, chosen: bool) -> str:
    if mark == "text":
        return text
    word = "clicked button" if chosen else "button"
    before = {"button": "", "label": "  ", "link": "\n"}[mark]
    return f"{before}[{word}] {text} [{word}_]"


@functools.lru_cache(4096)
def head_text(instruction: str) -> str:
    """What the form `text` has above every page but the first and the last."""
    return SEPARATOR.join(["Instruction:", *(n[1].strip() for n in [_node("text", instruction)] if n)])


def head_rich(title: str, instruction: str) -> str:
    """What the form `text_rich` has there."""
    return "".join(f"{n[1]}\n" for n in [_node("text", title), _node("text", instruction)] if n)


# -- the pages ---------------------------------------------------------------------------------------------


def _buttons(*names: str) -> tuple[list[tuple[Mark, str]], dict[str, Target]]:
    return [("button", name) for name in names], {name.lower(): ("button", None) for name in names}


SEARCH = View([("button", "Search")], {"search": ("button", None)})


def results_view(hits: Sequence[int], products: Sequence[Product], page: int, total: int) -> View:
    """A page of hits: `hits` are the numbers of the `products` on this `page`, out of `total` found."""
    nodes, targets = _buttons(BACK)
    nodes.append(("text", f"Page {page} (Total results: {total})"))
    turning, more = _buttons(PREV, NEXT) if page > 1 else _buttons(NEXT)
    nodes += turning
    targets |= more
    for number, product in zip(hits, products, strict=True):
        nodes += [("link", product.asin), ("text", product.name), ("text", product.price_tag)]
        targets[product.asin.lower()] = ("link", number)
    return View(nodes, targets, tuple(hits))


def item_view(product: Product, show_attributes: bool) -> View:
    """A product's page."""
    nodes, targets = _buttons(BACK, PREV)
    for name, values in product.options.items():
        nodes.append(("text", name))
        nodes += [("label", value) for value in values]
    nodes += [("text", product.name), ("text", f"Price: {product.price_tag}"), ("text", "Rating: N.A.")]
    last, more = _buttons(*(SUB_PAGES if show_attributes else SUB_PAGES[:3]), BUY)
    targets |= more
    for name, values in product.options.items():
        targets |= dict.fromkeys(values, ("option", name))
    return View([*nodes, *last], targets)


def sub_view(product: Product, name: str) -> View:
    """One of the pages below a product's."""
    nodes, targets = _buttons(BACK, PREV)
    if name == "Description":
        nodes.append(("text", product.description))
    elif name == "Features":
        nodes += [("text", f" {point}") for point in product.bullet_points]
    elif name == "Attributes":
        nodes += [("text", f" {attribute}") for attribute in product.attributes]
        nodes += [("text", product.category), ("text", product.query), ("text", product.product_category)]
    return View(nodes, targets)


def done_view(asin: str, options: dict[str, str], reward: float) -> View:
    """The last page, with its parts that only a parser sees."""
    texts = [
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *("Purchased", "asin", asin, "options", to_json(options), "attrs", "None", "category", "None"),
        *("query", "None", "product category", "None", "Target", "asin", "options", "attrs", "price upper"),
        *("instuction text", "category", "product category", "query", "Goal ", "None", "Reward"),
        *("Your score (min 0.0, max 1.0)", str(reward), "Reward Details ", "None"),
    ]
    return View([("text", text) for text in texts], {})


def to_json(value: Any) -> str:
    """JSON that is safe inside HTML: sorted keys, and the signs of markup as escapes."""
    text = json.dumps(value, sort_keys=True)
    for sign, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("'", "\\u0027")):
        text = text.replace(sign, escape)
    return text
