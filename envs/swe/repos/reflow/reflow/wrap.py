"""Wrapping, filling and justifying."""


def wrap(text, width=72, first="", rest="", hyphenate=True):
    """The lines of a paragraph, none wider than `width`.

    `first` and `rest` stand before the first and the other lines. A word that is wider than a line is cut if
    `hyphenate`, and stands alone on its line otherwise.
    """
    if width <= max(len(first), len(rest)):
        raise ValueError("the width must leave room for text")
    lines = []
    line = first
    empty = True
    for word in text.split():
        while word:
            gap = "" if empty else " "
            if len(line) + len(gap) + len(word) <= width:
                line += gap + word
                empty = False
                break
            if not empty:
                lines.append(line)
                line = rest
                empty = True
                continue
            room = width - len(line)
            if not hyphenate or room < 2:
                lines.append(line + word)
                line = rest
                break
            lines.append(line + word[: room - 1] + "-")
            word = word[room - 1 :]
            line = rest
    if not empty:
        lines.append(line)
    return lines


def fill(text, width=72):
    """All paragraphs of a text, wrapped; paragraphs are parted by empty lines."""
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    return "\n\n".join("\n".join(wrap(part, width)) for part in paragraphs)


def shorten(text, width, mark="..."):
    """The text on one line, with `mark` in place of the last words if it is too wide."""
    words = text.split()
    line = " ".join(words)
    if len(line) <= width:
        return line
    if len(mark) > width:
        raise ValueError("the mark is wider than the line")
    while words:
        words.pop()
        line = " ".join([*words, mark]) if words else mark
        if len(line) <= width:
            break
    return line


def justify(words, width):
    """Words on one line of exactly `width`: gaps as even as can be, the wider ones on the left."""
    if not words:
        return " " * width
    letters = sum(len(word) for word in words)
    gaps = len(words) - 1
    if letters + gaps > width:
        raise ValueError("the words do not fit")
    if gaps == 0:
        return words[0].ljust(width)
    each, extra = divmod(width - letters, gaps)
    line = words[0]
    for at, word in enumerate(words[1:]):
        line += " " * (each + (1 if at < extra else 0)) + word
    return line


def dedent(text):
    """The text without the indentation that all lines share; empty lines do not count."""
    lines = text.split("\n")
    margins = [len(line) - len(line.lstrip(" ")) for line in lines if line.strip()]
    margin = min(margins) if margins else 0
    return "\n".join(line[margin:] if line.strip() else "" for line in lines)


def columns(rows, gap=2, right=()):
    """A table as lines. `right` has the numbers of the columns that are aligned on the right."""
    if not rows:
        return []
    count = max(len(row) for row in rows)
    padded = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in padded) for column in range(count)]
    lines = []
    for row in padded:
        cells = []
        for column, cell in enumerate(row):
            if column in right:
                cells.append(cell.rjust(widths[column]))
            else:
                cells.append(cell.ljust(widths[column]))
        lines.append((" " * gap).join(cells).rstrip())
    return lines
