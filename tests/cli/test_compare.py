"""`rollenv compare`, from evaluations to a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollenv.cli import main

IMPORT = ["--import", str(Path(__file__).parent / "colours_env.py")]


def evaluated(agent: str, out: Path, *words: str) -> str:
    assert main(["eval", *IMPORT, "--env", "colours", "--agent", agent, "--out", str(out), *words]) == 0
    return str(out)


def test_an_oracle_is_better_than_chance(
    tmp_path: Path, temp_registry: object, capsys: pytest.CaptureFixture[str]
) -> None:
    chance, oracle = evaluated("random", tmp_path / "chance"), evaluated("oracle", tmp_path / "oracle")
    capsys.readouterr()
    assert main(["compare", chance, oracle, "--json", str(tmp_path / "found.json")]) == 0
    said = capsys.readouterr().out
    assert "B is better by" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["success"]["b"] == 1.0
    assert found["verdict"] in said


def test_other_panels_are_refused(tmp_path: Path, temp_registry: object, capsys: pytest.CaptureFixture[str]) -> None:
    few, all_of_them = evaluated("random", tmp_path / "few", "-n", "5"), evaluated("random", tmp_path / "all")
    assert main(["compare", few, all_of_them]) != 0
    assert "are of different panels" in capsys.readouterr().err
