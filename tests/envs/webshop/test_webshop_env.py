from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

import rollenv
from rollenv.envs.webshop.env import WebShopEnv


@pytest.fixture
def env(shop: Path) -> WebShopEnv:
    made = rollenv.make("webshop", data=shop)
    assert isinstance(made, WebShopEnv)
    return made


def walk(env: Any, rng: np.random.Generator, steps: int) -> list[Any]:
    """What a random agent sees in so many steps; every listed action must be valid."""
    seen = []
    _, info = env.reset(seed=int(rng.integers(1 << 30)))
    for _ in range(steps):
        action = str(rng.choice(info["admissible_actions"]))
        observation, reward, terminated, _, info = env.step(action)
        assert info["valid_action"], action
        assert 0 <= reward <= 1
        seen.append((action, observation, reward, terminated, info["url"]))
        if terminated:
            _, info = env.reset()
    return seen


@pytest.mark.parametrize("mode", ["text", "text_rich", "html", "url"])
def test_every_listed_action_is_valid(mode: str) -> None:
    env = rollenv.make("webshop", observation_mode=mode)
    seen = walk(env, np.random.default_rng(0), 200)
    assert any(terminated for _, _, _, terminated, _ in seen)
    assert seen == walk(rollenv.make("webshop", observation_mode=mode), np.random.default_rng(0), 200)


def test_an_invalid_action_changes_nothing(env: WebShopEnv) -> None:
    before, info = env.reset(options={"task": "synthetic-0"})
    for action in ("click[search]", "click[buy now]", "click[nothing]", "buy", "", "search[]", "Search[hat]"):
        after, reward, terminated, truncated, later = env.step(action)
        assert (after, reward, terminated, truncated) == (before, 0.0, False, False)
        assert not later["valid_action"]
        assert later["available_actions"] == info["available_actions"]
    with pytest.raises(rollenv.InvalidAction, match="must be text"):
        env.step(7)  # type: ignore[arg-type]


def test_what_is_handed_out_is_the_callers(env: WebShopEnv) -> None:
    _, info = env.reset(options={"task": "synthetic-0"})
    info["admissible_actions"].clear()
    info["available_actions"]["clickables"].clear()
    _, again = env.reset(options={"task": "synthetic-0"})
    assert again["admissible_actions"]
    assert again["available_actions"]["clickables"] == ["search"]


def test_buying_ends_the_episode(env: WebShopEnv) -> None:
    _, info = env.reset(options={"task": "synthetic-0"})
    goal = env.tasks.get("synthetic-0").data
    env.step(f"search[{info['instruction']}]")
    env.step(f"click[{goal['asin']}]")
    for value in goal["goal_options"].values():
        env.step(f"click[{value}]")
    _, reward, terminated, _, info = env.step("click[Buy Now]")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert info["reward_parts"]["reward"] == 1.0
    with pytest.raises(gymnasium.error.ResetNeeded, match="after the episode ended"):
        env.step("search[hat]")
    env.reset()
    env.step("search[hat]")


def test_a_step_needs_a_reset(shop: Path) -> None:
    with pytest.raises(rollenv.RollenvError, match="before the first reset"):
        rollenv.make("webshop", data=shop).step("search[hat]")


def test_keywords_in_the_address_lead_astray_as_in_the_original(env: WebShopEnv) -> None:
    env.reset(options={"task": "synthetic-0"})
    env.step("search[hat search_results]")
    env.step("click[b000000001]")
    observation, _, _, _, info = env.step("click[< prev]")
    assert info["url"].endswith("/search_results/0/hat+search_results/0")
    assert "Page 0 (Total results: 3)" in observation


def test_pages_of_hits_have_no_end(env: WebShopEnv) -> None:
    env.reset(options={"task": "synthetic-0"})
    env.step("search[hat]")
    for _ in range(3):
        observation, *_, info = env.step("click[next >]")
    assert "Page 4 (Total results: 3)" in observation
    assert info["available_actions"]["clickables"] == ["back to search", "< prev", "next >"]


@pytest.mark.parametrize(
    ("query", "total"),
    [("<r>", 3), ("<c> fashion", 3), ("<q> scarves", 1), ("<a> soft", 1), ("<c>", 0), ("<a> none", 0), (" ", 0)],
)
def test_special_searches(env: WebShopEnv, query: str, total: int) -> None:
    env.reset(seed=0, options={"task": "synthetic-0"})
    observation, *_ = env.step(f"search[{query}]")
    assert f"(Total results: {total})" in observation


