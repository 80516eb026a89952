"""Applying differences."""

import re

from linediff.diff import common

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class PatchError(ValueError):
    """A patch that is none, or does not fit."""


class Conflict(ValueError):
    """Both sides changed the same lines; `lines` has the merge with markers."""

    def __init__(self, lines):
        super().__init__("both sides changed the same lines")
        self.lines = lines


def apply(lines, patch, reverse=False):
    """The lines after a unified diff, or before it if `reverse`."""
    add, drop = ("-", "+") if reverse else ("+", "-")
    result = []
    at = 0
    left = None
    for line in patch:
        header = _HUNK.match(line)
        if header:
            old_start, old_count, new_start, new_count = header.groups()
            start, count = (new_start, new_count) if reverse else (old_start, old_count)
            size = 1 if count is None else int(count)
            place = int(start) - 1 if size else int(start)
            if place < at:
                raise PatchError("hunks overlap or are out of order")
            result += lines[at:place]
            at = place
            left = size
            continue
        if left is None:
            raise PatchError(f"no hunk begins with {line!r}")
        mark, text = line[:1], line[1:]
        if mark == add:
            result.append(text)
        elif mark in (drop, " "):
            if at >= len(lines) or lines[at] != text:
                raise PatchError(f"line {at + 1} is not {text!r}")
            if mark == " ":
                result.append(text)
            at += 1
        else:
            raise PatchError(f"unknown mark in {line!r}")
    return result + lines[at:]


def merge(base, mine, theirs):
    """Both sides' changes to the same lines. Raises Conflict where they disagree."""
    to_mine = dict(common(base, mine))
    to_theirs = dict(common(base, theirs))
    anchors = [at for at in range(len(base)) if at in to_mine and at in to_theirs]
    result = []
    conflict = False
    b = m = t = 0
    for anchor in [*anchors, None]:
        if anchor is None:
            ends = len(base), len(mine), len(theirs)
        else:
            ends = anchor, to_mine[anchor], to_theirs[anchor]
        old, ours, others = base[b : ends[0]], mine[m : ends[1]], theirs[t : ends[2]]
        if ours == others or others == old:
            result += ours
        elif ours == old:
            result += others
        else:
            conflict = True
            result += ["<<<<<<<", *ours, "=======", *others, ">>>>>>>"]
        if anchor is not None:
            result.append(base[anchor])
            b, m, t = ends[0] + 1, ends[1] + 1, ends[2] + 1
    if conflict:
        raise Conflict(result)
    return result
