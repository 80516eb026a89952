"""The native engine against TextWorld itself. `ROLLENV_DIFFERENTIAL=300` (or `all`) plays so many of the real games."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rollenv.envs.alfworld.boards import board_of
from rollenv.envs.alfworld.generated import generated_library
from rollenv.envs.alfworld.library import FileLibrary, open_library

pytest.importorskip("textworld.envs.pddl.pddl", reason="needs the extra [alfworld]")
pytest.importorskip("fast_downward", reason="needs the extra [alfworld]")

from alfworld_differential import difference, replay

GAMES = os.environ.get("ROLLENV_DIFFERENTIAL", "")
STEPS = 40


def _sample(library: FileLibrary, usual: int) -> list[str]:
    """`usual` games spread over the kinds of tasks, or as many as were asked for."""
    ids = [task for split in library.tasks.splits.values() for task in split]
    random.Random(0).shuffle(ids)
    return ids if GAMES == "all" else ids[: int(GAMES or usual)]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_real_games_are_played_alike(shared_data: Callable[[str], Path]) -> None:
    library = open_library(str(shared_data("alfworld/games_v2_train.tar.xz")))
    for task in _sample(library, 3):
        assert difference(library, task, STEPS, seed=0) is None


@pytest.mark.slow
def test_games_of_the_old_dialect_are_played_alike(real_games: dict[str, Path]) -> None:
    library = open_library(str(real_games["fixtures"] / "v1"))
    for task in _sample(library, 2)[: 2 if not GAMES else None]:
        assert difference(library, task, STEPS, seed=1) is None


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_generated_games_are_played_alike_and_their_walkthroughs_win_on_both_engines() -> None:
    library = generated_library()
    share = 500 if GAMES == "all" else int(GAMES or 6)
    for split, ids in library.tasks.splits.items():
        for task in ids[: -(-share // len(library.tasks.splits))]:
            views = replay(library, task, list(board_of(library, task).game.walkthrough or ()))
            assert all(native == reference for native, reference in views), (split, task)
            assert [native.won for native, _ in views] == [False] * (len(views) - 1) + [True]


@pytest.mark.slow
def test_generated_games_are_played_alike_by_anyone() -> None:
    library = generated_library()
    for task in library.tasks.ids("valid_unseen")[:2]:
        assert difference(library, task, STEPS, seed=2) is None
