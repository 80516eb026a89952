import pytest

from reflow import columns, dedent, fill, justify, shorten, wrap

TEXT = "the quick brown fox jumps over the lazy dog"


def test_lines_are_as_full_as_can_be():
    assert wrap(TEXT, 10) == ["the quick", "brown fox", "jumps over", "the lazy", "dog"]


@pytest.mark.parametrize("width", range(6, 50))
def test_no_line_is_too_wide_and_no_word_is_lost(width):
    lines = wrap(TEXT, width)
    assert all(len(line) <= width for line in lines)
    assert " ".join(lines) == TEXT


def test_prefixes():
    assert wrap("a bb ccc dddd", 7, first="* ", rest="  ") == ["* a bb", "  ccc", "  dddd"]


def test_long_words_are_cut():
    assert wrap("extraordinary", 6) == ["extra-", "ordin-", "ary"]
    assert wrap("an extraordinary", 6) == ["an", "extra-", "ordin-", "ary"]


def test_long_words_stay_whole_on_request():
    assert wrap("an extraordinary day", 6, hyphenate=False) == ["an", "extraordinary", "day"]


def test_nothing_is_no_line():
    assert wrap("   ") == []


def test_a_width_without_room_is_refused():
    with pytest.raises(ValueError, match="room"):
        wrap("a", 2, first="* ")
    with pytest.raises(ValueError, match="room"):
        wrap("a", 0)
    assert wrap("ab", 3, rest="  ") == ["ab"]


def test_paragraphs_are_kept():
    assert fill("a b\nc\n\n\n\nd e", 3) == "a b\nc\n\nd e"


def test_shortening():
    assert shorten(TEXT, 100) == TEXT
    assert shorten(TEXT, len(TEXT)) == TEXT
    assert shorten(TEXT, 15) == "the quick ..."
    assert shorten(TEXT, 13) == "the quick ..."
    assert shorten(TEXT, 12) == "the ..."
    assert shorten(TEXT, 3) == "..."
    assert shorten("a  b", 3) == "a b"


def test_shortening_to_less_than_the_mark():
    with pytest.raises(ValueError, match="mark"):
        shorten(TEXT, 2)


def test_justification():
    assert justify(["a", "b", "c"], 7) == "a  b  c"
    assert justify(["a", "b", "c"], 8) == "a   b  c"
    assert justify(["ab"], 5) == "ab   "
    assert justify([], 3) == "   "
    assert justify(["a", "b"], 3) == "a b"


def test_words_that_do_not_fit():
    with pytest.raises(ValueError, match="fit"):
        justify(["abc", "def"], 6)


def test_dedent():
    assert dedent("    a\n      b\n\n    c") == "a\n  b\n\nc"
    assert dedent("a\n  b") == "a\n  b"
    assert dedent("  \n   x") == "\nx"


def test_columns():
    rows = [["name", "size"], ["a", "10"], ["long name"]]
    assert columns(rows) == ["name       size", "a          10", "long name"]
    assert columns(rows, gap=1, right=[1]) == ["name      size", "a           10", "long name"]
    assert columns([]) == []
