"""The boards of the games that are being played, one per game and process."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict

from rollenv.envs.alfworld.cache import compiled
from rollenv.envs.alfworld.compiler import Foreign
from rollenv.envs.alfworld.engine import Board, Words
from rollenv.envs.alfworld.library import Library

RECENT = 256
"""So many boards are kept when nobody plays on them any more."""

_words: dict[str, Words] = {}
_living: weakref.WeakValueDictionary[str, Board] = weakref.WeakValueDictionary()
_recent: OrderedDict[str, Board] = OrderedDict()


def board_of(library: Library, task: str) -> Board:
    """The board of a game, shared by all who play it in this process.

    Raises:
        Foreign: the native engine does not know such games.
        RollenvError: the file is torn, no game, or unsolvable.
    """
    sha256 = library.sha256(task)
    board = _living.get(sha256)
    if board is None:
        game, dialect = compiled(sha256, functools.partial(library.read, task), f"{library.source}: {task}")
        words = _words.get(game.dialect)
        if words is None:
            words = _words[game.dialect] = Words(dialect)
        if not words.distinct:
            raise Foreign("two of its commands begin with the same word")
        board = _living[sha256] = Board(game, words)
    _recent[sha256] = board
    _recent.move_to_end(sha256)
    if len(_recent) > RECENT:
        _recent.popitem(last=False)
    return board
