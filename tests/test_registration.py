"""The registry: ids, short names, versions, what is refused, and the mirror in gymnasium."""

from __future__ import annotations

import importlib.metadata
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from conformance.toy import Corridor

import rollenv
from rollenv import EnvSpec, RollenvError, registration

TOY = "conformance.toy:Corridor"


class Sized(Corridor):
    """A corridor that takes arguments."""

    def __init__(self, size: int = 4, *, colour: str = "grey") -> None:
        super().__init__()
        self.size, self.colour = size, colour


@pytest.fixture(autouse=True)
def registry(temp_registry: dict[str, EnvSpec]) -> dict[str, EnvSpec]:
    rollenv.register("Corridor-v0", TOY, description="a corridor")
    rollenv.register("Short-v0", TOY, max_turns=3)
    rollenv.register("Corridor-v2", TOY)
    rollenv.register("Corridor-v10", Sized, kwargs={"size": 10})
    return temp_registry


# -- ids ---------------------------------------------------------------------------------------------------


def test_an_id_or_a_short_name_finds_the_spec() -> None:
    assert rollenv.spec("Corridor-v0").description == "a corridor"
    assert (rollenv.spec("Corridor-v2").name, rollenv.spec("Corridor-v2").version) == ("corridor", 2)
    assert rollenv.spec("corridor").id == rollenv.spec("Corridor").id == "Corridor-v10"


@pytest.mark.parametrize(
    "wrong", ["", "Corridor", "Corridor-0", "Corridor-v", "corridor v1", "rollenv/Corridor-v1", "-v1"]
)
def test_a_malformed_id_is_refused_and_nothing_registered(wrong: str, registry: dict[str, EnvSpec]) -> None:
    before = dict(registry), set(gymnasium.registry)
    with pytest.raises(RollenvError, match="must look like 'Name-v0'"):
        rollenv.register(wrong, TOY)
    assert (dict(registry), set(gymnasium.registry)) == before


@pytest.mark.parametrize(
    ("wrong", "meant"), [("corrido", "corridor"), ("Coridor-v0", "Corridor-v0"), ("Corridor-v3", "Corridor-v")]
)
def test_an_unknown_id_is_refused_with_the_closest_one(wrong: str, meant: str) -> None:
    with pytest.raises(RollenvError, match=f"no environment '{wrong}'; did you mean '{meant}"):
        rollenv.make(wrong)


def test_what_is_known_is_listed() -> None:
    with pytest.raises(RollenvError, match=r"known: .*corridor.*'rollenv envs' lists them"):
        rollenv.spec("nothing like it")


def test_registering_again_replaces() -> None:
    rollenv.register("Short-v0", TOY, description="another")
    assert rollenv.spec("Short-v0").description == "another"
    assert gymnasium.spec("rollenv/Short-v0").max_episode_steps is None


def test_a_spec_is_not_changed_by_what_it_was_made_of() -> None:
    kwargs = {"size": 5}
    spec = rollenv.register("Sized-v0", Sized, kwargs=kwargs)
    kwargs["size"] = 6
    assert spec.kwargs == {"size": 5}


# -- make --------------------------------------------------------------------------------------------------


def test_make_passes_arguments_over_the_specs_own() -> None:
    env = rollenv.make("corridor", colour="red")
    assert isinstance(env, Sized)
    assert (env.size, env.colour) == (10, "red")
    assert rollenv.make("corridor", size=3).size == 3  # type: ignore[attr-defined]
    assert isinstance(rollenv.make(EnvSpec("Unregistered-v0", TOY)), Corridor)


def test_an_unknown_argument_is_refused_with_the_closest_one() -> None:
    with pytest.raises(
        RollenvError, match=r"'corridor' takes no argument 'color'; did you mean 'colour'\? \(it takes: size, colour\)"
    ):
        rollenv.make("corridor", color="red")
    with pytest.raises(RollenvError, match=r"takes no argument 'size' \(it takes: none\)"):
        rollenv.make("Corridor-v0", size=3)


def test_an_entry_point_with_open_keywords_takes_any() -> None:
    rollenv.register("Open-v0", lambda **kwargs: Sized(**kwargs))
    assert rollenv.make("open", size=9).size == 9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entry_point", "said"),
    [
        ("no_such_module_anywhere:Env", "cannot import 'no_such_module_anywhere:Env'"),
        ("conformance.toy:Corridr", "module 'conformance.toy' has no 'Corridr'"),
        (lambda: 7, "its entry point returned int, not a rollenv.TextEnv"),
    ],
)
def test_an_entry_point_that_does_not_give_an_environment_is_named(entry_point: Any, said: str) -> None:
    rollenv.register("Wrong-v0", entry_point)
    with pytest.raises(RollenvError, match=said) as caught:
        rollenv.make("wrong")
    assert "'Wrong-v0'" in str(caught.value)


