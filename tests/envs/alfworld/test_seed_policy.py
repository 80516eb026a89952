"""The policy that ships, and the settings it was made with and is trained with."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollenv
from rollenv.config import ImitateConfig, TrainConfig, load_config

FOLDER = Path(rollenv.__file__).parents[1] / "envs" / "alfworld" / "seed_policy"


def test_it_is_trained_as_it_was_taught() -> None:
    taught, trained = (load_config(config, "alfworld") for config in (ImitateConfig, TrainConfig))
    assert taught.agent == trained.agent
    assert (taught.eval.split, taught.eval.temperature) == (trained.eval.split, trained.eval.temperature)
    assert taught.eval.split == "valid_unseen"


def test_it_is_small_and_has_the_shape_of_its_recipe() -> None:
    pytest.importorskip("transformers")
    from rollenv.trainers.policy import load_model

    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8e6
    shape = load_config(ImitateConfig, "alfworld").shape
    model, tokenizer = load_model(FOLDER)
    found = model.config
    assert (found.hidden_size, found.num_hidden_layers, found.max_position_embeddings) == (
        shape.hidden,
        shape.layers,
        shape.context,
    )
    assert len(tokenizer) == found.vocab_size <= shape.vocabulary
    assert tokenizer.tokenize(" drawer 12") == ["Ġdrawer", "Ġ12"]


@pytest.mark.slow
def test_it_solves_some_games_and_leaves_some_to_learn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    import json

    from rollenv.cli import main

    monkeypatch.chdir(tmp_path)
    command = ["eval", "--env", "alfworld", "--model", "seed", "-n", "60", "--by", "type", "--out", "out", "threads=1"]
    assert main(command) == 0
    assert 0.25 < json.loads((tmp_path / "out" / "summary.json").read_text())["success_rate"] < 0.75
