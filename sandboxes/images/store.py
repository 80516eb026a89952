"""Images as folders, for sandboxes that need no engine: layers, each unpacked once and shared by all images on top of
it.

Invariant: an image's file is written when all of its layers are whole. A layer never changes; its name says its
content.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rollenv.errors import did_you_mean
from rollenv.files import write_atomically
from rollenv.sandboxes.errors import SandboxError, UnknownImage

SANDBOX_ID = 64321
"""User and group that bubblewrap's sandboxes run as when this process is root: one that owns nothing else here."""
_NAME = re.compile(r"[a-z0-9]+([._/:\-]+[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image whose layers lie in folders."""

    name: str
    layers: tuple[Path, ...]
    """The lowest first."""
    bytes: int

    def top(self) -> dict[str, str | None]:
        """What is at its root: name -> where a link leads, None for files and folders."""
        found: dict[str, str | None] = {}
        for layer in self.layers:
            for entry in os.scandir(layer):
                found[entry.name] = os.readlink(entry.path) if entry.is_symlink() else None
        return found

    def has_folder(self, path: str) -> bool:
        """Whether a folder is there, links not followed."""
        return any(_is_folder(layer, path) for layer in self.layers)

    def lower(self, path: str) -> str:
        """A folder of all layers that have it, as overlayfs takes them; empty when none does."""
        return ":".join(f"{layer}{path}" for layer in reversed(self.layers) if _is_folder(layer, path))

    def user(self, name: str) -> tuple[int, int] | None:
        """Numbers of a user and its group that the image knows by name."""
        for layer in reversed(self.layers):
            passwd = layer / "etc" / "passwd"
            if _is_folder(layer, "/etc") and passwd.is_file() and not passwd.is_symlink():
                for line in passwd.read_text(errors="replace").splitlines():
                    fields = line.split(":")
                    if fields[0] == name and len(fields) > 3:
                        return int(fields[2]), int(fields[3])
                return None
        return None


def _is_folder(layer: Path, path: str) -> bool:
    at = layer
    for part in path.strip("/").split("/"):
        at = at / part
        if not os.path.lexists(at) or not stat.S_ISDIR(os.lstat(at).st_mode):
            return False
    return True


def store_folder() -> Path:
    """$ROLLENV_IMAGES, else `rollenv/images` in the user's cache."""
    if own := os.environ.get("ROLLENV_IMAGES"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "rollenv" / "images"


class ImageStore:
    """The images of one folder; None: `store_folder()`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or store_folder()

    def names(self) -> list[str]:
        """All images."""
        return sorted(json.loads(path.read_text())["name"] for path in self.folder.glob("*.json"))

    def find(self, name: str) -> StoredImage:
        """An image by its name.

        Raises:
            UnknownImage: there is none, or a layer of it is gone.
        """
        path = self._file(name)
        if not path.is_file():
            known = self.names() if self.folder.is_dir() else []
            raise UnknownImage(
                f"no image '{name}' in '{self.folder}'{did_you_mean(name, known)}: 'rollenv images build' makes the "
                "default one, 'rollenv images build NAME --from TAR' any other"
            )
        said = json.loads(path.read_text())
        layers = tuple(self._layer(digest) for digest in said["layers"])
        for layer in layers:
            if not layer.is_dir():
                raise UnknownImage(
                    f"image '{name}' lacks its layer '{layer}': build it again with 'rollenv images build'"
                )
        return StoredImage(said["name"], layers, said["bytes"])

    def add(
        self, name: str, digest: str, tar: Callable[[], contextlib.AbstractContextManager[IO[bytes]]], base: str = ""
    ) -> StoredImage:
        """Makes an image of a base's layers and one more.

        Args:
            name: of the image; one of that name is replaced.
            digest: names the layer; one that is there is used as it is, and `tar` is not called.
            tar: opens the layer as a tar archive.
            base: the image below; empty: none.

        Raises:
            SandboxError: it cannot be unpacked or the name is none.
            UnknownImage: no such base.
        """
        if not _NAME.fullmatch(name):
            raise SandboxError(
                f"'{name}' cannot be an image's name: small letters and digits, with . _ - / : between them"
            )
        below = self.find(base) if base else None
        layer = self._layer(digest)
        if not layer.is_dir():
            with tar() as packed:
                self._unpack(packed, layer)
        layers = [*(path.name for path in below.layers)] if below else []
        layers = [*layers, digest]
        size = sum(map(tree_bytes, map(self._layer, layers)))
        write_atomically(self._file(name), [json.dumps({"name": name, "layers": layers, "bytes": size}, indent=1)])
        return self.find(name)

    def remove(self, name: str) -> None:
        """Removes an image, and the layers that no other image has."""
        self.find(name)
        self._file(name).unlink()
        used = {digest for path in self.folder.glob("*.json") for digest in json.loads(path.read_text())["layers"]}
        for layer in (self.folder / "layers").iterdir():
            if layer.name not in used:
                shutil.rmtree(layer)

    def _unpack(self, packed: IO[bytes], layer: Path) -> None:
        # Beside its place until it is whole. Everything belongs to one user: a sandbox knows no other.
        layer.parent.mkdir(parents=True, exist_ok=True)
        temporary = layer.with_name(f".{layer.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=0o755)
        try:
            words = ["tar", "-x", "-f", "-", "-C", str(temporary), "--no-same-owner", "--no-same-permissions"]
            done = subprocess.run(words, stdin=packed, capture_output=True, check=False, umask=0o022)
            if done.returncode:
                last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
                raise SandboxError(f"an image's layer cannot be unpacked: {''.join(last) or done.returncode}")
            give_away(temporary)
            try:
                os.rename(temporary, layer)
            except OSError:
                if not layer.is_dir():  # then another process was first, with the same content
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _layer(self, digest: str) -> Path:
        return self.folder / "layers" / digest

    def _file(self, name: str) -> Path:
        return self.folder / (name.replace("/", "__").replace(":", "--") + ".json")


def give_away(folder: Path) -> None:
    """Makes a tree belong to the user that sandboxes run as, when we may."""
    if os.geteuid() == 0:
        subprocess.run(["chown", "-hR", f"{SANDBOX_ID}:{SANDBOX_ID}", str(folder)], check=True)


def tree_bytes(folder: Path) -> int:
    """Bytes that a tree's files take on the disk; a file with several names is counted once."""
    seen: set[int] = set()
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(root, name))
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total
