"""What is added to rewards before advantages are taken."""

from __future__ import annotations


def overlong_penalty(length: int, max_length: int, cache: int = 4096) -> float:
    """The soft overlong punishment of an episode with `length` sampled tokens (DAPO, arXiv 2503.14476).

    0 up to max_length - cache, from there falling in a line to -1 at max_length, -1 beyond.
    """
    return -min(1.0, max(0.0, (length - (max_length - cache)) / cache))
