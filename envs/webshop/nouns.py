"""Which words of a title are nouns: the one part of WebShop's reward that needs a language model, or a rule.

Invariant: a catalogue and the name of a choice decide the nouns of every title; the choice is part of a task
set's facts. `list` needs nothing installed: it is made of the catalogue itself, once.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterable
from typing import Literal, Protocol

from rollenv.errors import RollenvError, did_you_mean

Choice = Literal["auto", "spacy", "list"]
SPACY_MODEL = "en_core_web_sm"

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that join, count or point, never things. Titles of products have few others.
_FUNCTION_WORDS = _words(
    """a about above across after against all along also am among an and any anybody anyone are around as at be
    because been before behind below beneath beside besides between beyond both but by can cannot could did do does
    doing done down during each either else etc ever every everybody everyone few for from get gets give gives got
    had has have having he her here hers him his how however i if in inside instead into is it its itself just keep
    keeps less like made make makes many may me might mine more most much must my near neither never no nor not of
    off often on once one ones only onto or other our ours out outside over own per plus quite rather same shall she
    should since so some someone such than that the their theirs them then there these they this those though
    through throughout till to too toward towards under until unto up upon us very via was we were what when where
    whether which while who whole whom whose why will with within without would yet you your yours two three four
    five six seven eight nine ten eleven twelve first second third x w h l d s t oz lb lbs ct pcs pc cm mm ft"""
)
# Adjectives and verb forms that sellers use most and that no suffix gives away.
_DESCRIPTIONS = _words(
    """big small large medium little mini tiny huge long short tall wide narrow thick thin deep high low full empty
    new old fresh young soft hard firm light dark bright heavy strong loose tight slim flat round square oval fine
    pure raw real true fake free easy safe clean dry wet warm hot cold cool sweet sour spicy salty bitter plain rich
    fit best better good great nice cute sexy cozy comfy fancy funny happy pretty lovely perfect premium deluxe extra
    super ultra classic modern vintage retro casual formal elegant simple sturdy stylish smart unique original
    genuine natural organic vegan gluten double single dual triple multiple various assorted black white red blue
    green yellow orange purple pink brown gray grey beige navy teal ivory tan gold golden silver assorted wireless
    open closed front rear upper lower inner outer left right top bottom adult male female day daily ready
    compatible professional portable universal electric electronic digital automatic manual indoor outdoor
    fits hold holds use uses used using wear wears worn set sets love loves look looks"""
)
_DESCRIBING_ENDINGS = ("able", "ible", "ful", "less", "ous", "ish", "proof", "resistant", "ly", "est", "ized", "ated")


class Nouns(Protocol):
    """Finds the nouns of a title."""

    name: str

    def of(self, title: str) -> list[str]:
        """The nouns in `title`, lower-cased, in order, repeats included."""
        ...


class ListNouns:
    """Nouns by a frozen list of words."""

    name = "list"

    def __init__(self, words: Iterable[str]) -> None:
        self.words = frozenset(words)
        self._cached = functools.lru_cache(maxsize=4096)(self._find)

    def of(self, title: str) -> list[str]:
        """See `Nouns.of`."""
        return list(self._cached(title))

    def _find(self, title: str) -> tuple[str, ...]:
        return tuple(word for word in words_of(title) if word in self.words)


class SpacyNouns:
    """Nouns by spaCy's small English model, as in the original."""

    name = "spacy"

    def __init__(self) -> None:
        import spacy  # type: ignore[import-not-found, unused-ignore]

        self._model = spacy.load(SPACY_MODEL)
        self._cached = functools.lru_cache(maxsize=65536)(self._find)

    def of(self, title: str) -> list[str]:
        """See `Nouns.of`."""
        return list(self._cached(title))

    def _find(self, title: str) -> tuple[str, ...]:
        return tuple(t.text.lower() for t in self._model(title) if t.pos_ in ("NOUN", "PROPN"))


class NounCounter:
    """Makes the list of a catalogue from its products, one at a time.

    A word is a noun when it names a kind of thing (it occurs in a query or a category of the catalogue) or when it
    stands in a title and is neither a function word, nor a common description, nor of a describing form.
    """

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._titles: set[str] = set()

    def add(self, title: str, query: str, product_category: str) -> None:
        """Counts one product's words in."""
        self._kinds.update(words_of(query))
        self._kinds.update(words_of(product_category))
        self._titles.update(words_of(title))

    def words(self) -> list[str]:
        """The list, sorted."""
        kinds = {word for word in self._kinds if is_content(word) and word not in _DESCRIPTIONS}
        return sorted(kinds | {word for word in self._titles if looks_like_noun(word)})


def words_of(text: str) -> list[str]:
    """The words of a text without numbers and signs, lower-cased; a possessive ending is cut off."""
    found = (match.lower() for match in _WORD.findall(text))
    return [word[:-2] if word.endswith(("'s", "\u2019s")) else word for word in found]


def is_content(word: str) -> bool:
    """Whether a lower-case word means something by itself."""
    return len(word) > 1 and word not in _FUNCTION_WORDS


def looks_like_noun(word: str) -> bool:
    """Whether a lower-case word may be a noun, from its form alone."""
    return is_content(word) and word not in _DESCRIPTIONS and not word.endswith(_DESCRIBING_ENDINGS)


class FormNouns(ListNouns):
    """Nouns by form alone, for titles of no catalogue."""

    name = "form"

    def __init__(self) -> None:
        super().__init__(())

    def _find(self, title: str) -> tuple[str, ...]:
        return tuple(word for word in words_of(title) if looks_like_noun(word))


def spacy_installed() -> bool:
    """Whether spaCy and its small English model can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", SPACY_MODEL))


def resolve(choice: str) -> Literal["spacy", "list"]:
    """The component that `choice` stands for on this machine.

    Raises:
        RollenvError: no such choice, or spaCy's model is asked for and missing.
    """
    if choice == "auto":
        return "spacy" if spacy_installed() else "list"
    if choice == "list":
        return "list"
    if choice == "spacy":
        if not spacy_installed():
            raise RollenvError(
                "webshop: nouns='spacy' needs spaCy's model: pip install spacy && "
                f"python -m spacy download {SPACY_MODEL}"
            )
        return "spacy"
    options = ("auto", "spacy", "list")
    raise RollenvError(
        f"webshop: nouns must be one of {', '.join(options)}, not {choice!r}{did_you_mean(choice, options)}"
    )


@functools.cache
def spacy_nouns() -> SpacyNouns:
    """The process-wide spaCy component (its model takes seconds to load)."""
    return SpacyNouns()