# -- snapshots, copies, seeds --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["text", "text_rich", "html"])
def test_snapshots_and_copies_have_the_same_future(mode: str) -> None:
    env: Any = rollenv.make("webshop", observation_mode=mode)
    rng = np.random.default_rng(3)
    observation, info = env.reset(seed=1)
    for turn in range(60):
        twin: Any = rollenv.make("webshop", observation_mode=mode)
        restored, restored_info = twin.restore(env.snapshot())
        copy = pickle.loads(pickle.dumps(env))
        assert restored == observation
        assert restored_info == {key: info[key] for key in restored_info}
        action = "search[<r>]" if turn % 10 == 0 else str(rng.choice(info["admissible_actions"]))
        result = env.step(action)
        assert twin.step(action) == result
        assert copy.step(action) == result
        observation, _, terminated, _, info = result
        if terminated:
            observation, info = env.reset()


def test_a_snapshot_of_something_else_is_refused(env: WebShopEnv, shop: Path) -> None:
    env.reset(options={"task": "synthetic-0"})
    snapshot = env.snapshot()
    for other in (rollenv.make("webshop"), rollenv.make("webshop", data=shop, price_seed=1)):
        with pytest.raises(rollenv.SnapshotError, match="another catalogue or other settings"):
            other.restore(snapshot)
    for broken in (b"", b"nonsense", snapshot[:-1], snapshot[:20] + b"x" + snapshot[21:]):
        with pytest.raises(rollenv.SnapshotError):
            env.restore(broken)
    assert env.snapshot() == snapshot


def test_a_seed_decides_the_task_and_random_hits() -> None:
    def play(seed: int) -> tuple[str, str]:
        env = rollenv.make("webshop")
        _, info = env.reset(seed=seed)
        return info["task"], env.step("search[<r>]")[0]

    assert play(5) == play(5) != play(6)


# -- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observation_mode": "txt"}, "did you mean 'text'"),
        ({"goals": "humans"}, "did you mean 'human'"),
        ({"nouns": "lists"}, "did you mean 'list'"),
        ({"data": "/nowhere"}, "is not a folder"),
        ({"price_seed": "x"}, "price_seed must be a whole number"),
        ({"num_products": -1}, "num_products must be a positive number"),
        ({"observation": "text"}, "did you mean 'observation_mode'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(rollenv.RollenvError, match=message):
        rollenv.make("webshop", **arguments)


@pytest.mark.parametrize("task", ["synthetic-3", "synthetic--1", "synthetic-01", "human-0", "", None, 3])
def test_unknown_tasks_are_refused(env: WebShopEnv, task: Any) -> None:
    if task is None:
        with pytest.raises(rollenv.RollenvError, match="did you mean 'task'"):
            env.reset(options={"tasks": "synthetic-0"})
        return
    with pytest.raises(rollenv.RollenvError, match="there is no task"):
        env.reset(options={"task": task})


def test_a_shop_without_goals_is_refused(make_shop: Callable[..., Path]) -> None:
    with pytest.raises(rollenv.RollenvError, match="has no human goals"):
        rollenv.make("webshop", data=make_shop(human=None), goals="human")


# -- tasks ---------------------------------------------------------------------------------------------------


def test_the_hash_of_tasks_knows_what_decides_them(shop: Path) -> None:
    def hash_of(**arguments: Any) -> str:
        return rollenv.make("webshop", data=shop, **arguments).tasks.panel("test").sha256

    hashes = [hash_of(), hash_of(price_seed=1), hash_of(goals="human"), hash_of(num_products=2)]
    assert len(set(hashes)) == len(hashes)
    assert hash_of() == hash_of(observation_mode="html") == hashes[0]
    facts = rollenv.make("webshop", data=shop, nouns="list").tasks.facts
    assert (facts["nouns"], facts["price_seed"]) == ("list", 42)


def test_the_generated_store_has_all_splits() -> None:
    splits = rollenv.make("webshop").tasks.splits
    assert [len(splits["test"]), len(splits["eval"])] == [500, 1000]
    assert len(splits["train"]) > 500


# -- gymnasium, and the cost of an import ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gymnasium_accepts_it() -> None:
    gymnasium_check(gymnasium.make("rollenv/WebShop-v1").unwrapped)


def test_it_renders_as_text(shop: Path) -> None:
    env = rollenv.make("webshop", data=shop, render_mode="ansi")
    env.reset(options={"task": "synthetic-0"})
    assert "[button] Search [button_]" in str(env.render())
    assert rollenv.make("webshop", data=shop).render() is None


def test_importing_the_package_is_light() -> None:
    script = (
        "import sys, rollenv.envs.webshop as w; w.register(); print({'rapidfuzz', 'rich.console'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
