"""Real games for tests, unpacked once, and the transcripts of the original engine."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def real_games(shared_data: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of real games: `fixtures` and `transcripts`, each with the dialects `v1` and `v2` in it."""
    folders = {}
    for name, archive in (("fixtures", "fixtures_small"), ("transcripts", "games_of_visible_transcripts")):
        folders[name] = tmp_path_factory.mktemp(name)
        with tarfile.open(shared_data(f"alfworld/{archive}.tar.xz")) as packed:
            packed.extractall(folders[name], filter="data")
    return folders


@pytest.fixture(scope="session")
def real_game(real_games: dict[str, Path]) -> Callable[[str], Path]:
    """Path of a real game file whose path contains a text."""

    def find(part: str) -> Path:
        found = [path for folder in real_games.values() for path in sorted(folder.rglob("game.tw-pddl"))]
        return next(path for path in found if part in path.as_posix())

    return find


@pytest.fixture(scope="session")
def transcripts(shared_data: Callable[[str], Path], real_games: dict[str, Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Game file and record of every episode that the original engine played."""
    dialects = {"2.1.1": "v1", "2.1.2": "v2"}
    records = []
    with gzip.open(shared_data("alfworld/visible_engine_transcripts.jsonl.gz"), "rt") as lines:
        for line in lines:
            record = json.loads(line)
            folder = real_games["transcripts"] / dialects[record["dialect"]] / "json_2.1.1"
            records.append((folder.joinpath(*Path(record["game"]).parts[-4:]), record))
    return records
