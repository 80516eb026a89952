"""What a pool and its worker processes say to each other: pickled frames over a stream socket.

A frame down is a list of requests, a frame up is one answer. A worker answers every request exactly once and in order,
so that neither carries a number: the first request without an answer is the one that the worker is at.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

_LENGTH = struct.Struct("!Q")

Verb = Literal["setup", "make", "reset", "step", "snapshot", "restore", "reseed", "drop", "stop"]


class Request(NamedTuple):
    """One call. `env` numbers the environment in its worker, `arguments` are those of the verb."""

    verb: Verb
    env: int = -1
    arguments: tuple[Any, ...] = ()


class Answer(NamedTuple):
    """What became of it: `value`, or the one line that says what went wrong, with the pickled exception if that can be
    sent."""

    value: Any = None
    error: str | None = None
    raised: bytes | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """A worker's first request has this: how to import what the parent can import, and what to make.

    Attributes:
        path: the parent's `sys.path`.
        python_path: the parent's environment variable PYTHONPATH, for the children of environments.
        made_of: the pickled spec and its arguments; pickled apart, because reading it needs `path`.
    """

    path: list[str]
    python_path: str | None
    made_of: bytes


def frame(content: list[Request] | Answer) -> bytes:
    """The bytes of one frame.

    Raises:
        Exception: whatever pickle raises for something that cannot be sent.
    """
    body = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


@dataclass(slots=True)
class Frames:
    """Cuts a stream of bytes into the pickled contents of its frames."""

    _bytes: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[bytes]:
        """The contents of the frames that `data` completes."""
        self._bytes += data
        contents: list[bytes] = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            contents.append(bytes(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return contents
