"""Sizes and durations as people write them."""

import re

_STEPS = [("d", 86400), ("h", 3600), ("m", 60), ("s", 1)]
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])")


def size(count, binary=True, digits=1):
    """Bytes with a unit, such as `1.5 KiB`; whole bytes have no decimals."""
    base = 1024 if binary else 1000
    names = ["B", "KiB", "MiB", "GiB", "TiB"] if binary else ["B", "kB", "MB", "GB", "TB"]
    sign = "-" if count < 0 else ""
    value = abs(count)
    at = 0
    while value >= base and at < len(names) - 1:
        value /= base
        at += 1
    # What would be rounded up to the next unit belongs to it.
    if at > 0 and round(value, digits) >= base and at < len(names) - 1:
        value /= base
        at += 1
    return f"{sign}{value:.0f} {names[at]}" if at == 0 else f"{sign}{value:.{digits}f} {names[at]}"


def duration(seconds, parts=2):
    """Seconds as, say, `1h 5m`: the largest unit and those that follow, `parts` at most; zeros are left out."""
    if seconds < 0:
        return "-" + duration(-seconds, parts)
    left = int(seconds)
    found = []
    room = parts
    for name, length in _STEPS:
        number, left = divmod(left, length)
        if number or found:
            if number:
                found.append(f"{number}{name}")
            room -= 1
        if room == 0:
            break
    return " ".join(found) or "0s"


def parse_duration(text):
    """Seconds of a text such as `1h 30m`; a number alone is seconds."""
    stripped = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        return float(stripped)
    total = 0.0
    at = 0
    lengths = dict(_STEPS)
    last = None
    for match in _PART.finditer(stripped):
        if stripped[at : match.start()].strip():
            break
        length = lengths[match.group(2)]
        if last is not None and length >= last:
            raise ValueError(f"units out of order in {text!r}")
        total += float(match.group(1)) * length
        last = length
        at = match.end()
    if not stripped or stripped[at:].strip():
        raise ValueError(f"not a duration: {text!r}")
    return total
