"""Text to a tree of tuples: ("num", x), ("var", name), ("neg", a), ("call", name, args) or (operator, a, b)."""

OPERATORS = "+-*/%^(),"
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 4}
_NEGATION = 3


class CalcError(ValueError):
    """An expression that cannot be read or evaluated."""


def tokens(text):
    """Numbers as floats, names and operators as text."""
    found = []
    at = 0
    while at < len(text):
        char = text[at]
        if char.isspace():
            at += 1
        elif char.isdigit() or char == ".":
            end = at
            while end < len(text) and (text[end].isdigit() or text[end] == "."):
                end += 1
            if end < len(text) and text[end] in "eE":
                power = end + 1
                if power < len(text) and text[power] in "+-":
                    power += 1
                if power < len(text) and text[power].isdigit():
                    end = power
                    while end < len(text) and text[end].isdigit():
                        end += 1
            try:
                found.append(float(text[at:end]))
            except ValueError:
                raise CalcError(f"not a number: {text[at:end]!r}") from None
            at = end
        elif char.isalpha() or char == "_":
            end = at
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            found.append(text[at:end])
            at = end
        elif char in OPERATORS:
            found.append(char)
            at += 1
        else:
            raise CalcError(f"unexpected character {char!r} at {at}")
    return found


class _Parser:
    def __init__(self, found):
        self.tokens = found
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self):
        token = self.peek()
        if token is None:
            raise CalcError("unexpected end")
        self.at += 1
        return token

    def expect(self, token):
        found = self.take()
        if found != token:
            raise CalcError(f"expected {token!r}, found {found!r}")

    def expression(self, lowest=1):
        left = self.prefix()
        while True:
            operator = self.peek()
            precedence = _PRECEDENCE.get(operator, 0) if isinstance(operator, str) else 0
            if precedence < lowest:
                return left
            self.take()
            # A power is taken from the right, all others from the left.
            right = self.expression(precedence if operator == "^" else precedence + 1)
            left = (operator, left, right)

    def prefix(self):
        token = self.take()
        if token == "-":
            return ("neg", self.expression(_NEGATION))
        if token == "+":
            return self.expression(_NEGATION)
        if token == "(":
            inside = self.expression()
            self.expect(")")
            return inside
        if isinstance(token, float):
            return ("num", token)
        if token in OPERATORS:
            raise CalcError(f"unexpected {token!r}")
        if self.peek() == "(":
            self.take()
            return ("call", token, self.arguments())
        return ("var", token)

    def arguments(self):
        found = []
        if self.peek() == ")":
            self.take()
            return found
        while True:
            found.append(self.expression())
            token = self.take()
            if token == ")":
                return found
            if token != ",":
                raise CalcError(f"expected ',' or ')', found {token!r}")


def parse(text):
    """The tree of an expression."""
    parser = _Parser(tokens(text))
    tree = parser.expression()
    if parser.peek() is not None:
        raise CalcError(f"unexpected {parser.peek()!r}")
    return tree
