from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.webshop import load_catalogue, normalize_color, reward_parts
from rollenv.envs.webshop.nouns import ListNouns, NounCounter, resolve
from rollenv.envs.webshop.product import Product
from rollenv.envs.webshop.reward import COLORS, type_parts
from rollenv.errors import RollenvError

NOUNS = ListNouns(["hat", "scarf", "wool", "men", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"])


def goal(**changes: Any) -> dict[str, Any]:
    return {
        "attributes": ["wool", "hand made"],
        "goal_options": {"color": "blue"},
        "price_upper": 20.0,
        "query": "hats",
        "product_category": "Clothing › Hats",
        "name": "Blue wool hat",
        **changes,
    }


@pytest.fixture
def hat(shop: Path) -> Product:
    return load_catalogue(shop).product(0)


def test_all_that_is_asked_for(hat: Product) -> None:
    parts = reward_parts(goal(), hat, {"color": "blue"}, 12.5, NOUNS)
    assert parts["reward"] == 1.0
    assert (parts["num_attr_matches"], parts["num_option_matches"], parts["r_price"]) == (2, 1, True)


def test_every_part_counts_alike(hat: Product) -> None:
    parts = reward_parts(goal(attributes=["wool", "silk"]), hat, {}, 99.0, NOUNS)
    assert parts["reward"] == 1 / 4
    assert (parts["r_att"], parts["r_option"], parts["r_price"]) == (0.5, 0.0, False)
    assert parts["w_att"] + parts["w_option"] + parts["w_price"] == 1


def test_the_colours_of_a_pair_are_seen_only_when_exact(hat: Product) -> None:
    chosen = {"color": "sky blue"}
    assert reward_parts(goal(goal_options=["navy blue"]), hat, chosen, 1, NOUNS)["num_option_matches"] == 1
    assert reward_parts(goal(goal_options={"color": "blue"}), hat, chosen, 1, NOUNS)["num_option_matches"] == 1
    assert reward_parts(goal(goal_options={"color": "a1-red"}), hat, {"c": "red"}, 1, NOUNS)["num_option_matches"] == 1
    assert reward_parts(goal(goal_options={"color": "teal"}), hat, chosen, 1, NOUNS)["num_option_matches"] == 0


@pytest.mark.parametrize(
    ("name", "query", "category", "r_type"),
    [
        ("hat wool", "hats", "x", 1.0),
        ("hat a b c d e f g h i j k", "hats", "x", 0.1),
        ("scarf", "hats", "x", 0.0),
        ("hat a b c d", "other", "Clothing › Hats", 1.0),
        ("hat a b c d", "other", "Clothing › Scarves", 0.5),
        ("hat a b", "other", "x", 1.0),
        ("123", "other", "x", 0.5),
    ],
)
def test_kinds_of_product(hat: Product, name: str, query: str, category: str, r_type: float) -> None:
    assert type_parts(goal(name=name, query=query, product_category=category), hat, NOUNS)["r_type"] == r_type


@given(st.text())
def test_a_colour_is_found_once(text: str) -> None:
    found = normalize_color(text)
    assert found in COLORS or found == text
    assert normalize_color(found) in (found, *COLORS)


def test_the_noun_list_has_things_and_leaves_out_the_rest() -> None:
    counter = NounCounter()
    counter.add("Stylish Waterproof Men's Boot with 2 Laces by ACME", "hiking boots", "Shoes › Outdoor")
    assert counter.words() == ["acme", "boot", "boots", "hiking", "laces", "men", "shoes"]
    assert ListNouns(counter.words()).of("2 boots, Boots for MEN'S hiking") == ["boots", "boots", "men", "hiking"]


def test_unknown_noun_components_are_refused() -> None:
    with pytest.raises(RollenvError, match="did you mean 'spacy'"):
        resolve("spaci")
    assert resolve("list") == "list"
