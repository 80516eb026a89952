from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.webshop import analyzer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a1-red 10.5 3,000 o'neil's", ["a1", "red", "10.5", "3,000", "o'neil's"]),
        ("one_two _x_ __ a:b 1:2 a.b a.1", ["one_two", "_x_", "a:b", "1", "2", "a.b", "a", "1"]),
        ("décor’s ℃ ½ cm²", ["décor’s", "cm"]),
        ("口味 ひら カタカナ 일품", ["口", "味", "ひ", "ら", "カタカナ", "일품"]),
        ("❤️hot ★ ® 👨\u200d💼 🇩🇪 #️⃣", ["❤️", "hot", "★", "®", "👨\u200d💼", "🇩🇪", "#️⃣"]),
        ("ไทย", ["ไทย"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert analyzer.tokenize(text) == words


@given(st.text(st.characters(codec="ascii")))
def test_the_ascii_grammar_is_the_unicode_grammar(text: str) -> None:
    wide = [word for word in analyzer.tokenize(text + " é") if word != "é"]
    assert analyzer.tokenize(text) == wide


@given(st.text())
def test_words_are_cut_from_the_text_in_order(text: str) -> None:
    at = 0
    for word in analyzer.tokenize(text):
        at = text.index(word, at) + len(word)


def test_long_words_are_cut() -> None:
    assert [len(word) for word in analyzer.tokenize("x" * 600)] == [255, 255, 90]


STEMS = """
    caresses:caress ponies:poni cats:cat feed:feed agreed:agre plastered:plaster bled:bled
    motoring:motor sing:sing conflated:conflat troubled:troubl sized:size falling:fall hissing:hiss
    filing:file happy:happi relational:relat conditional:condit digitizer:digit vietnamization:vietnam
    hopefulness:hope sensibiliti:sensibl triplicate:triplic formalize:formal electrical:electr
    goodness:good allowance:allow adjustable:adjust replacement:replac adoption:adopt effective:effect
    probate:probat rate:rate cease:ceas controll:control roll:roll is:is skies:ski yes:ye
    possibly:possibl archaeology:archaeolog
"""


@pytest.mark.parametrize("pair", STEMS.split())
def test_stems(pair: str) -> None:
    word, stem = pair.split(":")
    assert analyzer.stem(word) == stem


def test_terms_lose_possessives_case_and_stop_words() -> None:
    assert analyzer.analyze("The MEN’S hats and women's IT") == ["men", "hat", "women"]
