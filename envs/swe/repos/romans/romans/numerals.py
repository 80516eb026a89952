"""Numbers to Roman numerals and back."""

LARGEST = 3999

_SYMBOLS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]
_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


class RomanError(ValueError):
    """A number that has no numeral, or text that is none."""


def to_roman(number, lower=False):
    """The numeral of a number from 1 to LARGEST; in small letters if `lower`."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise RomanError(f"not a whole number: {number!r}")
    if number < 1 or number > LARGEST:
        raise RomanError(f"out of range: {number}")
    parts = []
    left = number
    for value, symbol in _SYMBOLS:
        while left >= value:
            parts.append(symbol)
            left -= value
    text = "".join(parts)
    return text.lower() if lower else text


def parse(text, strict=True):
    """The number that a numeral stands for.

    Strict: only the canonical form counts. Lenient: a symbol before a larger one is taken away, whatever they are.
    """
    letters = text.strip().upper()
    if not letters:
        raise RomanError("empty numeral")
    total = 0
    previous = 0
    for letter in reversed(letters):
        if letter not in _VALUES:
            raise RomanError(f"unknown symbol {letter!r} in {text!r}")
        value = _VALUES[letter]
        if value < previous:
            total -= value
        else:
            total += value
            previous = value
    if strict and (total < 1 or total > LARGEST or to_roman(total) != letters):
        raise RomanError(f"not a canonical numeral: {text!r}")
    return total


def is_roman(text):
    """Whether text is a canonical numeral."""
    try:
        parse(text)
    except RomanError:
        return False
    return True


def add(*numerals):
    """The sum of numerals, as a numeral."""
    total = 0
    for numeral in numerals:
        total += parse(numeral)
    return to_roman(total)
