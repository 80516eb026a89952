import random

import pytest

from linediff import apply, diff, ratio, unified

OLD = list("abcdefghij")


def test_steps():
    assert diff(list("abc"), list("axc")) == [(" ", "a"), ("-", "b"), ("+", "x"), (" ", "c")]
    assert diff([], ["a"]) == [("+", "a")]
    assert diff(["a"], []) == [("-", "a")]
    assert diff([], []) == []


def test_as_few_steps_as_can_be():
    steps = diff(list("abcabba"), list("cbabac"))
    assert sum(mark != " " for mark, _ in steps) == 5


def test_steps_give_both_lists():
    rng = random.Random(3)
    for _ in range(50):
        old, new = (rng.choices("abc", k=rng.randrange(9)) for _ in range(2))
        steps = diff(old, new)
        assert [line for mark, line in steps if mark != "+"] == old
        assert [line for mark, line in steps if mark != "-"] == new


def test_ratio():
    assert ratio(list("abc"), list("abc")) == 1
    assert ratio(list("abc"), list("xyz")) == 0
    assert ratio(list("abcd"), list("ab")) == pytest.approx(2 / 3)
    assert ratio([], []) == 1


def test_a_hunk_with_context():
    new = ["X" if line == "e" else line for line in OLD]
    assert unified(OLD, new, context=2) == ["@@ -3,5 +3,5 @@", " c", " d", "-e", "+X", " f", " g"]


def test_context_ends_with_the_lines():
    assert unified(list("ab"), list("ac")) == ["@@ -1,2 +1,2 @@", " a", "-b", "+c"]


def test_changes_far_apart_are_hunks_of_their_own():
    new = ["X", *OLD[1:-1], "Y"]
    assert [line for line in unified(OLD, new, context=1) if line.startswith("@@")] == [
        "@@ -1,2 +1,2 @@",
        "@@ -9,2 +9,2 @@",
    ]


def test_changes_that_are_close_are_one_hunk():
    new = [line if line not in "cf" else line.upper() for line in OLD]
    assert len([line for line in unified(OLD, new, context=1) if line.startswith("@@")]) == 1
    new = [line if line not in "cg" else line.upper() for line in OLD]
    assert len([line for line in unified(OLD, new, context=1) if line.startswith("@@")]) == 2


def test_single_and_empty_ranges():
    assert unified(["a"], ["b"]) == ["@@ -1 +1 @@", "-a", "+b"]
    assert unified([], ["a", "b"]) == ["@@ -0,0 +1,2 @@", "+a", "+b"]
    assert unified(["a", "b"], ["a"], context=0) == ["@@ -2 +1,0 @@", "-b"]


def test_equal_lists_have_no_hunks():
    assert unified(OLD, list(OLD)) == []


@pytest.mark.parametrize("context", [0, 1, 3])
def test_what_differs_can_be_applied(context):
    rng = random.Random(5)
    for _ in range(40):
        old, new = (rng.choices("abcd", k=rng.randrange(12)) for _ in range(2))
        patch = unified(old, new, context)
        assert apply(old, patch) == new
        assert apply(new, patch, reverse=True) == old