# -- plugins -----------------------------------------------------------------------------------------------


class Entry:
    """An entry point of an installed package."""

    name, value = "theirs", "theirs:register"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def load(self) -> Any:
        if self.error:
            raise self.error
        return lambda: rollenv.register("Theirs-v0", TOY)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_plugins_loaded", False)
    monkeypatch.setattr(registration, "_loaded", set())


@pytest.mark.usefixtures("nothing_loaded")
def test_plugins_are_loaded_when_an_environment_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: asked.append(group) or [Entry()])
    assert rollenv.make("theirs").tasks.name == "corridor"
    rollenv.spec("theirs")
    assert asked == ["rollenv.envs"]


@pytest.mark.usefixtures("nothing_loaded")
def test_what_was_registered_by_hand_is_not_registered_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Entry()])
    registration.load_plugins()
    rollenv.register("Theirs-v0", Sized, kwargs={"size": 77})
    registration._plugins_loaded = False
    assert rollenv.make("theirs").size == 77  # type: ignore[attr-defined]


@pytest.mark.usefixtures("nothing_loaded")
def test_a_broken_plugin_is_named_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [Entry(ImportError("no module 'x'"))]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: broken)
    for _ in range(2):
        with pytest.raises(RollenvError, match=r"'theirs' of group 'rollenv.envs' .* does not load: no module 'x'"):
            rollenv.make("theirs")
    broken[:] = [Entry()]
    assert rollenv.make("theirs").tasks.name == "corridor"


# -- gymnasium ---------------------------------------------------------------------------------------------


def test_every_spec_is_mirrored_in_gymnasium() -> None:
    env = gymnasium.make("rollenv/Corridor-v10", size=7)
    assert isinstance(env.unwrapped, Sized)
    assert env.unwrapped.size == 7
    observation, info = env.reset(seed=3, options={"task": "chest-2"})
    assert (observation, info) == Corridor().reset(seed=3, options={"task": "chest-2"})
    env.close()


def test_max_turns_is_gymnasiums_time_limit() -> None:
    env = gymnasium.make("rollenv/Short-v0")
    env.reset(seed=0)
    assert [env.step("listen")[3] for _ in range(3)] == [False, False, True]
    env.close()


def test_the_mirror_can_be_pickled() -> None:
    entry = gymnasium.spec("rollenv/Corridor-v10").entry_point
    assert pickle.loads(pickle.dumps(entry))(size=2).size == 2


# -- many at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_vector_of_environments_plays_as_each_alone(vectorization: Any) -> None:
    vector = rollenv.make_vec("Corridor-v0", 3, vectorization)
    single = [Corridor() for _ in range(3)]
    try:
        observations, infos = vector.reset(seed=[5, 6, 7])
        alone = [env.reset(seed=seed) for env, seed in zip(single, (5, 6, 7), strict=True)]
        assert observations == tuple(observation for observation, _ in alone)
        assert list(infos["task"]) == [info["task"] for _, info in alone]
        assert observations in vector.observation_space

        actions = ["listen", "no such action", "open chest"]
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        steps = [env.step(action) for env, action in zip(single, actions, strict=True)]
        assert observations == tuple(step[0] for step in steps)
        assert rewards.tolist() == [step[1] for step in steps]
        assert terminated.tolist() == [False, False, True]
        assert not np.any(truncated)
        assert list(infos["valid_action"]) == [True, False, True]
        assert list(infos["admissible_actions"]) == [step[4]["admissible_actions"] for step in steps]
    finally:
        vector.close()


def test_a_vector_takes_the_arguments_of_the_environment() -> None:
    vector = rollenv.make_vec("corridor", 2, colour="red")
    assert [env.colour for env in vector.envs] == ["red", "red"]  # type: ignore[attr-defined]
    vector.close()


def test_an_impossible_vector_is_refused() -> None:
    with pytest.raises(RollenvError, match="'sync' or 'async', not 'both'"):
        rollenv.make_vec("corridor", 2, "both")  # type: ignore[arg-type]
    with pytest.raises(RollenvError, match="num_envs must be at least 1, not 0"):
        rollenv.make_vec("corridor", 0)
    with pytest.raises(RollenvError, match="no environment 'corridr'"):
        rollenv.make_vec("corridr", 2)
