"""Policies from nothing: what the tokenizer makes of numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rollenv.trainers.scratch import Numbers, train_tokenizer

TEXTS = [f"go to drawer {i}, take pen {i % 7} for ${i}.99 [{i}]" for i in range(1, 300)]


@pytest.mark.parametrize(
    ("numbers", "tokens"),
    [
        ("digits", ["Ġdrawer", "Ġ", "1", "2", "Ġpen", "Ġ", "3"]),
        ("whole", ["Ġdrawer", "Ġ12", "Ġpen", "Ġ3"]),
    ],
)
def test_numbers_are_digits_or_whole(numbers: Numbers, tokens: list[str]) -> None:
    tokenizer = train_tokenizer(TEXTS, 1024, numbers)
    assert tokenizer.tokenize(" drawer 12 pen 3") == tokens


@pytest.mark.parametrize("numbers", ["digits", "whole"])
def test_any_text_survives_a_round_trip(numbers: Numbers) -> None:
    tokenizer = train_tokenizer(TEXTS[:5], 300, numbers)
    for text in (*TEXTS, "12345 678", " 1234", "pen1 12pens", "１２ ½ [1234]", "\n 7\n\n 8"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
