"""What an agent changed, and which of it counts.

Invariant: nothing that decides how tests are found, run or reported is taken from an agent, unless the task's own
solution changes it.
"""

from __future__ import annotations

import difflib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from rollenv.envs.swe.task import Files
from rollenv.sandboxes.errors import SandboxError

Changes = Mapping[str, bytes | None]
"""Path -> what is in the file now; None: it is gone."""

_NAMES = {
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "sitecustomize.py",
    "usercustomize.py",
    ".coveragerc",
    ".git",
    ".hg",
    "__pycache__",
    ".pytest_cache",
}
_FOLDERS = re.compile(r".*\.(dist|egg)-info")
_FILES = re.compile(r"test_.*\.py|.*_tests?\.py|.*\.py[co]|.*\.pth")
_TESTS = {"tests", "test", "testing"}
_SECTION = re.compile(r"^diff --git a/(.+?) b/(.+)$", re.MULTILINE)


def is_protected(path: str) -> bool:
    """Whether a path belongs to the tests, or to what runs them."""
    parts = PurePosixPath(path).parts
    return (
        any(part in _NAMES or _FOLDERS.fullmatch(part) for part in parts)
        or any(part in _TESTS for part in parts[:-1])
        or _FILES.fullmatch(parts[-1]) is not None
    )


def counted(paths: Iterable[str], gold: str, tests: Iterable[str] = ()) -> set[str]:
    """Of some changed paths, those that count: what is not protected or the solution changes, and is no test file."""
    solution = set(patched_paths(gold)) - set(tests)
    return {path for path in paths if path in solution or not (is_protected(path) or path in set(tests))}


def patched_paths(patch: str) -> list[str]:
    """The paths that a patch changes, as they are called after it."""
    return [section for section, _ in sections(patch)]


def sections(patch: str) -> list[tuple[str, str]]:
    """A git patch, file by file: (path, its part of the text)."""
    starts = list(_SECTION.finditer(patch))
    ends = [*(match.start() for match in starts[1:]), len(patch)]
    return [(match[2], patch[match.start() : end]) for match, end in zip(starts, ends, strict=False)]


def without(patch: str, keep: set[str]) -> str:
    """The parts of a patch whose paths are kept. A file that is renamed counts under both names."""
    return "".join(
        text for (path, text), match in zip(sections(patch), _SECTION.finditer(patch), strict=True)
        if path in keep and (match[1] == path or match[1] in keep)
    )  # fmt: skip


def find_changes(before: Files, tar: bytes, *, limit: int = 64 << 20) -> dict[str, bytes | None]:
    """The files of an archive that are not as they were, and those that are missing. Links and devices are no files.

    Raises:
        SandboxError: the archive is broken, or holds more than `limit` bytes.
    """
    seen: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            for member in archive:
                path = member.name.removeprefix("./")
                if not member.isreg() or path.startswith(".git/"):
                    continue
                total += member.size
                if total > limit:
                    raise SandboxError(f"an agent's repository holds more than {limit} bytes: it is not graded")
                file = archive.extractfile(member)
                seen[path] = file.read() if file is not None else b""
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SandboxError(f"an agent's repository cannot be read: {error}") from error
    changed: dict[str, bytes | None] = {path: None for path in before if path not in seen}
    return changed | {path: content for path, content in seen.items() if before.get(path) != content}


def unified(before: Files, changes: Changes) -> str:
    """Changes as a git patch. Files that are not text are named, and no more."""
    parts = []
    for path in sorted(changes):
        old, new = before.get(path), changes[path]
        parts.append(f"diff --git a/{path} b/{path}\n")
        if old is None:
            parts.append("new file mode 100644\n")
        if new is None:
            parts.append("deleted file mode 100644\n")
        try:
            texts = [(content or b"").decode("utf-8").splitlines(keepends=True) for content in (old, new)]
        except UnicodeDecodeError:
            parts.append(f"Binary files a/{path} and b/{path} differ\n")
            continue
        names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
        lines = difflib.unified_diff(*texts, *names)
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)
