"""Reads WebShop's files as a stream: one product at a time, from .json or .json.gz.

Invariant: no more of a file is held in memory than one chunk and one record, and a file that ends early or is not
JSON is refused with its name and the byte where it broke.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rollenv.errors import RollenvError

CHUNK = 1 << 20
RECORD_LIMIT = 1 << 26
"""Characters; a record that is longer is taken for broken JSON."""

_ITEMS = ("items_shuffle.json", "items_shuffle_1000.json")
_ATTRIBUTES = ("items_ins_v2.json", "items_ins_v2_1000.json")
_HUMAN = ("items_human_ins.json",)

Report = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files of one catalogue; `human` may be missing."""

    items: Path
    attributes: Path
    human: Path | None

    def present(self) -> list[Path]:
        return [path for path in (self.items, self.attributes, self.human) if path is not None]

    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.present())


def find_files(folder: str | os.PathLike[str]) -> DataFiles:
    """WebShop's files in `folder`, the full catalogue before the one of 1,000 products.

    Raises:
        RollenvError: the folder or a file that is needed does not exist.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise RollenvError(
            f"webshop: data='{folder}' is not a folder; give the one that holds {_ITEMS[0]} and {_ATTRIBUTES[0]} "
            "(or their _1000 or .gz variants), or leave data out for the generated store"
        )
    for items_name, attributes_name in zip(_ITEMS, _ATTRIBUTES, strict=True):
        items = _existing(root, (items_name,))
        if items is not None:
            attributes = _existing(root, (attributes_name, *_ATTRIBUTES))
            if attributes is None:
                raise RollenvError(f"webshop: '{items}' needs {attributes_name} (or .gz) beside it; copy it there")
            return DataFiles(items, attributes, _existing(root, _HUMAN))
    raise RollenvError(
        f"webshop: no {_ITEMS[0]} or {_ITEMS[1]} (or .gz) in '{root}'; put WebShop's data files there "
        f"(items_shuffle, items_ins_v2, items_human_ins)"
    )


def _existing(root: Path, names: tuple[str, ...]) -> Path | None:
    candidates = [root / (name + ending) for name in names for ending in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


# -- streams -----------------------------------------------------------------------------------------------


class JsonStream:
    """The members of a top-level JSON array or object, read one after the other.

    Args:
        path: a .json or .json.gz file.
        report: called now and then with the number of the file's own bytes read since the last call.
    """

    def __init__(self, path: Path, report: Report | None = None) -> None:
        self.path = path
        self._report = report
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._bytes_read = 0

    def items(self) -> Iterator[Any]:
        """The elements of a top-level array."""
        with self._open() as file:
            self._expect("[", file)
            if self._peek(file) == "]":
                return
            while True:
                yield self._value(file)
                if self._expect(",]", file) == "]":
                    return

    def pairs(self) -> Iterator[tuple[str, Any]]:
        """The keys and values of a top-level object."""
        with self._open() as file:
            self._expect("{", file)
            if self._peek(file) == "}":
                return
            while True:
                key = self._value(file)
                self._expect(":", file)
                yield key, self._value(file)
                if self._expect(",}", file) == "}":
                    return

    def _open(self) -> _Reader:
        return _Reader(self.path, self._report)

    def _more(self, file: _Reader) -> bool:
        """Reads another chunk; False at the end of the file."""
        chunk = file.read_text()
        self._bytes_read = file.bytes_read
        if not chunk:
            return False
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True

    def _peek(self, file: _Reader) -> str:
        """The next character that is not white space."""
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if character not in " \t\r\n":
                    return character
                self._at += 1
            if not self._more(file):
                raise self._torn()

    def _expect(self, allowed: str, file: _Reader) -> str:
        character = self._peek(file)
        if character not in allowed:
            raise self._broken(f"expected '{allowed[0]}', found '{character}'")
        self._at += 1
        return character

    def _value(self, file: _Reader) -> Any:
        self._peek(file)
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # A record that goes on in the next chunk fails at the end of this one, or inside a string.
                cut = error.msg.startswith("Unterminated string") or error.pos > len(self._text) - 16
                if not cut or len(self._text) - self._at > RECORD_LIMIT:
                    raise self._broken(error.msg) from error
                if not self._more(file):
                    raise self._torn() from error
                continue
            # A number may go on in the next chunk; everything else says itself where it ends.
            ended = not isinstance(value, (int, float)) or self._text[end : end + 1] in {*", \t\r\n]}"}
            if not ended and end > len(self._text) - 16 and self._more(file):
                continue
            self._at = end
            return value

    def _torn(self) -> RollenvError:
        return RollenvError(
            f"webshop: '{self.path}' ends in the middle, at byte {self._bytes_read}"
            f"{' (unpacked)' if self.path.suffix == '.gz' else ''}; copy or download it again"
        )

    def _broken(self, what: str) -> RollenvError:
        at = self._bytes_read - len(self._text[self._at :].encode("utf-8", "surrogatepass"))
        return RollenvError(f"webshop: '{self.path}' is not valid JSON near byte {at}: {what}; download it again")


class _Reader:
    """UTF-8 text of a file in chunks, unpacked when it is a gzip."""

    def __init__(self, path: Path, report: Report | None) -> None:
        self.path = path
        self.bytes_read = 0
        self._report = report
        self._raw: IO[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._reported = 0

    def __enter__(self) -> _Reader:
        try:
            self._raw = self.path.open("rb")
        except OSError as error:
            raise RollenvError(f"webshop: cannot read '{self.path}': {error.strerror}") from error
        self._file = gzip.GzipFile(fileobj=self._raw) if self.path.suffix == ".gz" else self._raw  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        if self._raw is not None:
            self._raw.close()

    def read_text(self) -> str:
        """The next characters; empty at the end."""
        assert self._file is not None
        assert self._raw is not None
        while True:
            try:
                data = self._file.read(CHUNK)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise RollenvError(
                    f"webshop: '{self.path}' is torn at byte {self._raw.tell()}: {error}; copy or download it again"
                ) from error
            self.bytes_read += len(data)
            self._tell()
            text = self._decode(data)
            if text or not data:
                return text

    def _decode(self, data: bytes) -> str:
        """`data` after what was left of the last chunk, but for a character that is cut in two at the end."""
        whole = self._rest + data
        try:
            text = whole.decode()
            self._rest = b""
            return text
        except UnicodeDecodeError as error:
            if data and error.start >= len(whole) - 3 and error.reason == "unexpected end of data":
                self._rest = whole[error.start :]
                return whole[: error.start].decode()
            at = self.bytes_read - len(whole) + error.start
            raise RollenvError(f"webshop: '{self.path}' is not UTF-8 at byte {at}; download it again") from error

    def _tell(self) -> None:
        if self._report is not None and self._raw is not None:
            position = self._raw.tell()
            self._report(position - self._reported)
            self._reported = position


# -- what a file is ----------------------------------------------------------------------------------------


def fingerprint(files: DataFiles) -> str:
    """sha256 over the bytes of the files: the key of what is cached about them."""
    digest = hashlib.sha256()
    for path in files.present():
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


# -- progress ----------------------------------------------------------------------------------------------


class Progress:
    """A bar on stderr that appears only when the work takes longer than `patience` seconds.

    Args:
        label: what is going on.
        total: bytes to read.
    """

    def __init__(self, label: str, total: int, patience: float = 2.0) -> None:
        self._label, self._total = label, total
        self._done = 0
        self._start = time.monotonic()
        self._patience = patience
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int) -> None:
        """`amount` more bytes are done."""
        self._done += amount
        if self._bar is None and time.monotonic() - self._start > self._patience:
            self._appear()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def _appear(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._label, total=self._total)
