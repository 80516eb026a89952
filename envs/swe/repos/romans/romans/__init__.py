"""Roman numerals."""

from romans.numerals import LARGEST, RomanError, add, is_roman, parse, to_roman

__all__ = ["LARGEST", "RomanError", "add", "is_roman", "parse", "to_roman"]
