"""Rows to text."""

from sheets.dialect import Dialect


def quote(value, dialect):
    """A field as it is written: in quotes only where it must be."""
    text = "" if value is None else str(value)
    special = (dialect.delimiter, dialect.quote, "\n", "\r")
    if any(mark in text for mark in special) or text != text.strip():
        return dialect.quote + text.replace(dialect.quote, dialect.quote * 2) + dialect.quote
    return text


def write(rows, dialect=None, newline="\n"):
    """Rows as text, each with a line end."""
    dialect = dialect or Dialect()
    lines = []
    for row in rows:
        fields = [quote(value, dialect) for value in row]
        line = dialect.delimiter.join(fields)
        if fields == [""]:
            line = dialect.quote * 2
        lines.append(line + newline)
    return "".join(lines)


def write_records(records, names=None, dialect=None):
    """Dicts as text, with a row of names first: those given, else those of the records in the order they came."""
    if names is None:
        names = list(dict.fromkeys(name for record in records for name in record))
    rows = [[record.get(name) for name in names] for record in records]
    return write([names, *rows], dialect)
