"""Making images: for the engine, for bubblewrap, or for both from one archive."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rollenv.sandboxes.errors import SandboxError, UnknownImage
from rollenv.sandboxes.images.packages import WANTED, Dpkg, Package, digest, pack
from rollenv.sandboxes.images.store import ImageStore, StoredImage
from rollenv.sandboxes.spec import DEFAULT_IMAGE


def store_default(store: ImageStore | None = None, name: str = DEFAULT_IMAGE) -> StoredImage:
    """The default image for bubblewrap, from this machine's packages; made unless it is there as they are now.

    Raises:
        SandboxError: packages are missing.
    """
    dpkg = Dpkg()
    packages = dpkg.closure(WANTED)
    return (store or ImageStore()).add(name, digest(packages), lambda: packed(dpkg, packages))


@contextlib.contextmanager
def packed(dpkg: Dpkg, packages: list[Package]) -> Iterator[IO[bytes]]:
    """The packages as a tar archive, in a file that vanishes."""
    with tempfile.TemporaryFile() as file:
        pack(dpkg, packages, file)
        file.seek(0)
        yield file


def store_archive(name: str, tar: Path, base: str = "", store: ImageStore | None = None) -> StoredImage:
    """An image for bubblewrap from a tar archive, alone or as a layer over another image.

    Raises:
        SandboxError: the archive cannot be read.
        UnknownImage: no such base.
    """
    try:
        with tar.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise SandboxError(f"cannot read the archive '{tar}': {error.strerror}") from error
    return (store or ImageStore()).add(name, f"tar-{content}", lambda: tar.open("rb"), base)


def engine_default(name: str = DEFAULT_IMAGE) -> str:
    """The default image for the container engine, from this machine's packages; made unless it is there as they are
    now.

    Returns:
        The image's id.

    Raises:
        SandboxError: packages are missing, or the engine refuses.
    """
    from rollenv.sandboxes import engine

    dpkg = Dpkg()
    packages = dpkg.closure(WANTED)
    api, content = engine.connect(), digest(packages)
    if (there := _with_content(api, name, content)) is not None:
        return there
    with packed(dpkg, packages) as tar, engine.told(f"import image '{name}'"):
        changes = [f"LABEL rollenv.content={content}", "WORKDIR /workspace", 'CMD ["/bin/bash"]']
        chunks = iter(lambda: tar.read(1 << 20), b"")
        api.import_image_from_stream(chunks, repository=name, tag="latest", changes=changes)
    made = _with_content(api, name, content)
    if made is None:
        raise SandboxError(f"the container engine took image '{name}' but does not have it: look at the engine's log")
    return made


def _with_content(api: Any, name: str, content: str) -> str | None:
    import docker.errors

    from rollenv.sandboxes import engine

    try:
        with engine.told(f"look for image '{name}'"):
            found = api.inspect_image(name)
    except UnknownImage:
        return None
    except docker.errors.ImageNotFound:
        return None
    return str(found["Id"]) if (found["Config"].get("Labels") or {}).get("rollenv.content") == content else None
