"""Making images: for the engine, for bubblewrap, or for both from one archive."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rollenv.sandboxes import engine
from rollenv.sandboxes.errors import SandboxError, UnknownImage
from rollenv.sandboxes.images.packages import WANTED, Dpkg, Package, digest, pack
from rollenv.sandboxes.images.registry import remote_bytes
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


def make(name: str, backend: str, *, archive: Path | None = None, base: str = "", source: str = "auto") -> str:
    """Makes an image and says what was made.

    Args:
        name: of the image.
        backend: `docker` or `bubblewrap`.
        archive: a tar archive of its content; None: the default image's.
        base: an image that the archive is a layer over.
        source: of the default image: `registry`, `packages` or `auto`, which is the first of these that works.

    Raises:
        SandboxError: it cannot be made.
    """
    if source not in ("auto", "registry", "packages"):
        raise SandboxError(f"an image comes from 'registry', 'packages' or 'auto', not from '{source}'")
    if backend == "bubblewrap":
        if archive is None and source == "registry":
            raise SandboxError(
                "bubblewrap's images come from packages or archives: 'docker export' makes one of a container"
            )
        stored = store_default(name=name) if archive is None else store_archive(name, archive, base)
        return f"bubblewrap: {name}, {stored.bytes >> 20} MiB in {len(stored.layers)} layers"
    if backend != "docker":
        raise SandboxError(f"images are made for 'docker' and 'bubblewrap', not for '{backend}'")
    id = engine_archive(name, archive, base) if archive is not None else engine_default(name, source)
    return f"docker: {name}, {id}"


# -- for the container engine ----------------------------------------------------------------------------------

_BASE = "debian:bookworm-slim"
_REGISTRY = "registry"
_RECIPE = """\
FROM {base}
LABEL rollenv.content=registry
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends {packages} && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --home-dir /tmp --no-create-home --shell /bin/bash agent
WORKDIR /workspace
"""


def engine_default(name: str = DEFAULT_IMAGE, source: str = "auto") -> str:
    """The default image for the container engine; made unless it is there as the packages are now.

    Args:
        name: of the image.
        source: `registry` (Debian's image and its packages), `packages` (this machine's), or `auto`: the first where
            a registry answers, else the second.

    Returns:
        The image's id.

    Raises:
        SandboxError: it can be made from neither.
    """
    if source == "registry":
        return _from_registry(name)
    if source == "auto":
        if (found := _with_content(name, _REGISTRY)) is not None:
            return found
        with contextlib.suppress(SandboxError):
            remote_bytes(_BASE)
            return _from_registry(name)
    dpkg = Dpkg()
    packages = dpkg.closure(WANTED)
    content = digest(packages)
    if (found := _with_content(name, content)) is not None:
        return found
    with packed(dpkg, packages) as tar:
        return _import(name, tar, content)


def engine_archive(name: str, archive: Path, base: str = "") -> str:
    """An image for the container engine from a tar archive, alone or as a layer over another image.

    Raises:
        SandboxError: the archive cannot be read, or the engine refuses.
    """
    try:
        with archive.open("rb") as tar:
            return _layer(name, tar, base) if base else _import(name, tar, "archive")
    except OSError as error:
        raise SandboxError(f"cannot read the archive '{archive}': {error.strerror}") from error


def _import(name: str, tar: IO[bytes], content: str) -> str:
    api = engine.connect()
    changes = [f"LABEL rollenv.content={content}", "WORKDIR /workspace", 'CMD ["/bin/bash"]']
    with engine.told(f"import image '{name}'"):
        # In pieces: a file is sent with a length that the engine does not expect.
        pieces = iter(lambda: tar.read(1 << 20), b"")
        api.import_image_from_stream(pieces, repository=name, tag="latest", changes=changes)
        return str(api.inspect_image(name)["Id"])


def _layer(name: str, tar: IO[bytes], base: str) -> str:
    """One layer more: everything below is shared with all images of the same base."""
    with tempfile.TemporaryFile() as context, tarfile.open(fileobj=context, mode="w") as archive:
        recipe = f"FROM {base}\nADD layer.tar /\n".encode()
        for member, content in (("Dockerfile", io.BytesIO(recipe)), ("layer.tar", tar)):
            info = tarfile.TarInfo(member)
            info.size = content.seek(0, io.SEEK_END)
            content.seek(0)
            archive.addfile(info, content)
        archive.close()
        context.seek(0)
        return _build(name, context, f"image '{name}' over '{base}'")


def _from_registry(name: str) -> str:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        recipe = _RECIPE.format(base=_BASE, packages=" ".join(WANTED)).encode()
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(recipe)
        archive.addfile(info, io.BytesIO(recipe))
    context.seek(0)
    return _build(name, context, f"image '{name}' from a registry")


def _build(name: str, context: IO[bytes], what: str) -> str:
    api = engine.connect()
    with engine.told(f"build {what}"):
        for said in api.build(fileobj=context, custom_context=True, tag=f"{name}:latest", rm=True, decode=True):
            if "error" in said:
                last = str(said["error"]).strip().splitlines()[-1]
                raise SandboxError(f"the container engine cannot build {what}: {last}")
        return str(api.inspect_image(name)["Id"])


def _with_content(name: str, content: str) -> str | None:
    api = engine.connect()
    try:
        with engine.told(f"look for image '{name}'", name):
            found = api.inspect_image(name)
    except UnknownImage:
        return None
    return str(found["Id"]) if (found["Config"].get("Labels") or {}).get("rollenv.content") == content else None
