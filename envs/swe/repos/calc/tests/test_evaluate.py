import math

import pytest

from calc import CalcError, evaluate, parse, variables


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("8-3-2", 3),
        ("16/4/2", 2),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("2^-1", 0.5),
        ("--3", 3),
        ("+5 - +2", 3),
        ("-3*2", -6),
        ("7 % 4 * 2", 6),
        ("2*(3+4)", 14),
        ("max(1, 5, 3) + min(4, 2)", 7),
        ("abs(-2) * sqrt(16)", 8),
        ("hypot(3, 4)", 5),
        ("round(2.6)", 3),
    ],
)
def test_values(text, value):
    assert evaluate(text) == value


def test_names():
    assert evaluate("2*x + y", x=3, y=1) == 7
    assert evaluate("2*pi") == 2 * math.pi
    assert evaluate("pi", pi=3) == 3


def test_unknown_names():
    with pytest.raises(CalcError, match="'z'"):
        evaluate("z")
    with pytest.raises(CalcError, match="function 'f'"):
        evaluate("f(1)")


@pytest.mark.parametrize("text", ["1/0", "1 % (2-2)"])
def test_division_by_zero(text):
    with pytest.raises(CalcError, match="division by zero"):
        evaluate(text)


@pytest.mark.parametrize("text", ["abs()", "abs(1, 2)", "hypot(1)", "max()", "hypot(1,2,3)"])
def test_numbers_of_arguments(text):
    with pytest.raises(CalcError, match="does not take"):
        evaluate(text)


def test_functions_may_refuse():
    with pytest.raises(CalcError, match="sqrt"):
        evaluate("sqrt(-1)")


def test_a_tree_is_evaluated_again():
    tree = parse("x^2")
    assert [evaluate(tree, x=x) for x in (1, 2, 3)] == [1, 4, 9]


def test_variables():
    assert variables("b + a*max(c, -b) + pi") == ["a", "b", "c"]
    assert variables("1+2") == []
