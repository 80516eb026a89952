"""RandomAgent: uniform, reproducible, and able to search."""

from __future__ import annotations

from collections import Counter

import pytest

import rollenv
from rollenv.agents.base import ScriptedAgent
from rollenv.agents.random import RandomAgent
from rollenv.errors import RollenvError


def test_it_is_a_scripted_agent() -> None:
    assert isinstance(RandomAgent(), ScriptedAgent)


def test_it_draws_uniformly_and_reproducibly() -> None:
    agent, info = RandomAgent(), {"admissible_actions": ["a", "b", "c"]}
    runs = []
    for _ in range(2):
        agent.reset(7)
        runs.append([agent.act("", info) for _ in range(3000)])
    assert runs[0] == runs[1]
    assert all(900 < count < 1100 for count in Counter(runs[0]).values())
    agent.reset(8)
    assert [agent.act("", info) for _ in range(3000)] != runs[0]


def test_it_searches_words_of_the_instruction() -> None:
    agent = RandomAgent()
    agent.reset(0)
    info = {"available_actions": {"has_search_bar": True, "clickables": ["search"]}, "admissible_actions": []}
    for _ in range(50):
        action = agent.act("WebShop [SEP] Instruction: [SEP] Find me Red socks [SEP] Search", info)
        words = action.removeprefix("search[").removesuffix("]").split()
        assert 1 <= len(words) <= 4
        assert set(words) <= {"find", "me", "red", "socks"}


@pytest.mark.parametrize("info", [{}, {"admissible_actions": []}])
def test_it_says_what_it_needs(info: dict[str, list[str]]) -> None:
    with pytest.raises(RollenvError, match="admissible_actions"):
        RandomAgent().act("", info)


def test_it_plays_webshop_without_invalid_actions() -> None:
    env, agent = rollenv.make("webshop"), RandomAgent()
    for seed, task in enumerate(env.tasks.ids("test")[:20]):
        agent.reset(seed)
        observation, info = env.reset(options={"task": task})
        for _ in range(30):
            observation, _, terminated, _, info = env.step(agent.act(observation, info))
            assert info["valid_action"]
            if terminated:
                break
    env.close()
