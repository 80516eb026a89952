"""Quantities with units."""

from measures.human import duration, parse_duration, size
from measures.quantity import Quantity, UnitError, convert

__all__ = ["Quantity", "UnitError", "convert", "duration", "parse_duration", "size"]
