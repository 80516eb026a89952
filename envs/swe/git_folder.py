"""A git repository of one commit, as files: so that an agent can ask for `git diff` without any git having run.

The same tree gives the same bytes on every machine. Format: gitformat-index(5), gitrepository-layout(5) and the object
format of git's own documentation.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from typing import Any

_WHO = b"rollenv <rollenv@localhost> 1700000000 +0000"
_FILE, _FOLDER = 0o100644, 0o40000
_CONFIG = b"""\
[core]
	repositoryformatversion = 0
	filemode = false
	bare = false
[user]
	name = agent
	email = agent@localhost
"""


def git_folder(files: Mapping[str, bytes], message: str = "Start") -> dict[str, bytes]:
    """The files of `.git` (paths with that prefix) for a working tree in which nothing has changed since its commit."""
    objects: dict[str, bytes] = {}
    blobs = {path: _store(objects, b"blob", content) for path, content in files.items()}
    root = _tree(objects, _nested(blobs))
    lines = [b"tree " + root.hex().encode(), b"author " + _WHO, b"committer " + _WHO, b"", message.encode(), b""]
    commit = _store(objects, b"commit", b"\n".join(lines)).hex().encode() + b"\n"
    found = {f".git/objects/{name[:2]}/{name[2:]}": packed for name, packed in objects.items()}
    return found | {
        ".git/HEAD": b"ref: refs/heads/main\n",
        ".git/config": _CONFIG,
        ".git/refs/heads/main": commit,
        ".git/index": _index(blobs),
        ".git/info/exclude": b"__pycache__/\n.pytest_cache/\n",
    }


def _store(objects: dict[str, bytes], kind: bytes, content: bytes) -> bytes:
    whole = kind + b" %d\0" % len(content) + content
    name = hashlib.sha1(whole, usedforsecurity=False)
    objects[name.hexdigest()] = zlib.compress(whole, 1)
    return name.digest()


def _nested(blobs: Mapping[str, bytes]) -> dict[str, Any]:
    """Paths as folders within folders."""
    root: dict[str, Any] = {}
    for path, name in blobs.items():
        *folders, file = path.split("/")
        at = root
        for folder in folders:
            at = at.setdefault(folder, {})
        at[file] = name
    return root


def _tree(objects: dict[str, bytes], entries: Mapping[str, Any]) -> bytes:
    # Git sorts a folder as if its name ended with a slash.
    lines = []
    for name in sorted(entries, key=lambda name: name + "/" * isinstance(entries[name], dict)):
        entry = entries[name]
        is_folder = isinstance(entry, dict)
        digest = _tree(objects, entry) if is_folder else entry
        lines.append(b"%o " % (_FOLDER if is_folder else _FILE) + name.encode() + b"\0" + digest)
    return _store(objects, b"tree", b"".join(lines))


def _index(blobs: Mapping[str, bytes]) -> bytes:
    """Version 2, with no times and sizes: git looks at the files once, and fills them in."""
    found = [struct.pack(">4sII", b"DIRC", 2, len(blobs))]
    for path in sorted(blobs, key=str.encode):
        name = path.encode()
        entry = struct.pack(">10I", 0, 0, 0, 0, 0, 0, _FILE, 0, 0, 0) + blobs[path]
        entry += struct.pack(">H", min(len(name), 0xFFF)) + name
        found.append(entry + b"\0" * (8 - len(entry) % 8))
    body = b"".join(found)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()
