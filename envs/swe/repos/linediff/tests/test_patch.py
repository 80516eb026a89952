import pytest

from linediff import Conflict, PatchError, apply, merge

BASE = ["one", "two", "three", "four"]


def test_a_patch_that_does_not_fit():
    with pytest.raises(PatchError, match="line 1 is not 'zwei'"):
        apply(BASE, ["@@ -1,1 +1,1 @@", "-zwei", "+deux"])
    with pytest.raises(PatchError, match="line 5"):
        apply(BASE, ["@@ -5 +5 @@", " five"])


def test_text_that_is_no_patch():
    with pytest.raises(PatchError, match="no hunk"):
        apply(BASE, ["+one"])
    with pytest.raises(PatchError, match="unknown mark"):
        apply(BASE, ["@@ -1 +1 @@", "?one"])


def test_hunks_in_the_wrong_order():
    with pytest.raises(PatchError, match="order"):
        apply(BASE, ["@@ -3 +3 @@", " three", "@@ -1 +1 @@", " one"])


def test_no_patch_changes_nothing():
    assert apply(BASE, []) == BASE


def test_changes_of_both_sides_are_merged():
    assert merge(BASE, ["1", *BASE[1:]], [*BASE[:3], "4"]) == ["1", "two", "three", "4"]


def test_a_change_of_one_side_is_taken():
    changed = ["one", "two and a half", "three", "four", "five"]
    assert merge(BASE, changed, BASE) == changed
    assert merge(BASE, BASE, changed) == changed


def test_the_same_change_of_both_is_taken_once():
    changed = ["one", "2", "three", "four"]
    assert merge(BASE, changed, changed) == changed


def test_deletions_are_merged():
    assert merge(BASE, BASE[1:], BASE[:-1]) == ["two", "three"]


def test_conflicts_are_marked():
    with pytest.raises(Conflict) as caught:
        merge(BASE, ["one", "2", "three", "four"], ["one", "zwei", "three", "vier"])
    assert caught.value.lines == ["one", "<<<<<<<", "2", "=======", "zwei", ">>>>>>>", "three", "vier"]
