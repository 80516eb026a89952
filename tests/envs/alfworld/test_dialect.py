"""Grammars of the known structure become dialects, in whatever words; all others are refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rollenv.envs.alfworld.dialect import UnknownDialect, own_grammar, read_dialect


def test_the_own_grammar_is_a_dialect() -> None:
    dialect = read_dialect(own_grammar())
    assert dialect.commands["putobject"] == ("move ", " to ")
    assert dialect.feedback["gotolocation"] == "You arrive at {r}. {view}"
    assert dialect.join([]) == "nothing"
    assert dialect.join(["a"]) == "a"
    assert dialect.join(["a", "b", "c"]) == "a, b, and c"


def test_both_published_grammars_are_dialects(real_game: Callable[[str], Path]) -> None:
    old, new = (read_dialect(json.loads(real_game(part).read_text())["grammar"]) for part in ("/v1/", "/v2/"))
    assert old.commands["putobject"] == ("put ", " in/on ")
    assert new.commands["putobject"] == ("move ", " to ")
    assert old.arrival_names_place
    assert not new.arrival_names_place
    assert "help" not in old.commands
    assert "help" in new.commands


def test_words_may_differ() -> None:
    grammar = (
        own_grammar().replace("You open the {r.name}.", "The {r.name} opens.").replace('"open {r}"', '"unlock {r}"')
    )
    dialect = read_dialect(grammar)
    assert dialect.feedback["openobject"] == "The {r} opens. {view}"
    assert dialect.commands["openobject"] == ("unlock ", "")


def test_white_space_before_a_text_is_skipped_as_textworld_does() -> None:
    assert read_dialect(own_grammar()).feedback["help"].startswith("What you can say:\n")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("You close the {r.name}.", "You close the {o.name}.", "CloseObject.feedback"),
        ("openable(r:receptacle) & opened(r:receptacle)", "opened(r:receptacle)", "examineReceptacle.feedback"),
        ('"take {o} from {r}"', '"take {r}"', "pickupobject"),
        ("action look {", "action peek {", "look"),
        ('"rhs": "nothing"', '"rhs": "no|thing"', "mean something"),
        ('"rhs": ", and "', '"rhs": ', "not JSON"),
        ("grammar ::", "grammer ::", "no grammar"),
        ('"{o.indefinite} {o.name}"', '"{o.indefinite} nice {o.name}"', "overview"),
        ('"[{#overview(r)# |', '"the [{#overview(r)# |', "list_appliances"),
        ('"open {r}"', '"open {r} please"', "in turn"),
        ('"use {o}"', '"use-{o}"', "in turn"),
    ],
)
def test_another_structure_is_refused(old: str, new: str, reason: str) -> None:
    assert old in own_grammar()
    with pytest.raises(UnknownDialect, match=reason):
        read_dialect(own_grammar().replace(old, new))
