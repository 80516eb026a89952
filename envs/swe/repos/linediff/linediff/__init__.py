"""Differences between lists of lines."""

from linediff.diff import diff, ratio, unified
from linediff.patch import Conflict, PatchError, apply, merge

__all__ = ["Conflict", "PatchError", "apply", "diff", "merge", "ratio", "unified"]
