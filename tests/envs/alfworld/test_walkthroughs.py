"""What solves a game in its file solves it on the native engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollenv.envs.alfworld.boards import board_of
from rollenv.envs.alfworld.library import Library, open_library


def wins(library: Library, task: str) -> bool:
    """Whether the walkthrough's commands are all admissible, and the last of them wins."""
    episode = board_of(library, task).episode()
    walkthrough = episode.board.game.walkthrough or ()
    for command in walkthrough:
        assert not episode.won, (task, command)
        assert command in episode.admissible(), (task, command)
        assert episode.command(command) is not None
        episode.update_won()
    return episode.won


def test_the_walkthroughs_of_some_real_games_win(real_games: dict[str, Path]) -> None:
    library = open_library(str(real_games["transcripts"] / "v2"))
    tasks = [task for split in library.tasks.splits.values() for task in split]
    assert len(tasks) > 20
    assert all(wins(library, task) for task in tasks)


@pytest.mark.slow
def test_the_walkthroughs_of_all_real_games_win(shared_data: Callable[[str], Path]) -> None:
    library = open_library(str(shared_data("alfworld/games_v2_train.tar.xz")))
    assert len(library.tasks.ids("train")) == 3553
    lost = [task for split in library.tasks.splits.values() for task in split if not wins(library, task)]
    assert lost == []
