"""Several environments in one run: shares, panels, seeds, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("colours")

import toys  # noqa: E402
from runs import assert_equal_runs, config, figures, interrupted, train  # noqa: E402

import rollenv  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.metrics import read_groups  # noqa: E402
from rollenv.trainers.world import Worlds  # noqa: E402

TERSE = {"name": "llm", "system": "", "list_actions": False}


def mixed(out: Path, **settings: Any) -> Any:
    rollenv.register("Shades-v0", toys.Colours, kwargs={"say": "say"}, max_turns=4)
    beside = {"env": "shades", "env_args": {"n_tasks": 8}, "agent": TERSE, "weight": 1.0}
    return config(out, mixture=[beside], weight=3.0, **settings)


def test_a_mixture_trains_in_its_shares(model: Path, tmp_path: Path) -> None:
    run = train(mixed(tmp_path, rollout={"filter": "keep"}), model)
    groups = read_groups(tmp_path)
    assert Counter(line["env"] for line in groups) == {"Colours-v0": 12, "Shades-v0": 4}
    assert {line["step"]: len(groups) for line in groups}.keys() == {1, 2, 3, 4}
    last = figures(tmp_path)[-1]
    assert {"eval_success", "eval_success/shades", "success/Colours-v0", "success/Shades-v0"} <= last.keys()
    assert last["eval_tasks_sha256"] != last["eval_tasks_sha256/shades"]
    assert {row["bin"] for row in run.controller.bias.rows() if row["by"] == "env"} == {"Colours-v0", "Shades-v0"}


def test_an_interrupted_mixture_equals_a_whole_one(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(mixed(tmp_path / "whole"), model)
    c = mixed(tmp_path / "broken")
    assert interrupted(c, model, monkeypatch, 100) is not None
    train(c, model, checkpoint.newest(tmp_path / "broken"))
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")


def test_a_program_is_nobody_to_train(tmp_path: Path) -> None:
    """Said before anything is played, and by name; `random` is in no need of a model."""
    beside = {"env": "shades", "agent": {"name": "random"}, "weight": 1.0}
    rollenv.register("Shades-v0", toys.Colours, kwargs={"say": "say"}, max_turns=4)
    with pytest.raises(RollenvError, match="agent 'random' is a program"):
        Worlds(config(tmp_path, mixture=[beside]))


def test_an_environment_may_be_there_once(tmp_path: Path) -> None:
    twice = config(tmp_path, mixture=[{"env": "colours"}])
    with pytest.raises(RollenvError, match=r"'Colours-v0' is there twice"):
        Worlds(twice)


def test_an_unknown_environment_of_a_mixture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match="colors"):
        Worlds(config(tmp_path, mixture=[{"env": "colors"}]))
