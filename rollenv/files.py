"""Files that are either the old ones or the new ones, never half of either."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from rollenv.errors import RollenvError


def write_atomically(path: Path, parts: Iterable[str]) -> None:
    """Writes text beside `path` and moves it into place when it is whole and on the disk.

    Raises:
        RollenvError: it cannot be written; what was at `path` is still there.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as f:
            temporary = f.name
            f.writelines(parts)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:  # also what `parts` raises, and Ctrl-C
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise RollenvError(f"cannot write '{path}': {error.strerror}; nothing there was changed") from error
        raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes when it does not.

    A folder that is already at `path` is replaced, and is still there when the new one could not take its place.

    Raises:
        OSError: it cannot be made or moved.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                os.chmod(file, 0o644)  # some libraries write for the owner alone
                descriptor = os.open(file, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        os.chmod(temporary, 0o755)
        _put_in_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _put_in_place(folder: Path, path: Path) -> None:
    """Moves `folder` to `path`; what is there steps aside first, and comes back when that fails."""
    if not path.exists():
        os.replace(folder, path)
        return
    aside = folder.with_name(f"{folder.name}.old")
    os.replace(path, aside)
    try:
        os.replace(folder, path)
    except BaseException:
        os.replace(aside, path)
        raise
    shutil.rmtree(aside, ignore_errors=True)
