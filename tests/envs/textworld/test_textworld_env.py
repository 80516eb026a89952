"""TextWorld's own games behind the contract of an environment."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import pytest

import rollenv
from rollenv import RollenvError
from rollenv.envs.alfworld.generated import generated_library


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small game that TextWorld makes, with what it knows about it beside."""
    textworld = pytest.importorskip("textworld", reason="needs the extra [alfworld]")
    options = textworld.GameOptions()
    options.seeds = 3
    options.nb_rooms, options.nb_objects, options.quest_length = 2, 4, 2
    options.path = str(tmp_path_factory.mktemp("game") / "game.z8")
    made = textworld.generator.make_game(options)
    return Path(textworld.generator.compile_game(made, options))


@pytest.fixture(scope="module")
def walkthrough(game: Path) -> list[str]:
    import textworld

    return list(textworld.Game.load(str(game.with_suffix(".json"))).walkthrough)


def test_a_game_is_won_by_its_walkthrough(game: Path, walkthrough: list[str]) -> None:
    env = rollenv.make("textworld", game=game)
    _, info = env.reset(seed=0)
    total = 0.0
    for command in walkthrough:
        assert command in info["admissible_actions"]
        _, reward, terminated, _, info = env.step(command)
        assert info["valid_action"]
        total += reward
    assert (total, terminated, info["success"], info["won"]) == (1.0, True, True, True)
    with pytest.raises(RollenvError, match="reset"):
        env.step("look")
    env.close()


def test_a_torn_game_is_refused(game: Path, tmp_path: Path) -> None:
    data = game.read_bytes()
    for number, torn in enumerate((data[:-9000], data[:1000] + b"\x07" * 9 + data[1009:], data[:200])):
        path = tmp_path / f"torn{number}.z8"
        path.write_bytes(torn)
        with pytest.raises(RollenvError, match="torn"):
            rollenv.make("textworld", game=path)


def test_nonsense_is_not_valid(game: Path) -> None:
    env = rollenv.make("textworld", game=game)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("dance with the moon")
    assert (reward, terminated, info["valid_action"]) == (0.0, False, False)
    env.close()


def test_it_keeps_the_contract(game: Path) -> None:
    report = rollenv.check_env(functools.partial(rollenv.make, "textworld", game=game), episodes=2, steps=8)
    assert {"snapshots", "pickling", "admissible actions", "leaks"} <= set(report.passed)


def test_a_game_without_its_description_takes_any_command(game: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.z8"
    bare.write_bytes(game.read_bytes())
    env = rollenv.make("textworld", game=bare)
    observation, info = env.reset(seed=0)
    assert observation
    assert "admissible_actions" not in info
    assert env.step("look")[4]["valid_action"]
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step("inventory")[0] == env.step("inventory")[0]
    env.close()
    copy.close()


@pytest.mark.slow
def test_a_planning_game_is_played(tmp_path: Path) -> None:
    pytest.importorskip("fast_downward", reason="needs the extra [alfworld]")
    library = generated_library()
    path = tmp_path / "game.tw-pddl"
    path.write_bytes(library.read(library.tasks.ids("train")[1]))
    env = rollenv.make("textworld", game=path)
    observation, info = env.reset(seed=0)
    assert "Your task is to: " in observation
    assert env.step(info["admissible_actions"][0])[4]["valid_action"]
    assert not env.step("nonsense")[4]["valid_action"]
    env.close()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.z8", None, "cannot read"),
        ("notes.txt", b"x", "no form"),
        ("torn.z8", b"not a story", "torn or no .z8"),
        ("torn.ulx", b"Glul", "torn or no .ulx"),
        ("torn.tw-pddl", b'{"pddl', "cannot load"),
    ],
)
def test_what_is_no_game_is_refused(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    if reason == "cannot load":
        pytest.importorskip("fast_downward", reason="needs the extra [alfworld]")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RollenvError, match=reason):
        rollenv.make("textworld", game=tmp_path / name).reset(seed=0)
