"""Tar archives that come from untrusted places."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from rollenv.sandboxes.errors import SandboxError


def unpack(tar: bytes, folder: Path | str, *, limit: int = 1 << 30) -> None:
    """Unpacks an archive that came out of a sandbox: files, folders and links within `folder`, and nothing else.

    Args:
        tar: the archive.
        folder: where to; made if it is missing.
        limit: bytes of all files together, as they would lie on the disk.

    Raises:
        SandboxError: it is broken, too large, or has a member that would leave the folder or is a device. Members
        before
            that one may have been written.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if not hasattr(tarfile, "data_filter"):
        raise SandboxError("this Python cannot unpack archives safely: use Python 3.11.4 or newer")
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            for member in archive:
                total += member.size
                if total > limit:
                    raise SandboxError(
                        f"an archive from a sandbox holds more than {limit} bytes: raise 'limit' to take it"
                    )
                archive.extract(member, target, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SandboxError(f"an archive from a sandbox is not unpacked: {error}") from error


def pack(folder: Path | str) -> bytes:
    """A tar archive of a folder's content, for `Sandbox.upload`. Owners are left out."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(Path(folder).iterdir()):
            archive.add(path, path.name, filter=anonymous)
    return packed.getvalue()
