"""Arithmetic expressions."""

from calc.evaluate import evaluate, variables
from calc.parser import CalcError, parse, tokens

__all__ = ["CalcError", "evaluate", "parse", "tokens", "variables"]
