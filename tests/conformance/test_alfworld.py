"""ALFWorld keeps the contract of an environment, on generated games and on real ones of both dialects."""

from __future__ import annotations

import functools
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollenv
from rollenv.agents.alfworld_oracle import ALFWorldOracle


class Expert:
    """Plays as the oracle does, so that episodes end; by accident now and then."""

    def __init__(self) -> None:
        self.agent = ALFWorldOracle()

    def __call__(self, observation: str, info: dict[str, Any], rng: random.Random) -> str:
        if "Your task is to" in observation:
            self.agent.reset(0)
        return self.agent.act(observation, info)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))


def test_generated_games_keep_the_contract() -> None:
    report = rollenv.check_env("alfworld")
    assert not {"snapshots", "pickling", "tasks", "admissible actions"} - set(report.passed)


def test_the_end_of_episodes_keeps_the_contract() -> None:
    report = rollenv.check_env("alfworld", policy=Expert(), steps=50, episodes=2)
    assert not report.skipped


@pytest.mark.parametrize("dialect", ["v1", "v2"])
def test_real_games_keep_the_contract(dialect: str, shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    with tarfile.open(shared_data("alfworld/fixtures_small.tar.xz")) as packed:
        packed.extractall(tmp_path / "games", filter="data")
    report = rollenv.check_env(functools.partial(rollenv.make, "alfworld", data=tmp_path / "games" / dialect), steps=15)
    assert "snapshots" in report.passed
