"""Tokens as texts: with the tokenizer of the run's model, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewer.folders import episode, evaluation, training

from rollenv.viewer.runs import find_runs
from rollenv.viewer.tokens import TokenTexts, tokenizer_file

tokenizers = pytest.importorskip("tokenizers", reason="pip install 'rollenv[train]'")
SEED = Path(__file__).resolve().parents[2] / "envs" / "webshop" / "seed_policy" / "tokenizer.json"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_the_pieces_are_the_text_one_for_each_token(text: str) -> None:
    known = tokenizers.Tokenizer.from_file(str(SEED))
    ids = known.encode(text, add_special_tokens=False).ids
    pieces = TokenTexts(SEED).pieces(ids)
    assert pieces is not None
    assert len(pieces) == len(ids)
    whole = known.decode(ids, skip_special_tokens=False)
    assert whole.startswith("".join(pieces))  # a character that was cut off at the end has no text
    assert whole.removeprefix("".join(pieces)).strip("\ufffd") == ""


def test_special_tokens_are_shown() -> None:
    texts = TokenTexts(SEED)
    end = tokenizers.Tokenizer.from_file(str(SEED)).token_to_id("<|end|>")
    assert texts.pieces([end]) == ["<|end|>"]


def test_the_tokenizer_is_that_of_the_newest_checkpoint_or_of_the_model(tmp_path: Path) -> None:
    (run,) = find_runs(training(tmp_path / "run", {}, {"step": 1}))
    assert tokenizer_file(run) is None
    assert tokenizer_file(run, lambda config: SEED.parent if config["env"] == "shop" else None) == SEED
    for step in (2, 10):
        file = tmp_path / "run" / "checkpoints" / f"step-{step:06d}" / "model" / "tokenizer.json"
        file.parent.mkdir(parents=True)
        file.touch()
    assert tokenizer_file(run, lambda config: SEED.parent) == file
    (evaluated,) = find_runs(evaluation(tmp_path / "eval", [episode(0)], model=str(SEED.parent)))
    assert tokenizer_file(evaluated) == SEED


def test_without_a_tokenizer_that_can_be_read_there_are_no_texts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    for texts in (TokenTexts(None), TokenTexts(tmp_path / "tokenizer.json")):
        assert texts.pieces([1, 2]) is None
