"""What is kept between runs: compiled games by the hash of their file, and what was found in folders and archives.

Invariant: everything here can be made again from what it was made of, so it may be deleted at any time, and a file
that is damaged or of another version counts as missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from rollenv.envs.alfworld.compiler import compile_game, dialect_of, grammar_key, read_game_file, split_task
from rollenv.envs.alfworld.dialect import Dialect
from rollenv.envs.alfworld.game import Game, from_bytes, to_bytes
from rollenv.files import cache_folder


def cache_root() -> Path:
    """Where all of it lies."""
    return cache_folder("alfworld")


def compiled(sha256: str, read: Callable[[], bytes], name: str) -> tuple[Game, Dialect]:
    """The compiled game of a file, from the cache if it is there.

    Args:
        sha256: hex hash of the file's bytes.
        read: gives these bytes; not called when the game is in the cache.
        name: what messages call the file.

    Raises:
        Foreign: the native engine does not know such games.
        RollenvError: the file is torn, no game, or unsolvable.
    """
    folder = cache_root() / f"games-{_code_version()}"
    path = folder / sha256[:2] / f"{sha256}.game"
    with contextlib.suppress(OSError, ValueError):
        game = from_bytes(path.read_bytes())
        if game is not None:
            return game, _kept_dialect(folder, game.dialect)
    file = read_game_file(read(), name)
    game = compile_game(file)
    words, _ = split_task(file.grammar)
    with contextlib.suppress(OSError):  # a cache that cannot be written is none
        write_bytes(folder / f"{game.dialect}.grammar", words.encode())
        write_bytes(path, to_bytes(game))
    return game, dialect_of(words)


@functools.lru_cache(maxsize=64)
def _kept_dialect(folder: Path, key: str) -> Dialect:
    words = (folder / f"{key}.grammar").read_text("utf-8")
    if grammar_key(words) != key:
        raise ValueError(f"the grammar {key} is damaged")
    return dialect_of(words)


@functools.cache
def _code_version() -> str:
    """Changes with the code that compiles, so that no cache outlives it."""
    digest = hashlib.sha256()
    for name in ("compiler.py", "dialect.py", "domain.pddl", "game.py", "grammar.tw", "naming.py", "pddl.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:12]


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
