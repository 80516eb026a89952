"""From text to search terms, as Lucene 9.5's English analyzer makes them.

Invariant: `analyze` gives the terms that Anserini 0.22 puts into its index: words by the Unicode word-break
rules (UAX #29), possessives cut, lower case, stop words dropped, Porter stems.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable

MAX_TOKEN_LENGTH = 255
"""Longer runs of letters are cut into pieces of this many characters."""

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they"
    " this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())

# -- words -------------------------------------------------------------------------------------------------

_MID_LETTER = [0x3A, 0xB7, 0x387, 0x5F4, 0x2027, 0xFE13, 0xFE55, 0xFF1A]
_MID_NUM_LET = [0x2E, 0x2018, 0x2019, 0x2024, 0xFE52, 0xFF07, 0xFF0E]
_MID_NUM = [
    *(0x2C, 0x3B, 0x37E, 0x589, 0x60C, 0x60D, 0x66C, 0x7F8, 0x2044),
    *(0xFE10, 0xFE14, 0xFE50, 0xFE54, 0xFF0C, 0xFF1B),
]
_EXTEND_NUM_LET = [0x5F, 0x202F, 0x203F, 0x2040, 0x2054, 0xFE33, 0xFE34, 0xFE4D, 0xFE4E, 0xFE4F, 0xFF3F]
_HAN = [
    *((0x2E80, 0x2E99), (0x2E9B, 0x2EF3), (0x2F00, 0x2FD5), (0x3005, 0x3005), (0x3007, 0x3007), (0x3021, 0x3029)),
    *((0x3038, 0x303B), (0x3400, 0x4DB5), (0x4E00, 0x9FD5), (0xF900, 0xFA6D), (0xFA70, 0xFAD9)),
    *((0x20000, 0x2A6D6), (0x2A700, 0x2CEA1), (0x2F800, 0x2FA1D)),
]
_HIRAGANA = [(0x3041, 0x3096), (0x309D, 0x309F), (0x1B001, 0x1B001), (0x1F200, 0x1F200)]
_KATAKANA = [
    *((0x3031, 0x3035), (0x309B, 0x309C), (0x30A0, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF)),
    *((0x32D0, 0x32FE), (0x3300, 0x3357), (0xFF66, 0xFF9D), (0x1B000, 0x1B000)),
]
_HEBREW = [(0x5D0, 0x5EA), (0x5F0, 0x5F2), (0xFB1D, 0xFB1D), (0xFB1F, 0xFB28), (0xFB2A, 0xFB4F)]
# Scripts whose words only a dictionary can find; a run of them stays one token.
_SOUTH_EAST_ASIAN = [
    *((0xE01, 0xE3A), (0xE40, 0xE4E), (0xE81, 0xEDF), (0x1000, 0x103F), (0x1050, 0x108F), (0x109A, 0x109F)),
    *((0x1780, 0x17D3), (0x17D7, 0x17D7), (0x17DC, 0x17DD), (0x1950, 0x1974), (0x1980, 0x19C9), (0x19DE, 0x19DF)),
    *((0x1A20, 0x1A5E), (0x1A60, 0x1A7C), (0x1AA0, 0x1AAD), (0xA9E0, 0xA9EF), (0xA9FA, 0xA9FE), (0xAA60, 0xAADF)),
]
# Extended_Pictographic together with Emoji; digits, '#', '*' and regional indicators are not single emoji.
_PICTOGRAPHS = (
    "A9 AE 203C 2049 2122 2139 2194-2199 21A9-21AA 231A-231B 2328 2388 23CF 23E9-23F3 23F8-23FA 24C2 25AA-25AB 25B6"
    " 25C0 25FB-25FE 2600-2605 2607-2612 2614-2685 2690-2705 2708-2712 2714 2716 271D 2721 2728 2733-2734 2744 2747"
    " 274C 274E 2753-2755 2757 2763-2767 2795-2797 27A1 27B0 27BF 2934-2935 2B05-2B07 2B1B-2B1C 2B50 2B55 3030 303D"
    " 3297 3299 1F000-1F0FF 1F10D-1F10F 1F12F 1F16C-1F171 1F17E-1F17F 1F18E 1F191-1F19A 1F1AD-1F1E5 1F201-1F20F 1F21A"
    " 1F22F 1F232-1F23A 1F23C-1F23F 1F249-1F3FA 1F400-1F53D 1F546-1F64F 1F680-1F6FF 1F774-1F77F 1F7D5-1F7FF"
    " 1F80C-1F80F 1F848-1F84F 1F85A-1F85F 1F888-1F88F 1F8AE-1F8FF 1F90C-1F93A 1F93C-1F945 1F947-1FAFF 1FC00-1FFFD"
)

Ranges = Iterable[tuple[int, int]]


def _parse_ranges(text: str) -> list[tuple[int, int]]:
    pairs = [part.partition("-") for part in text.split()]
    return [(int(low, 16), int(high or low, 16)) for low, _, high in pairs]


def _character_class(ranges: Ranges) -> str:
    return "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)


def _merge(points: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted code points as ranges."""
    ranges: list[tuple[int, int]] = []
    for point in points:
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return ranges


