import pytest

from romans import LARGEST, RomanError, add, is_roman, parse, to_roman

KNOWN = {
    1: "I",
    4: "IV",
    9: "IX",
    14: "XIV",
    40: "XL",
    90: "XC",
    400: "CD",
    944: "CMXLIV",
    1999: "MCMXCIX",
    3999: "MMMCMXCIX",
}


@pytest.mark.parametrize("number", sorted(KNOWN))
def test_known_numbers_become_numerals(number):
    assert to_roman(number) == KNOWN[number]


@pytest.mark.parametrize("number", sorted(KNOWN))
def test_known_numerals_are_read(number):
    assert parse(KNOWN[number]) == number


def test_every_number_survives_the_round_trip():
    for number in range(1, LARGEST + 1):
        assert parse(to_roman(number)) == number


def test_small_letters_on_request():
    assert to_roman(14, lower=True) == "xiv"
    assert to_roman(14) == "XIV"


@pytest.mark.parametrize("number", [0, -1, 4000, 10000])
def test_numbers_out_of_range_are_refused(number):
    with pytest.raises(RomanError, match="out of range"):
        to_roman(number)


@pytest.mark.parametrize("number", [1.5, "3", None, True])
def test_what_is_no_whole_number_is_refused(number):
    with pytest.raises(RomanError, match="not a whole number"):
        to_roman(number)


def test_case_and_space_do_not_matter():
    assert parse("  mcmxc ") == 1990


@pytest.mark.parametrize("text", ["IIII", "VX", "IC", "MMMM", "IVI", "XXXX"])
def test_strict_reading_refuses_other_forms(text):
    with pytest.raises(RomanError, match="canonical"):
        parse(text)


def test_lenient_reading_takes_other_forms():
    assert parse("IIII", strict=False) == 4
    assert parse("IC", strict=False) == 99
    assert parse("MMMM", strict=False) == 4000


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_text_is_refused(text):
    with pytest.raises(RomanError, match="empty"):
        parse(text)


def test_unknown_symbols_are_named():
    with pytest.raises(RomanError, match="'Q'"):
        parse("XQ")


def test_is_roman():
    assert is_roman("XLII")
    assert not is_roman("IIX")
    assert not is_roman("hello")


def test_addition():
    assert add("XL", "II") == "XLII"
    assert add("I", "I", "I") == "III"


def test_addition_beyond_the_largest_is_refused():
    with pytest.raises(RomanError):
        add("MMM", "M")
