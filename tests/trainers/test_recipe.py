"""The recipe of a seed policy: from an environment's own settings to a folder that plays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rollenv.agents import make_agent
from rollenv.agents.alfworld import ALFWorldAgent
from rollenv.config import ImitateConfig, load_config
from rollenv.registration import spec
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest
from rollenv.rollout.play import DemonstrationPlay
from rollenv.trainers.policy import load_model
from rollenv.trainers.recipe import ImitationRun

TINY = [
    *("shape.hidden=16", "shape.layers=1", "shape.heads=2", "shape.kv_heads=1", "shape.mlp=32", "shape.vocabulary=400"),
    *("episodes=24", "tokenizer_episodes=8", "eval.episodes=3", "max_turns=12", "threads=1"),
]


@pytest.mark.parametrize("action_format", ["text", "numbered", "react"])
def test_alfworlds_recipe_makes_a_policy_that_plays(action_format: str, tmp_path: Path) -> None:
    words = [*TINY, f"agent.action_format={action_format}", f"out={tmp_path}"]
    figures = ImitationRun(load_config(ImitateConfig, "alfworld", None, words)).run()
    assert figures["episodes"] == 24
    assert 0 <= figures["eval_success"] <= 1
    assert figures["eval_tasks_sha256"]
    model, tokenizer = load_model(tmp_path / "model")
    assert len(tokenizer) <= 400
    assert model.config.hidden_size == 16


def test_the_experts_thoughts_are_written_where_the_agent_writes_thoughts() -> None:
    said: list[str] = []
    world = spec("alfworld")
    play = DemonstrationPlay(
        EnvPool(world.load()),
        world.id,
        lambda: make_agent(world, "oracle"),
        ALFWorldAgent("react", brief=True),
        None,
        EpisodeLimits(50),
        said.append,
    )
    task = world.load()().tasks.ids("train")[0]
    trajectory = asyncio.run(play(EpisodeRequest(task, 1)))
    assert trajectory.success
    assert all(turn.completion.startswith("Thought: I ") for turn in trajectory.turns[:2])
    assert [text for text in said if text.startswith("Thought: ")] == [turn.completion for turn in trajectory.turns]
