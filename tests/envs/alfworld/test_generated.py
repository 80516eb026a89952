"""Generated games: solvable, not solved at the start, and split by layout."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest

from rollenv.envs.alfworld.boards import board_of
from rollenv.envs.alfworld.generated import SIZES, game_file, generated_library
from rollenv.envs.alfworld.houses import ROOMS, furnish, household, kind_of, layout
from rollenv.envs.alfworld.library import TASK_TYPES

LIBRARY = generated_library()
EVERY_SPLIT = [task for ids in LIBRARY.tasks.splits.values() for task in ids[:180]]


def test_the_splits_have_their_sizes_and_every_kind_of_task_as_often() -> None:
    assert {split: len(ids) for split, ids in LIBRARY.tasks.splits.items()} == SIZES
    for split, ids in LIBRARY.tasks.splits.items():
        kinds = Counter(LIBRARY.recipe(task).kind for task in ids)
        assert kinds == dict.fromkeys(TASK_TYPES, SIZES[split] // 6)


def furniture(split: str) -> set[tuple[str, tuple[str, ...]]]:
    """What the layouts of a split have in them."""
    layouts = (layout(LIBRARY.recipe(task).layout) for task in LIBRARY.tasks.ids(split))
    return {(where.room, where.kinds) for where in layouts}


def test_layouts_of_the_unseen_split_are_never_seen() -> None:
    assert not furniture("valid_unseen") & (furniture("train") | furniture("valid_seen"))
    assert furniture("valid_seen") <= furniture("train")
    for split in SIZES:
        assert {room for room, _ in furniture(split)} == set(ROOMS)


def test_the_games_are_the_same_on_every_machine() -> None:
    # Changes only together with generated.VERSION.
    digest = hashlib.sha256()
    for split in LIBRARY.tasks.splits:
        for task in LIBRARY.tasks.ids(split)[:12]:
            house = furnish(LIBRARY.recipe(task))
            digest.update(repr((task, sorted(house.objects.items()), sorted(house.opened), house.walkthrough)).encode())
    assert digest.hexdigest()[:16] == "abb4b6483e082560"


def test_walkthroughs_win_with_their_last_command_and_not_before() -> None:
    assert len(EVERY_SPLIT) >= 500
    for task in EVERY_SPLIT:
        episode = board_of(LIBRARY, task).episode()
        walkthrough = furnish(LIBRARY.recipe(task)).walkthrough
        won = [episode.won]
        for command in walkthrough:
            assert command in episode.admissible(), (task, command)
            episode.command(command)
            won.append(episode.update_won())
        assert won == [False] * len(walkthrough) + [True], task


def test_objects_lie_where_such_objects_may_be_put_back() -> None:
    home = household()
    for task in EVERY_SPLIT[::10]:
        house = furnish(LIBRARY.recipe(task))
        for name, receptacle in house.objects.items():
            assert kind_of(receptacle) in home.things[kind_of(name)].places
            assert receptacle in house.layout.receptacles


def test_files_have_the_parts_of_alfworlds_own() -> None:
    game = json.loads(game_file(furnish(LIBRARY.recipe(EVERY_SPLIT[0]))))
    assert set(game) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
    assert "@TASK@" not in game["grammar"]
    assert game["solvable"] is True


@pytest.mark.parametrize("split", SIZES)
def test_a_tasks_content_says_what_it_is_about(split: str) -> None:
    task = LIBRARY.tasks.ids(split)[0]
    content = LIBRARY.tasks.get(task).data
    assert content["type"] in task
    assert f"-{content['object']}-None-{content['place']}-{content['layout']}/" in task
