"""The scripted expert: what it reads, that it is fair, and how well it shops."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rollenv
from rollenv.agents.base import ScriptedAgent
from rollenv.agents.webshop_oracle import WebShopOracle, read_page, read_request, wanted_options, words_of
from rollenv.errors import RollenvError

LIMIT = 15


@dataclass
class Result:
    """One episode: rewards, actions and what the agent saw before each of them."""

    reward: float
    actions: list[str]
    seen: list[tuple[str, dict[str, Any]]]
    finished: bool
    invalid: int


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    env = rollenv.make("webshop")
    yield env
    env.close()


def play(env: Any, task: str, agent: WebShopOracle, seed: int = 0) -> Result:
    agent.reset(seed)
    observation, info = env.reset(options={"task": task})
    result = Result(0.0, [], [], False, 0)
    for _ in range(LIMIT):
        result.seen.append((observation, info))
        action = agent.act(observation, info)
        result.actions.append(action)
        observation, result.reward, result.finished, _, info = env.step(action)
        result.invalid += not info["valid_action"]
        if result.finished:
            break
    return result


def report(name: str, results: list[Result]) -> float:
    """Prints the figures of a run; returns the success rate."""
    success = statistics.mean(r.finished and r.reward == 1.0 for r in results)
    print(
        f"\n{name}: {success:.2%} of {len(results)} solved,"
        f" mean reward {statistics.mean(r.reward for r in results):.4f},"
        f" {statistics.mean(len(r.actions) for r in results):.2f} actions,"
        f" {statistics.mean(sum(len(o.split()) for o, _ in r.seen) for r in results):.0f} words read"
    )
    return success


# -- reading ----------------------------------------------------------------------------------------------------


def test_it_is_a_scripted_agent() -> None:
    assert isinstance(WebShopOracle(), ScriptedAgent)


def test_it_reads_the_synthetic_form() -> None:
    request = read_request(
        "Find me wireless, slim headphones with deep bass for travel with color: navy blue, and fit type: "
        "in-ear, and price lower than 40.00 dollars"
    )
    assert request.core == "wireless, slim headphones with deep bass for travel"
    assert request.query == f"{request.core} with color: navy blue, and fit type: in-ear"
    assert request.options == (("color", "navy blue"), ("fit type", "in-ear"))
    assert request.bound == 40.0
    assert request.words == words_of("wireless slim headphones deep bass travel")


def test_it_reads_an_instruction_without_options_or_price() -> None:
    request = read_request("Find me slim socks")
    assert (request.core, request.options, request.bound) == ("slim socks", (), float("inf"))


def test_it_reads_a_free_instruction_by_its_words() -> None:
    request = read_request("i am looking for slim socks, in red, size xl, and price lower than 20.00 dollars")
    assert not request.formal
    assert request.bound == 20.0
    assert request.words == words_of("slim socks red size xl")


def test_it_reads_pages() -> None:
    head = "Instruction: [SEP] Find me socks [SEP] Back to Search [SEP] "
    hits = "Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > [SEP] B01 [SEP] Red socks [SEP] $9.99 to $12.5"
    info = {"available_actions": {"has_search_bar": False, "clickables": ["back to search", "< prev", "b01"]}}
    page = read_page(head + hits, info)
    assert (page.kind, page.number) == ("results", 2)
    assert [(h.asin, h.title, h.low, h.price) for h in page.hits] == [("b01", "red socks", 9.99, 12.5)]

    item = "< Prev [SEP] color [SEP] red [SEP] blue [SEP] size [SEP] m [SEP] Red socks [SEP] Price: $9.99 [SEP] Buy Now"
    info = {"available_actions": {"has_search_bar": False, "clickables": ["< prev", "red", "blue", "m", "buy now"]}}
    page = read_page(head + item, info)
    assert page.options == {"color": ("red", "blue"), "size": ("m",)}
    assert (page.kind, page.hits[0].title, page.hits[0].price) == ("item", "red socks", 9.99)
    request = read_request("Find me socks with color: blue, and size: xl")
    assert wanted_options(page, request) == ({"color": "blue"}, 1)


def test_noise_is_a_probability() -> None:
    with pytest.raises(RollenvError, match="probability"):
        WebShopOracle(noise=1.5)


# -- fairness and determinism -----------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_its_actions_follow_from_what_it_saw(env: Any, noise: float) -> None:
    """Replayed on the recorded text and clickables alone, without the shop, it acts the same."""
    for seed, task in enumerate(env.tasks.ids("test")[:40]):
        played = play(env, task, WebShopOracle(noise=noise), seed)
        alone = WebShopOracle(noise=noise)
        alone.reset(seed)
        bare = [(text, {"available_actions": info["available_actions"]}) for text, info in played.seen]
        assert [alone.act(text, info) for text, info in bare] == played.actions


def test_an_instance_forgets_the_last_episode(env: Any) -> None:
    agent = WebShopOracle(noise=0.3)
    first = play(env, env.tasks.ids("test")[0], agent, 5).actions
    play(env, env.tasks.ids("test")[1], agent, 6)
    assert play(env, env.tasks.ids("test")[0], agent, 5).actions == first


# -- shopping ---------------------------------------------------------------------------------------------------


def test_it_solves_a_sample_of_the_test_goals(env: Any) -> None:
    results = [play(env, task, WebShopOracle()) for task in env.tasks.ids("test")[:200]]
    assert report("oracle, 200 test goals", results) >= 0.99
    assert not sum(r.invalid for r in results)
    assert all(r.finished for r in results)
    assert 4.5 <= statistics.mean(len(r.actions) for r in results) <= 6.5


def test_it_solves_all_test_goals(env: Any) -> None:
    results = [play(env, task, WebShopOracle()) for task in env.tasks.ids("test")]
    assert report("oracle, all test goals", results) >= 0.99


def test_some_goals_need_a_second_product(env: Any) -> None:
    """For a good part of the goals the first candidate does not offer the options: one has to go back."""
    results = [play(env, task, WebShopOracle()) for task in env.tasks.ids("test")[:300]]
    back = statistics.mean("click[< prev]" in r.actions for r in results)
    print(f"\nwent back at least once: {back:.1%}")
    assert 0.2 <= back <= 0.4


def test_it_understands_free_instructions() -> None:
    env = rollenv.make("webshop", goals="human")
    results = [play(env, task, WebShopOracle()) for task in env.tasks.ids("test")]
    assert report("oracle, human-style goals", results) >= 0.95
    env.close()


def test_noisy_demonstrations_recover(env: Any) -> None:
    results = [play(env, task, WebShopOracle(noise=0.15), i) for i, task in enumerate(env.tasks.ids("eval")[:300])]
    assert report("oracle with 15% mistakes", results) >= 0.75
    refused = sum(r.invalid for r in results)  # it asks for options that are not offered, and learns from a refusal
    assert 10 < refused < 60
    clean = [play(env, task, WebShopOracle()).actions for task in env.tasks.ids("eval")[:300]]
    assert sum(r.actions != other for r, other in zip(results, clean, strict=True)) > 100


def test_it_is_reasonable_on_the_real_catalogue(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("webshop/items_shuffle_1000.json.gz").parent
    env = rollenv.make("webshop", data=str(folder))
    results = [play(env, task, WebShopOracle()) for task in env.tasks.ids("test")[:200]]
    assert report("oracle, real catalogue", results) >= 0.75
    assert not sum(r.invalid for r in results)
    env.close()
