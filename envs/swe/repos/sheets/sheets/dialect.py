"""How rows are written down."""


class Dialect:
    """Delimiter, quote, and what to do with spaces and comments."""

    def __init__(self, delimiter=",", quote='"', strip=False, comment=None):
        if len(delimiter) != 1 or len(quote) != 1:
            raise ValueError("delimiter and quote are one character each")
        if delimiter == quote:
            raise ValueError("delimiter and quote must differ")
        self.delimiter = delimiter
        self.quote = quote
        self.strip = strip
        self.comment = comment


def guess_delimiter(text, candidates=",;\t|"):
    """The candidate that parts all lines into the same number of fields, more than one; the most fields win."""
    lines = [line for line in text.splitlines() if line.strip()]
    best, most = None, 0
    for candidate in candidates:
        counts = {line.count(candidate) for line in lines}
        if len(counts) == 1:
            count = counts.pop()
            if count > most:
                best, most = candidate, count
    if best is None:
        raise ValueError("no delimiter fits all lines")
    return best
