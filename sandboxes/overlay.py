"""Writable folders as stacks of layers in one tmpfs: what is written goes to the top layer, what is below never
changes.

`Overlay` says which commands lay the folders out, freeze them and take them back; who runs them, and in which
namespace, is a backend's business. All folders share one tmpfs, whose size is the bound on the disk. Freezing and
taking back cost the same however much was written (overlayfs: Documentation/filesystems/overlayfs.rst of the kernel).
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rollenv.sandboxes.errors import SandboxError

_MAX_LAYERS = 200
"""Layers' names must fit into one page of mount options."""


@dataclass(frozen=True, slots=True)
class WritableFolder:
    """One folder: where it is seen, what the image has there, and whether everybody may write to it."""

    target: str
    lower: str
    shared: bool = False


class Overlay:
    """The layers of one sandbox. Every method returns the commands for what it has just become.

    Args:
        base: a folder that the layers' tmpfs is mounted over.
        folders: what can be written.
        owner: `uid:gid` of the folders.
        disk: bytes in all of them.
        options: more mount options of the overlays.
    """

    def __init__(self, base: str, folders: Sequence[WritableFolder], owner: str, disk: int, options: str = "") -> None:
        self._base, self._folders, self._owner, self._disk = base, folders, owner, disk
        self._options = options
        self._count = 0
        self._top = "0"
        self.layers: tuple[str, ...] = ()
        """Frozen layers below the top one, the newest first."""

    def mount_disk(self) -> str:
        """The tmpfs that everything lies in. Small files cost memory, too: one for each page of it."""
        size = f"size={self._disk},nr_inodes={max(1024, self._disk // 4096)}"
        return f"mount -t tmpfs -o {size},mode=755,nosuid,nodev tmpfs {shlex.quote(self._base)}"

    def attach(self) -> str:
        """A new top layer over the frozen ones, seen in every folder."""
        lines = [f"cd {shlex.quote(self._base)}"]
        upper = [f"{self._top}/{n}/u" for n in range(len(self._folders))]
        # Each command is a process, which is most of what a reset takes: as few as can be.
        lines.append("mkdir -p " + " ".join(f"{path} {path[:-1]}w" for path in upper))
        lines.append(f"chown {self._owner} " + " ".join(upper))
        if shared := [upper[n] for n, folder in enumerate(self._folders) if folder.shared]:
            lines.append("chmod 1777 " + " ".join(shared))
        for n, folder in enumerate(self._folders):
            below = ":".join([*(f"{layer}/{n}/u" for layer in self.layers), folder.lower])
            options = f"lowerdir={below},upperdir={upper[n]},workdir={upper[n][:-1]}w{self._options}"
            lines.append(
                f"mount -t overlay -o nosuid,nodev,{shlex.quote(options)} overlay {shlex.quote(folder.target)}"
            )
        return "\n".join([*lines, "cd /"])

    def detach(self) -> str:
        """No folder is seen any more. A process that was just killed may still hold one for a moment."""
        targets = " ".join(shlex.quote(folder.target) for folder in self._folders)
        return (
            f"for f in {targets}; do n=0; until umount $f 2>/dev/null; do n=$((n + 1)); "
            "if [ $n -gt 100 ]; then umount -l $f; break; fi; sleep 0.02; done; done"
        )

    def freeze(self) -> str:
        """The top layer becomes a frozen one."""
        if len(self.layers) >= _MAX_LAYERS:
            raise SandboxError(
                f"a sandbox keeps at most {_MAX_LAYERS} snapshots on top of each other: restore an older one"
            )
        commands = self.detach()
        self.layers = (self._top, *self.layers)
        self._next()
        return f"{commands}\n{self.attach()}"

    def take_back(self, layers: tuple[str, ...]) -> str:
        """What was written since is dropped; these layers are the frozen ones."""
        dropped = posixpath.join(self._base, self._top)
        commands = f"{self.detach()}\nrm -rf {shlex.quote(dropped)}"
        self.layers = layers
        self._next()
        return f"{commands}\n{self.attach()}"

    def _next(self) -> None:
        self._count += 1
        self._top = str(self._count)
