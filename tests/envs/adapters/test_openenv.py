"""OpenEnv, by the real package: its servers are played here, and its client plays on ours."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toys
from server.serving import running, served

import rollenv
from rollenv import RollenvError
from rollenv.envs.adapters.openenv import OpenEnvEnv
from rollenv.server import wire

core: Any = pytest.importorskip("openenv.core", reason="needs the package openenv, in an environment of its own")

from openenv.core.env_server.http_server import create_fastapi_app  # noqa: E402
from openenv.core.env_server.interfaces import Environment  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402

pytestmark = pytest.mark.foreign


class Letters(Action):
    letters: str


class Turn(Action):
    steps: int
    loud: bool = False


class Move(Action):
    x: int
    y: int


class Told(Observation):
    text: str
    turns: int = 0


class Spelling(Environment):
    """Spell the word of the seed, letter by letter."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Told:
        self.word, self.turns = ("owl", "cat", "hen")[(seed or 0) % 3], 0
        return Told(text=f"spell {self.word}")

    def step(self, action: Letters, timeout_s: float | None = None, **kwargs: Any) -> Told:
        right = action.letters == self.word[self.turns]
        self.turns += 1
        over = not right or self.turns == len(self.word)
        return Told(text="go on" if right else "no", turns=self.turns, done=over, reward=float(right and over))

    @property
    def state(self) -> State:
        return State(step_count=self.turns)


class Walk(Spelling):
    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Told:
        said = action.model_dump(exclude={"metadata"})
        return Told(text=f"{said}", done=True, reward=1.0)


@contextlib.contextmanager
def serving(environment: Any, action: Any) -> Iterator[str]:
    """A server of the real package."""
    import uvicorn

    app = create_fastapi_app(environment, action, Told, max_concurrent_envs=16)
    with running(uvicorn.Server(uvicorn.Config(app, log_level="warning"))) as address:
        yield address


@pytest.fixture(scope="module")
def spelling() -> Iterator[str]:
    with serving(Spelling, Letters) as url:
        yield url


def test_an_episode_on_a_foreign_server(spelling: str) -> None:
    env = rollenv.make("openenv", url=spelling)
    observation, _ = env.reset(options={"task": "seed-4"})
    assert observation == "spell cat"
    assert env.step("c")[:4] == ("go on", 0.0, False, False)
    env.step("a")
    observation, reward, terminated, truncated, info = env.step("t")
    assert (reward, terminated, truncated, info["success"], info["inner"]["turns"]) == (1.0, True, False, True, 3)
    assert env.reset(options={"task": "seed-5"})[0] == "spell hen"
    assert env.step("x")[2:4] == (True, False)
    env.close()


def test_it_keeps_the_contract(spelling: str) -> None:
    spell = iter("catowlhen" * 1000)
    make = functools.partial(OpenEnvEnv, spelling)
    report = rollenv.check_env(make, episodes=2, steps=4, policy=lambda observation, info, rng: next(spell))
    assert {"seeds", "snapshots", "pickling", "leaks"} <= set(report.passed)


@pytest.mark.parametrize(
    ("action", "settings", "words", "nonsense", "seen"),
    [
        (Turn, {}, "3", "three", "{'steps': 3, 'loud': False}"),
        (Move, {}, '{"x": 1, "y": 2}', '{"x": 1}', "{'x': 1, 'y': 2}"),
        (Turn, {"action_field": "loud"}, "yes", "no", None),
    ],
)
def test_actions_have_the_fields_that_the_server_names(
    action: Any, settings: Any, words: str, nonsense: str, seen: str | None
) -> None:
    with serving(Walk, action) as url:
        env = OpenEnvEnv(url, **settings)
        env.reset()
        assert env.step(nonsense)[4]["valid_action"] is False
        answer = env.step(words)
        assert answer[4]["valid_action"] is (seen is not None)
        assert seen is None or answer[0] == seen
        env.close()


def test_a_server_that_is_gone_is_an_error_and_no_reward() -> None:
    with serving(Spelling, Letters) as url:
        env = OpenEnvEnv(url)
        env.reset()
    with pytest.raises(RollenvError, match="did not answer a step"):
        env.step("o")
    with pytest.raises(RollenvError, match="did not answer a reset"):
        env.reset()
    env.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "not the address"),
        ({"url": "ftp://x"}, "not the address"),
        ({"url": "http://127.0.0.1:9"}, "no OpenEnv server answers"),
    ],
)
def test_what_is_no_server_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(RollenvError, match=reason):
        rollenv.make("openenv", **settings)


def test_fields_that_there_are_not_are_refused(spelling: str) -> None:
    with pytest.raises(RollenvError, match="did you mean 'letters'"):
        OpenEnvEnv(spelling, action_field="letter")
    with pytest.raises(RollenvError, match="no 'txt'; did you mean 'text'"):
        OpenEnvEnv(spelling, text_field="txt").reset()


@pytest.mark.parametrize("name", ["webshop", "alfworld"])
def test_a_hundred_episodes_of_the_real_client_on_a_server_of_ours_are_the_local_ones(name: str) -> None:
    local, draw = rollenv.make(name), random.Random(name)
    tasks = local.tasks.ids(rollenv.spec(name).eval_split)[:100]
    steps = 0
    with served(name) as (address, _), core.GenericEnvClient(base_url=f"{address}/{name}").sync() as client:
        for task in tasks:
            seen, here = client.reset(task=task, seed=3), local.reset(seed=3, options={"task": task})
            assert (seen.observation["text"], seen.observation["info"]) == as_sent(here)
            for _ in range(15):
                actions = here[-1].get("admissible_actions") or ["search[red shoes]"]
                action = draw.choice([*actions, "nonsense"])
                seen, here = client.step({"action": action}), local.step(action)
                text, reward, terminated, truncated, info = here
                assert (seen.observation["text"], seen.observation["info"]) == as_sent((text, info))
                assert (seen.reward, seen.done) == (reward, terminated or truncated)
                assert (seen.observation["terminated"], seen.observation["truncated"]) == (terminated, truncated)
                steps += 1
                if seen.done:
                    break
    assert len(tasks) == 100
    assert steps > 500


@pytest.mark.parametrize("path", ["", "/colours"])
def test_its_own_validation_passes(path: str, temp_registry: Any) -> None:
    toys.register()
    with served("colours") as (address, _):
        command = [str(Path(sys.executable).with_name("openenv")), "validate", "--url", f"{address}{path}", "--json"]
        said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout)
    assert said["summary"]["failed_criteria"] == []
    assert said["passed"]


def as_sent(said: Any) -> tuple[str, Any]:
    """An observation and its info as JSON has them."""
    text, info = said
    return text, json.loads(wire.dump(info))


def test_our_server_is_played_as_a_foreign_one(temp_registry: Any) -> None:
    toys.register()
    with served("colours") as (address, _):
        env = OpenEnvEnv(f"{address}/colours")
        observation, _ = env.reset(seed=0)
        colour = observation.split()[-1]
        env.step(colour)
        assert env.step(colour)[1:3] == (1.0, True)
        env.close()
