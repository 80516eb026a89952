"""The native WebShop against recordings of the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollenv
from rollenv.envs.webshop import load_goals, normalize_color, reward_parts, search
from rollenv.envs.webshop.catalogue import Catalogue

Reference = Callable[[str], Any]


@pytest.mark.parametrize("number", range(27))
def test_episode(data: Path, reference: Reference, number: int) -> None:
    episode = reference("visible_episodes")[number]
    kind = "human" if episode["server"] == "human" else "synthetic"
    env = rollenv.make(
        "webshop",
        data=data,
        goals=kind,
        observation_mode=episode["mode"],
        show_attrs=episode["server"].endswith("show_attrs"),
    )
    observation, info = env.reset(options={"task": f"{kind}-{episode['goal_idx']}"})
    assert observation == episode["reset"]["obs"]
    assert info["available_actions"] == episode["reset"]["available"]
    assert info["url"] == episode["reset"]["url"]
    assert f"Instruction: {info['instruction']}" == episode["instruction_text"]
    for step in episode["steps"]:
        admissible = info["admissible_actions"]
        observation, reward, terminated, truncated, info = env.step(step["action"])
        assert observation == step["obs"]
        assert info["available_actions"] == step["available"]
        assert info["url"] == step["url"]
        assert (reward, terminated, truncated) == (step["reward"], step["done"], False)
        if step["action"] in admissible:
            assert info["valid_action"]
    wanted = {key: value for key, value in step["verbose_info"].items() if key != "r_type_note"}
    assert {key: info["reward_parts"][key] for key in wanted} == wanted
    assert (info["purchased"], info["options"]) == (step["purchased_asin"], step["options"])
    assert info["success"] is (step["reward"] == 1.0)


def test_searches_in_order_and_in_score(catalogue: Catalogue, reference: Reference) -> None:
    recorded = reference("visible_search_bm25_top50")
    assert len(recorded) == 45
    for case in recorded:
        hits = [[asin, round(score, 4)] for asin, score in search(catalogue, case["query"])]
        assert hits == case["hits"], case["query"]


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_goals_and_prices_of_seed_42(catalogue: Catalogue, reference: Reference, kind: Any) -> None:
    goals = load_goals(catalogue, kind, 42)
    assert list(goals) == reference(f"goals_{kind}_seed42")
    prices = {catalogue.product(number).asin: price for number, price in enumerate(goals.prices.tolist())}
    assert prices == reference("product_prices_seed42")[f"{kind}_server"]


def test_splits_are_the_originals(data: Path) -> None:
    splits = rollenv.make("webshop", data=data).tasks.splits
    assert {name: len(ids) for name, ids in splits.items()} == {"test": 500, "eval": 1000, "train": 5410}
    assert (splits["test"][0], splits["eval"][0], splits["train"][0]) == (
        "synthetic-0",
        "synthetic-500",
        "synthetic-1500",
    )


def test_reward_sub_scores(catalogue: Catalogue, reference: Reference) -> None:
    recorded = reference("visible_reward_subscores")
    assert len(recorded) == 200
    for case in recorded:
        goal = load_goals(catalogue, case["goals"], 42)[case["goal_idx"]]
        parts = reward_parts(goal, catalogue.product(case["purchased_asin"]), case["options"], case["price"])
        given = ("goals", "goal_idx", "purchased_asin", "options", "price")
        wanted = {key: value for key, value in case.items() if key not in given}
        assert {key: parts[key] for key in wanted} == wanted, case


def test_colours(reference: Reference) -> None:
    recorded = reference("visible_normalize_color")
    assert {text: normalize_color(text) for text in recorded} == recorded


def test_buying_the_goal_product_has_its_type_with_the_noun_list(catalogue: Catalogue) -> None:
    nouns = catalogue.nouns("list")
    for goal in list(load_goals(catalogue, "synthetic", 42))[:2000]:
        parts = reward_parts(goal, catalogue.product(goal["asin"]), {}, 0.0, nouns)
        assert parts["r_type"] == 1.0, goal["name"]