def _word_pattern() -> re.Pattern[str]:
    """One token of any kind; built from the Unicode database when the first non-ASCII text comes along."""
    apart = {p for low, high in (*_HAN, *_HIRAGANA, *_KATAKANA, *_SOUTH_EAST_ASIAN) for p in range(low, high + 1)}
    letters: list[int] = []
    digits: list[int] = []
    extenders: list[int] = []
    for point in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(point))
        # U+FF9E and U+FF9F extend a kana; a zero-width space is of category Cf but does not extend.
        if (category in ("Mn", "Mc", "Me", "Cf") and point != 0x200B) or point in (0xFF9E, 0xFF9F):
            extenders.append(point)
        elif category == "Nd":
            digits.append(point)
        elif point not in apart and (category[0] == "L" or category == "Nl" or 0x24B6 <= point <= 0x24E9):
            letters.append(point)
    return re.compile(_grammar(_merge(letters), _merge(digits), _merge(extenders)))


def _grammar(letters: Ranges, digits: Ranges, extenders: Ranges) -> str:
    ext = f"[{_character_class(extenders)}]*"

    def one(characters: str) -> str:
        return f"[{characters}]{ext}"

    def points(numbers: Iterable[int]) -> str:
        return "".join(f"\\U{number:08x}" for number in numbers)

    letter, digit = one(_character_class(letters)), one(_character_class(digits))
    hebrew, katakana = one(_character_class(_HEBREW)), one(_character_class(_KATAKANA))
    join = one(points(_EXTEND_NUM_LET))
    in_word, in_number = one(points(_MID_LETTER + _MID_NUM_LET) + "'"), one(points(_MID_NUM + _MID_NUM_LET) + "'")
    run = (
        f"(?:{hebrew}(?:\"{ext}{hebrew}|'{ext})"
        f"|{digit}(?:(?:(?:{join})*|{in_number}){digit})*"
        f"|{letter}(?:(?:(?:{join})*|{in_word}){letter})*)+"
    )
    part = f"(?:{katakana}(?:(?:{join})*{katakana})*|{run})"
    word = f"(?:{join})*{part}(?:(?:{join})+{part})*(?:{join})*"
    south_east_asian = f"(?:{one(_character_class(_SOUTH_EAST_ASIAN))})+"
    single = one(_character_class([*_HAN, *_HIRAGANA]))
    return f"{word}|{_emoji_grammar(extenders)}|{south_east_asian}|{single}"


def _emoji_grammar(extenders: Ranges) -> str:
    # The presentation selectors U+FE0E and U+FE0F are extenders of words but say something of their own here.
    ext = f"(?:(?![\ufe0e\ufe0f])[{_character_class(extenders)}])*"
    pictograph = f"(?![\U0001f3fb-\U0001f3ff\u3030\u303d])[{_character_class(_parse_ranges(_PICTOGRAPHS))}]"
    pictograph = f"(?:{pictograph}|[\u3030\u303d])"
    modifier = f"[\U0001f3fb-\U0001f3ff]{ext}"
    unit = f"(?:\u200d*{pictograph}{ext}(?:{modifier})?\ufe0f?|{modifier})"
    flag = f"(?:[\U0001f1e6-\U0001f1ff][{_character_class(extenders)}]*){{2}}"
    tag = "[\U000e0020-\U000e007e]+\U000e007f"
    # The joiner between two emoji may already have been read as an extender of the first.
    return f"{unit}(?:{tag}|(?:(?:\u200d|(?<=\u200d)){unit})*)|[0-9#*]{ext}\ufe0f?\u20e3{ext}|{flag}"


