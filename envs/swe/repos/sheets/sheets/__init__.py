"""Delimited text."""

from sheets.dialect import Dialect, guess_delimiter
from sheets.reader import SheetError, read, read_records
from sheets.writer import write, write_records

__all__ = ["Dialect", "SheetError", "guess_delimiter", "read", "read_records", "write", "write_records"]
