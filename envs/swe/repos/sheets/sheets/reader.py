"""Text to rows."""

from sheets.dialect import Dialect


class SheetError(ValueError):
    """Text that is no sheet; `line` is where, from 1."""

    def __init__(self, message, line):
        super().__init__(f"line {line}: {message}")
        self.line = line


def read(text, dialect=None):
    """All rows as lists of text. Empty lines are left out; a quoted field may have line breaks."""
    dialect = dialect or Dialect()
    rows = []
    row = []
    field = []
    quoted = False
    was_quoted = False
    line = 1
    opened = 1
    at = 0

    def end_field():
        nonlocal field, was_quoted
        value = "".join(field)
        if dialect.strip and not was_quoted:
            value = value.strip()
        row.append(value)
        field = []
        was_quoted = False

    def end_row():
        nonlocal row
        blank = len(row) == 1 and row[0] == ""
        comment = dialect.comment is not None and row[0].startswith(dialect.comment)
        if not blank and not comment:
            rows.append(row)
        row = []

    while at < len(text):
        char = text[at]
        if quoted:
            if char == dialect.quote:
                if text[at + 1 : at + 2] == dialect.quote:
                    field.append(char)
                    at += 1
                else:
                    quoted = False
            else:
                if char == "\n":
                    line += 1
                field.append(char)
        elif char == dialect.quote and not "".join(field).strip():
            field = []
            quoted = was_quoted = True
            opened = line
        elif char == dialect.delimiter:
            end_field()
        elif char in "\r\n":
            if char == "\r" and text[at + 1 : at + 2] == "\n":
                at += 1
            end_field()
            end_row()
            line += 1
        elif was_quoted and not char.isspace():
            raise SheetError("text after a closing quote", line)
        elif not was_quoted:
            field.append(char)
        at += 1
    if quoted:
        raise SheetError("a quote is not closed", opened)
    if field or row or was_quoted:
        end_field()
        end_row()
    return rows


def read_records(text, dialect=None, defaults=None):
    """Rows below the first as dicts, with the first row's names. Missing fields come from `defaults`."""
    rows = read(text, dialect)
    if not rows:
        return []
    names, *rest = rows
    if len(set(names)) != len(names):
        raise SheetError("a name occurs twice", 1)
    records = []
    for number, row in enumerate(rest, 2):
        if len(row) > len(names):
            raise SheetError(f"{len(row)} fields for {len(names)} names", number)
        record = dict(zip(names, row))
        for name in names[len(row) :]:
            record[name] = (defaults or {}).get(name, "")
        records.append(record)
    return records
