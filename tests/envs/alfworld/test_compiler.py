"""Game files are compiled when the native engine knows them, and refused with the reason otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollenv import RollenvError
from rollenv.envs.alfworld.compiler import Foreign, compile_game, read_game_file
from rollenv.envs.alfworld.game import Game, from_bytes, to_bytes
from rollenv.envs.alfworld.generated import generated_library
from rollenv.envs.alfworld.library import TASK_TYPES, task_type

LIBRARY = generated_library()
PLACE, LIGHT, CLEAN, HEAT, COOL, TWO = (
    next(task for task in LIBRARY.tasks.ids("train") if task_type(task) == kind) for kind in TASK_TYPES
)


def changed(task: str, key: str, old: str, new: str) -> bytes:
    """A generated game with a text in one of its parts replaced."""
    game = json.loads(LIBRARY.read(task))
    assert old in game[key]
    game[key] = game[key].replace(old, new)
    return json.dumps(game).encode()


def compiled(data: bytes) -> Game:
    return compile_game(read_game_file(data, "a game"))


@pytest.mark.parametrize("task", [PLACE, LIGHT, CLEAN, HEAT, COOL, TWO], ids=TASK_TYPES)
def test_every_kind_of_task_is_compiled_and_its_bytes_come_back(task: str) -> None:
    game = compiled(LIBRARY.read(task))
    data = to_bytes(game)
    assert from_bytes(data) == game
    assert to_bytes(compiled(LIBRARY.read(task))) == data
    assert len(data) < 10_000


def test_damaged_bytes_are_no_game() -> None:
    data = to_bytes(compiled(LIBRARY.read(PLACE)))
    for broken in (b"", data[:-1], data[:40], data.replace(b"rollenv", b"another"), data[:-1] + b"\x00"):
        assert from_bytes(broken) is None


@pytest.mark.parametrize(
    ("key", "old", "new", "reason"),
    [
        ("pddl_domain", "(not (holdsAny ?a))", "", "action '"),
        ("pddl_domain", "(:types agent", "(:types robot agent", "types"),
        ("pddl_domain", "(define", "define", "cannot be read"),
        ("pddl_domain", "(:action help", "(:action dance", "action 'dance'"),
        ("grammar", "You close the {r.name}.", "You close it.", "CloseObject"),
        ("grammar", '"task":', '"duty":', "no task"),
        ("pddl_problem", "(atLocation agent1 loc_bar_0)", "", "cannot be played|other things|agents"),
        (
            "pddl_problem",
            "(atLocation agent1 loc_bar_0)",
            "(atLocation agent1 loc_bar_0) (holds agent1 loc_bar_0)",
            "holds",
        ),
        ("pddl_problem", "(:init", "(:start", "cannot be read"),
        ("pddl_problem", "(exists (?r - receptacle", "(forall (?r - receptacle", "six kinds|condition|quantifiers"),
        ("pddl_problem", "(inReceptacle ?o ?r)", "(inReceptacle ?o ?r) (isSliced ?o)", "isslice|condition"),
    ],
)
def test_what_the_native_engine_does_not_know_is_foreign(key: str, old: str, new: str, reason: str) -> None:
    with pytest.raises(Foreign, match=reason):
        compiled(changed(PLACE, key, old, new))


def test_two_objects_must_be_told_apart() -> None:
    with pytest.raises(Foreign, match="apart"):
        compiled(changed(TWO, "pddl_problem", "(not (= ?o1 ?o2))", ""))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"pddl_domain": "x", "gramm', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "no text 'pddl_domain'"),
        (b'{"pddl_domain": "x", "grammar": 7}', "no text 'grammar'"),
        (b'{"pddl_domain": "", "grammar": "", "pddl_problem": "", "solvable": false}', "unsolvable"),
    ],
)
def test_torn_foreign_and_unsolvable_files_get_one_sentence_each(data: bytes, reason: str) -> None:
    with pytest.raises(RollenvError, match=reason) as error:
        read_game_file(data, "this/game.tw-pddl")
    assert "this/game.tw-pddl" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unsolvable_real_game_is_refused(real_games: dict[str, Path]) -> None:
    paths = sorted((real_games["fixtures"] / "v1").rglob("game.tw-pddl"))
    unsolvable = [path for path in paths if not json.loads(path.read_text())["solvable"]]
    assert unsolvable
    with pytest.raises(RollenvError, match="unsolvable"):
        read_game_file(unsolvable[0].read_bytes(), str(unsolvable[0]))


def test_a_real_game_is_compiled(real_game: Callable[[str], Path]) -> None:
    file = read_game_file(real_game("/v2/").read_bytes(), "real")
    game: Any = compile_game(file)
    assert len(game.objects) > 10
    assert len(game.contents) == len(game.receptacles) == len(game.place)
    assert game.task.startswith("Your task is to: ")
