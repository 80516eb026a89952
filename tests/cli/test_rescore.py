"""`rollenv rescore`: stored actions in today's environment; `rollenv eval --panel`: tasks that stay the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import toys

import rollenv
from rollenv.cli import main
from rollenv.evaluation.rescore import stored_episodes

EVAL = ["eval", "--env", "colours", "--agent", "random", "-n", "12", "--samples", "2", "--seed", "3"]


class Kinder(toys.Colours):
    """Pays twice as much, and takes a neighbour for the colour itself."""

    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, 2 * reward, terminated, truncated, {**info, "success": reward > 0} if terminated else info


class Louder(toys.Colours):
    """Says everything in other words."""

    def _see(self) -> str:
        return super()._see().upper()


def as_now(kind: type[toys.Colours]) -> None:
    rollenv.registry.pop("Colours-v0")
    rollenv.register("Colours-v0", kind, max_turns=4)


@pytest.fixture
def stored(temp_registry: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """An evaluation of 24 episodes."""
    rollenv.register("Colours-v0", toys.Colours, max_turns=4)
    assert main([*EVAL, "--out", str(tmp_path / "then")]) == 0
    capsys.readouterr()
    return tmp_path / "then"


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]


def test_where_nothing_changed_nothing_changes(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = stored.with_name("now")
    assert main(["rescore", str(stored), "--out", str(now)]) == 0
    said = capsys.readouterr().out
    assert "24 episodes played again" in said
    assert "the reward of 0 episodes, the success of 0" in said
    assert "differs" not in said
    assert "panel" not in said
    assert without_seconds(now) == without_seconds(stored)
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (now, stored))
    assert ours.pop("rescored_from") == theirs["tasks_sha256"]
    assert ours == theirs


def test_other_rewards_are_those_that_the_same_actions_earn_now(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_now(Kinder)
    now = stored.with_name("now")
    assert main(["rescore", str(stored), "--out", str(now)]) == 0
    before, after = stored_episodes(stored), stored_episodes(now)
    assert [new.reward for new in after] == [2 * old.reward for old in before]
    assert [new.success for new in after] == [None if old.success is None else old.reward > 0 for old in before]
    assert [[turn.action for turn in new.turns] for new in after] == [[t.action for t in old.turns] for old in before]
    paid, better = sum(old.reward > 0 for old in before), sum(old.reward == 0.5 for old in before)
    assert paid > better > 0
    assert f"the reward of {paid} episodes, the success of {better}" in capsys.readouterr().out
    assert main(["compare", str(stored), str(now)]) == 0  # the panel is the same


def test_it_says_where_the_actions_may_not_mean_what_they_meant(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_now(Louder)
    assert main(["rescore", str(stored)]) == 0
    first = stored_episodes(stored)[0].task
    assert (
        f"something else in 24 episodes, where the actions may not mean what they meant; the first: task '{first}'"
        in (capsys.readouterr().out)
    )


def test_tasks_that_are_gone_and_files_that_are_torn_are_one_sentence(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rescore", str(stored), "n_tasks=4"]) == 2
    assert "colour-3" in capsys.readouterr().err
    assert main(["rescore", str(stored), "optim.lr=1"]) == 2
    assert "'optim.lr' means nothing" in capsys.readouterr().err
    assert main(["rescore", str(stored), "--out", str(stored)]) == 2
    assert "stays as it is" in capsys.readouterr().err
    with (stored / "trajectories.jsonl").open("a") as file:
        file.write('{"task": ')
    assert main(["rescore", str(stored)]) == 2
    assert "line 25" in capsys.readouterr().err


# -- panels ------------------------------------------------------------------------------------------------------


def test_a_panel_is_named_by_an_evaluation_and_holds_for_the_next(
    temp_registry: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.register()
    assert main(EVAL) == 0
    said = capsys.readouterr().out
    (panel,) = re.findall(r"^panel    (test:12@[0-9a-f]{12})$", said, re.MULTILINE)
    frozen = ["eval", "--env", "colours", "--agent", "random", "--samples", "2", "--seed", "3", "--panel", panel]
    assert main(frozen) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--panel", "test:12@0123456789ab"], "are not those any more, here their hash is"),
        (["--panel", "test"], "say SPLIT:N@SHA"),
        (["--panel", "test:12@0123456789ab", "-n", "3"], "leave out --split and --episodes"),
    ],
)
def test_other_tasks_are_refused(
    words: list[str], why: str, temp_registry: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.register()
    assert main(["eval", "--env", "colours", "--agent", "random", *words]) == 2
    assert why in capsys.readouterr().err
