"""docs/algorithms.md tells the truth: every function, test, setting and preset in it is there, and none is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from rollenv.config.algo import Advantage, AlgoConfig, Loss
from rollenv.config.load import known_keys
from rollenv.config.presets import PRESETS, find_preset
from rollenv.config.train import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", rows("Paper, file, test"), ids=lambda row: row[0])
def test_each_row_leads_to_a_setting_a_function_and_a_test(row: list[str]) -> None:
    setting, function, test = (names(row[i]) for i in (1, 3, 4))
    key, _, value = setting[0].partition("=")
    assert any(full == key or full.rpartition(".")[2] == key for full in known_keys(TrainConfig))
    if value:
        assert getattr(AlgoConfig.model_validate({key: value}), key) == value
    assert function[1] in functions(ROOT / "trainers" / "algorithms" / function[0])
    assert test[1] in functions(ROOT / "tests" / "trainers" / test[0])


def test_every_advantage_and_loss_has_a_row() -> None:
    settings = {name for row in rows("Paper, file, test") for name in names(row[1])}
    missing = {f"advantage={name}" for name in get_args(Advantage)} | {f"loss={name}" for name in get_args(Loss)}
    assert missing - settings == {"advantage=return"}  # the return itself, less a number


def test_every_preset_has_a_row_with_its_paper() -> None:
    listed = {name: row[1] for row in rows("Presets") for name in names(row[0])}
    assert listed == {name: preset.paper for name, preset in PRESETS.items()}
    assert all(find_preset(name) for name in listed)
