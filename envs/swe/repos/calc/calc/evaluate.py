"""Trees to numbers."""

import math

from calc.parser import CalcError, parse

FUNCTIONS = {
    "abs": (abs, 1, 1),
    "max": (max, 1, None),
    "min": (min, 1, None),
    "round": (round, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "hypot": (math.hypot, 2, 2),
}
CONSTANTS = {"pi": math.pi, "e": math.e}


def evaluate(expression, **names):
    """The value of an expression; names stand for numbers, before constants of the same name."""
    tree = parse(expression) if isinstance(expression, str) else expression
    return _value(tree, {**CONSTANTS, **names})


def _value(tree, names):
    kind = tree[0]
    if kind == "num":
        return tree[1]
    if kind == "var":
        if tree[1] not in names:
            raise CalcError(f"unknown name {tree[1]!r}")
        return names[tree[1]]
    if kind == "neg":
        return -_value(tree[1], names)
    if kind == "call":
        return _call(tree[1], [_value(argument, names) for argument in tree[2]])
    left, right = _value(tree[1], names), _value(tree[2], names)
    if kind == "+":
        return left + right
    if kind == "-":
        return left - right
    if kind == "*":
        return left * right
    if kind == "^":
        return left**right
    if right == 0:
        raise CalcError("division by zero")
    return left / right if kind == "/" else left % right


def _call(name, arguments):
    if name not in FUNCTIONS:
        raise CalcError(f"unknown function {name!r}")
    function, fewest, most = FUNCTIONS[name]
    count = len(arguments)
    if count < fewest or (most is not None and count > most):
        raise CalcError(f"{name} does not take {count} arguments")
    try:
        return function(*arguments)
    except ValueError as error:
        raise CalcError(f"{name}: {error}") from error


def variables(expression):
    """Names in an expression that are no constants, each once, sorted."""
    found = set()

    def visit(tree):
        if tree[0] == "var":
            found.add(tree[1])
        elif tree[0] == "call":
            for argument in tree[2]:
                visit(argument)
        elif tree[0] != "num":
            for part in tree[1:]:
                visit(part)

    visit(parse(expression))
    return sorted(found - set(CONSTANTS))
