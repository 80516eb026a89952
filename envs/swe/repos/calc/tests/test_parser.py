import pytest

from calc import CalcError, parse, tokens


def test_tokens():
    assert tokens("a1+2.5*(_b)") == ["a1", "+", 2.5, "*", "(", "_b", ")"]
    assert tokens("  ") == []


@pytest.mark.parametrize(("text", "number"), [("1e3", 1000.0), ("1.5E-2", 0.015), (".5", 0.5), ("2e+1", 20.0)])
def test_numbers(text, number):
    assert tokens(text) == [number]


def test_an_e_that_is_no_exponent():
    assert tokens("2e") == [2.0, "e"]
    assert tokens("2e+x") == [2.0, "e", "+", "x"]


@pytest.mark.parametrize("text", ["1.2.3", "."])
def test_numbers_that_are_none(text):
    with pytest.raises(CalcError, match="not a number"):
        tokens(text)


def test_characters_that_mean_nothing():
    with pytest.raises(CalcError, match=r"'\$' at 2"):
        tokens("1 $")


def test_precedence():
    assert parse("1+2*3") == ("+", ("num", 1.0), ("*", ("num", 2.0), ("num", 3.0)))
    assert parse("(1+2)*3") == ("*", ("+", ("num", 1.0), ("num", 2.0)), ("num", 3.0))


def test_calls():
    assert parse("f()") == ("call", "f", [])
    assert parse("f(x, 2)") == ("call", "f", [("var", "x"), ("num", 2.0)])


@pytest.mark.parametrize("text", ["", "1+", "(1", "f(1", "-"])
def test_expressions_that_end_too_soon(text):
    with pytest.raises(CalcError, match="unexpected end"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [("1 2", "2.0"), ("1)", r"'\)'"), ("*1", r"'\*'"), ("f(1 2)", "expected ','"), ("(1,2)", r"expected '\)'")],
)
def test_expressions_that_make_no_sense(text, says):
    with pytest.raises(CalcError, match=says):
        parse(text)