# The same grammar where every character is ASCII: letters join over ' . :, digits over ' . , ; and anything over _.
_ASCII_RUN = r"(?:[0-9](?:(?:_*|[.,;'])[0-9])*|[A-Za-z](?:(?:_*|[:.'])[A-Za-z])*)+"
_ASCII_WORD = re.compile(rf"_*{_ASCII_RUN}(?:_+{_ASCII_RUN})*_*")
_unicode_word: re.Pattern[str] | None = None


def tokenize(text: str) -> list[str]:
    """The words of `text` as they stand, by the word-break rules."""
    global _unicode_word
    if text.isascii():
        words = _ASCII_WORD.findall(text)
    else:
        if _unicode_word is None:
            _unicode_word = _word_pattern()
        words = _unicode_word.findall(text)
    if any(len(word) > MAX_TOKEN_LENGTH for word in words):
        return [word[i : i + MAX_TOKEN_LENGTH] for word in words for i in range(0, len(word), MAX_TOKEN_LENGTH)]
    return words


# -- terms -------------------------------------------------------------------------------------------------

_terms: dict[str, str] = {}
_TERMS_KEPT = 500_000


def analyze(text: str) -> list[str]:
    """The search terms of `text`, in order, repeats included.

    >>> analyze("The men's running shoes, size 10.5")
    ['men', 'run', 'shoe', 'size', '10.5']
    """
    found = []
    for word in tokenize(text):
        term = _terms.get(word)
        if term is None:
            term = _term(word)
            if len(_terms) >= _TERMS_KEPT:
                _terms.clear()
            _terms[word] = term
        if term:
            found.append(term)
    return found


def _term(word: str) -> str:
    """The term of one word; empty for a stop word."""
    if len(word) >= 2 and word[-2] in "'\u2019\uff07" and word[-1] in "sS":
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else stem(word)


# -- Porter's stemmer, with the three departures of its author's later versions that Lucene has ------------

_STEP_3 = [  # first match wins; replaced when the rest has a measure above 0
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble")),
    *(("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate")),
    *(("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    *(("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"), ("logi", "log")),
]
_STEP_4 = [("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")]
_STEP_5 = [
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou"),
    *("ism", "ate", "iti", "ous", "ive", "ize"),
]


def _shape(word: str) -> str:
    """One letter a character: 'v' for a vowel (also a 'y' after a consonant), 'c' for everything else."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How many times a vowel is followed by a consonant."""
    return _shape(word).count("vc")


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _short_end(word: str) -> bool:
    """Whether it ends consonant, vowel, consonant other than w, x, y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def stem(word: str) -> str:
    """Porter's stem of a lower-case word.

    >>> [stem(word) for word in ("ponies", "hopping", "relational", "sky")]
    ['poni', 'hop', 'relat', 'sky']
    """
    if len(word) < 3:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and "v" in _shape(word)[:-1]:
        word = word[:-1] + "i"
    if len(word) > 1:
        word = _replace(word, _STEP_3)
    word = _replace(word, _STEP_4)
    if len(word) > 1:
        word = _drop_suffix(word)
    return _final_letters(word)


def _plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith("ies"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    base = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
    if "v" not in _shape(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _doubled(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _short_end(base) else base


def _replace(word: str, rules: list[tuple[str, str]]) -> str:
    for suffix, replacement in rules:
        if word.endswith(suffix):
            base = word[: -len(suffix)]
            return base + replacement if _measure(base) > 0 else word
    return word


def _drop_suffix(word: str) -> str:
    for suffix in _STEP_5:
        if word.endswith(suffix):
            base = word[: -len(suffix)] + (suffix[0] if suffix in ("sion", "tion") else "")
            return base if _measure(base) > 1 else word
    return word


def _final_letters(word: str) -> str:
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _short_end(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("l") and _doubled(word) and measure > 1 else word
