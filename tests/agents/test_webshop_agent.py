"""WebShopAgent on pages of observation mode `text`: by hand, and on every page of the original's recordings."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollenv.agents.base import ChatAgent, Step
from rollenv.agents.webshop import WebShopAgent, results, split_instruction
from rollenv.errors import RollenvError

START = "WebShop [SEP] Instruction: [SEP] find a red shoe [SEP] Search"
HITS = (
    "Instruction: [SEP] find a red shoe [SEP] Back to Search [SEP] Page 1 (Total results: 3) [SEP] Next > [SEP] "
    "B01AAAAAAA [SEP] Red Running Shoe [SEP] $20.0 [SEP] B02BBBBBBB [SEP] Blue Shoe [SEP] $10.0 to $15.0"
)
ITEM = (
    "Instruction: [SEP] find a red shoe [SEP] Back to Search [SEP] < Prev [SEP] size [SEP] 7 [SEP] 8 [SEP] color [SEP] "
    "red [SEP] Red Running Shoe [SEP] Price: $20.0 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] "
    "Reviews [SEP] Buy Now"
)


def step(observation: str, *clickables: str, search: bool = False) -> Step:
    return Step(observation, {"available_actions": {"has_search_bar": search, "clickables": list(clickables)}})


def start() -> Step:
    return step(START, "search", search=True)


def hits() -> Step:
    return step(HITS, "back to search", "next >", "b01aaaaaaa", "b02bbbbbbb")


def item() -> Step:
    return step(ITEM, "back to search", "< prev", "7", "8", "red", "description", "features", "reviews", "buy now")


def read(agent: WebShopAgent, *history: Step) -> list[str]:
    return [m.content for m in agent.messages(list(history)) if m.role == "user"]


# -- by hand ---------------------------------------------------------------------------------------------------


def test_numbered_pages() -> None:
    pages = read(WebShopAgent("numbered", system=""), start(), hits(), item())
    assert pages[0] == "find a red shoe\nWebShop Search [1]"
    assert "Red Running Shoe $20.0 [3]" in pages[1].splitlines()
    assert "Blue Shoe $10.0 to $15.0 [4]" in pages[1].splitlines()
    assert "B01AAAAAAA" not in pages[1]
    assert "- size? 7 [3] 8 [4]" in pages[2].splitlines()
    assert "- color? red [5]" in pages[2].splitlines()
    assert "Buy Now [9]" in pages[2]
    assert not any("find a red shoe" in page for page in pages[1:])  # the instruction is shown once


def test_text_pages() -> None:
    pages = read(WebShopAgent("text", system=""), start(), hits())
    assert pages[0].endswith("Actions: search[words] click[search]")
    assert "B01AAAAAAA Red Running Shoe $20.0" in pages[1].splitlines()
    assert pages[1].endswith("Actions: click[back to search] click[next >] click[b01aaaaaaa] click[b02bbbbbbb]")


def test_titles_are_cut_but_still_found_by_their_whole_label() -> None:
    agent, page = WebShopAgent("numbered", title_words=2), hits()
    assert "Red Running $20.0 [3]" in read(agent, page)[0].splitlines()
    assert agent.action("click[red running shoe]", page) == "click[b01aaaaaaa]"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("click[3]", "click[b01aaaaaaa]"),
        ("I would take the red one.\nclick[3]", "click[b01aaaaaaa]"),
        ("<action>click[3]</action>", "click[b01aaaaaaa]"),
        ("Click[ 4 ]", "click[b02bbbbbbb]"),
        ("click[blue shoe]", "click[b02bbbbbbb]"),
        ("click[B02BBBBBBB]", "click[b02bbbbbbb]"),
        ("click[next >]", "click[next >]"),
        ("click[2]", "click[next >]"),
        ("click [3]", "click[b01aaaaaaa]"),
        ("click 3", "click[b01aaaaaaa]"),
        ("click Blue Shoe", "click[b02bbbbbbb]"),
        ("click next >", "click[next >]"),
        ("search red shoe", "search[red shoe]"),
        ("Search[ red shoe ]", "search[red shoe]"),
        # What means nothing comes back as it is: the environment calls it invalid.
        ("click[5]", "click[5]"),
        ("click[0]", "click[0]"),
        ("click[-1]", "click[-1]"),
        ("click[²]", "click[²]"),
        ("click[green shoe]", "click[green shoe]"),
        ("buy it", "buy it"),
        ("", ""),
        ("search[3]", "search[3]"),
    ],
)
def test_numbered_answers(said: str, meant: str) -> None:
    agent, page = WebShopAgent("numbered"), hits()
    read(agent, page)
    assert agent.action(said, page) == meant


def test_a_label_that_is_a_number_goes_before_the_number() -> None:
    agent, page = WebShopAgent("numbered"), item()
    read(agent, page)
    assert agent.action("click[7]", page) == "click[7]"  # the size, not the seventh
    assert agent.action("click [7]", page) == "click[features]"  # in brackets after a space: the seventh
    assert agent.action("click[9]", page) == "click[buy now]"  # no such label: the ninth
    assert agent.action(agent.text("click[7]", page), page) == "click[7]"


def test_a_label_of_two_products_is_ambiguous() -> None:
    page = step(HITS.replace("Blue Shoe", "Red Running Shoe"), "back to search", "next >", "b01aaaaaaa", "b02bbbbbbb")
    agent = WebShopAgent("numbered")
    read(agent, page)
    assert agent.action("click[red running shoe]", page) == "click[red running shoe]"
    assert [agent.action(agent.text(f"click[{c}]", page), page) for c in ("b01aaaaaaa", "b02bbbbbbb")] == [
        "click[b01aaaaaaa]",
        "click[b02bbbbbbb]",
    ]


def test_an_unchanged_page_is_not_shown_again_and_keeps_its_numbers() -> None:
    agent = WebShopAgent("numbered", system="")
    history = [item(), item(), item()]
    pages = read(agent, *history)
    assert pages[1:] == ["Same page.", "Same page."]
    assert agent.action("click[9]", history[2]) == "click[buy now]"
    windowed = read(WebShopAgent("numbered", system="", history=1), item(), item())
    assert windowed == [read(WebShopAgent("numbered", system=""), item())[0]]


def test_an_invalid_action_is_said() -> None:
    first = hits()
    first.valid_action = False
    pages = read(WebShopAgent("numbered", system=""), first, hits(), hits())
    assert pages[1] == "That is not possible.\nSame page."
    assert pages[2] == "Same page."


def test_a_window_shows_the_instruction_with_every_page() -> None:
    agent = WebShopAgent("numbered", history=2)
    history = [start(), hits(), item(), hits()]
    for n in range(1, 5):
        assert all("find a red shoe" in page for page in read(agent, *history[:n]))
    assert len(read(agent, *history)) == 2


def test_rendered_once_whatever_happens_later() -> None:
    agent, history = WebShopAgent("numbered"), [start(), hits()]
    before = read(agent, *history)
    history[1].info["available_actions"]["clickables"].clear()
    assert read(agent, *history, item())[:2] == before


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(RollenvError, match="action_format must be 'text' or 'numbered', not 'number'"):
        WebShopAgent("number")  # type: ignore[arg-type]
    with pytest.raises(RollenvError, match="history must be"):
        WebShopAgent(history=0)


def test_system_prompts() -> None:
    assert isinstance(WebShopAgent(), ChatAgent)
    assert "click [number]" in WebShopAgent("numbered").messages([start()])[0].content
    assert "[number]" not in WebShopAgent("text").messages([start()])[0].content
    assert [m.role for m in WebShopAgent(system="").messages([start()])] == ["user"]


def test_split_instruction() -> None:
    assert split_instruction(START) == ("find a red shoe", ["WebShop", "Search"])
    assert split_instruction("Thank you [SEP] for shopping") == ("", ["Thank you", "for shopping"])
    assert split_instruction("Instruction:") == ("", [])


# -- on the original's pages ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(shared_data: Callable[[str], Path]) -> list[tuple[str, dict[str, Any]]]:
    """(observation, available actions) of every page in mode `text` of the recorded episodes."""
    with gzip.open(shared_data("webshop/reference/visible_episodes.json.gz"), "rt") as file:
        episodes = json.load(file)
    found = []
    for episode in episodes:
        if episode["mode"] == "text":
            found += [(page["obs"], page["available"]) for page in [episode["reset"], *episode["steps"]]]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("action_format", ["text", "numbered"])
@pytest.mark.parametrize("title_words", [None, 6])
def test_every_clickable_of_every_page_can_be_said_and_is_understood(
    pages: list[tuple[str, dict[str, Any]]], action_format: Any, title_words: int | None
) -> None:
    agent = WebShopAgent(action_format, title_words=title_words)
    for observation, available in pages:
        page = step(observation, *available["clickables"], search=available["has_search_bar"])
        read(agent, page)
        for clickable in available["clickables"]:
            said = agent.text(f"click[{clickable}]", page)
            assert agent.action(said, page) == f"click[{clickable}]"
        if available["has_search_bar"]:
            assert agent.action(agent.text("search[red shoe]", page), page) == "search[red shoe]"


def test_every_clickable_of_every_page_has_its_number(pages: list[tuple[str, dict[str, Any]]]) -> None:
    """1 to n in reading order, each in the text once, each clickable at least once."""
    agent = WebShopAgent("numbered", system="")
    for observation, available in pages:
        page = step(observation, *available["clickables"], search=available["has_search_bar"])
        (text,) = read(agent, page)
        numbers = page.data["clickables"]
        assert {click for click, _ in numbers} == set(available["clickables"])
        shown = [int(n) for n in re.findall(r" \[(\d+)\](?= |$)", text, re.MULTILINE)]
        assert [n for n in shown if n <= len(numbers)] == list(range(1, len(numbers) + 1))
        for number, (click, label) in enumerate(numbers, start=1):
            assert agent.action(f"click [{number}]", page) == f"click[{click}]"
            assert label


def test_the_original_pages_hits_have_titles_and_prices(pages: list[tuple[str, dict[str, Any]]]) -> None:
    seen = 0
    for observation, available in pages:
        _, nodes = split_instruction(observation)
        if not any(node.startswith("Page ") for node in nodes[:2]):
            continue
        hits_of = [hit for hit in results(nodes, set(available["clickables"])) if hit[2]]
        products = [c for c in available["clickables"] if c not in ("back to search", "next >", "< prev")]
        assert [asin.lower() for asin, _, _ in hits_of] == products
        assert all(title and price.startswith("$") for _, title, price in hits_of)
        seen += 1
    assert seen > 3


def test_a_page_seen_before_is_named_and_its_numbers_stay() -> None:
    agent = WebShopAgent("numbered", system="")
    history = [start(), hits(), item(), hits()]
    for turn in range(len(history)):
        pages = agent.messages(history[: turn + 1])
    assert pages[-1].content == "Again: Page 1"
    assert agent.action("click [3]", history[3]) == agent.action("click [3]", history[1])


def test_a_windowed_history_shows_every_page_whole() -> None:
    agent = WebShopAgent("numbered", system="", history=1)
    history = [start(), hits(), item(), hits()]
    for turn in range(len(history)):
        pages = agent.messages(history[: turn + 1])
    assert "Red Running Shoe $20.0 [3]" in pages[-1].content
