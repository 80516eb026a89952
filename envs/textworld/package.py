"""Living with the `textworld` package in one process: it leaves traces outside of itself."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keeps what the package changes for the whole process.

    Its planner overwrites `sys.argv`, what it imports draws from numpy's global generator, and its interpreter warns
    of every game that is not a famous one.
    """
    arguments, python, numpy = sys.argv, random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Game .* is not fully supported|Once converted to bytes")
            yield
    finally:
        sys.argv = arguments
        random.setstate(python)
        np.random.set_state(numpy)
