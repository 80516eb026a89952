"""What a set of tasks will need of images, before anything is pulled or built: what is there, what is not, how
large."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollenv.sandboxes.errors import EngineUnavailable, SandboxError, UnknownImage
from rollenv.sandboxes.images.packages import WANTED, Dpkg
from rollenv.sandboxes.images.registry import RegistryError, remote_bytes
from rollenv.sandboxes.images.store import ImageStore
from rollenv.sandboxes.spec import DEFAULT_IMAGE

UNPACKED = 2.5
"""Bytes on the disk for each byte that a registry sends: what gzip makes of a Debian system, the other way round."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What is to be done about one image."""

    image: str
    action: Literal["there", "build", "pull", "missing"]
    transfer: int = 0
    """Bytes that a registry will send."""
    disk: int = 0
    """Bytes that it will take on the disk beside what is there; for one that is there, bytes that it takes."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about all images of a set of tasks."""

    backend: str
    images: tuple[ImagePlan, ...]
    free: int
    """Bytes free where images are kept."""

    @property
    def needed(self) -> int:
        """Bytes on the disk that pulling and building will take."""
        return sum(image.disk for image in self.images if image.action in ("build", "pull"))

    @property
    def missing(self) -> list[str]:
        """Images that can neither be pulled nor built."""
        return [image.image for image in self.images if image.action == "missing"]

    @property
    def fits(self) -> bool:
        """Whether the disk is large enough."""
        return self.needed <= self.free


def plan(images: Iterable[str], backend: str, store: ImageStore | None = None) -> Plan:
    """Looks at images, each named once or often, and touches nothing.

    Raises:
        EngineUnavailable: there is no engine to ask.
        RollenvError: no such backend.
    """
    names = sorted(set(images))
    if backend == "bubblewrap":
        store = store or ImageStore()
        looked = [_in_store(name, store) for name in names]
        return Plan(backend, tuple(looked), _free(store.folder))
    if backend != "docker":
        raise SandboxError(f"images are for the backends 'docker' and 'bubblewrap', not for '{backend}'")
    return _in_engine(names)


def _in_store(name: str, store: ImageStore) -> ImagePlan:
    try:
        return ImagePlan(name, "there", disk=store.find(name).bytes)
    except UnknownImage as error:
        return _from_packages() if name == DEFAULT_IMAGE else ImagePlan(name, "missing", note=str(error))


def _in_engine(names: list[str]) -> Plan:
    from rollenv.sandboxes import engine

    api = engine.connect()
    looked = []
    for name in names:
        try:
            with engine.told(f"look for image '{name}'", name):
                looked.append(ImagePlan(name, "there", disk=int(api.inspect_image(name)["Size"])))
        except EngineUnavailable:
            raise
        except SandboxError:
            looked.append(_from_packages() if name == DEFAULT_IMAGE else _from_registry(name))
    with engine.told("describe itself"):
        root = Path(api.info().get("DockerRootDir") or "/")
    return Plan("docker", tuple(looked), _free(root))


def _from_packages() -> ImagePlan:
    try:
        packages = Dpkg().closure(WANTED)
    except SandboxError as error:
        return ImagePlan(DEFAULT_IMAGE, "missing", note=str(error))
    note = f"from {len(packages)} packages of this machine"
    return ImagePlan(DEFAULT_IMAGE, "build", disk=sum(package.bytes for package in packages), note=note)


def _from_registry(name: str) -> ImagePlan:
    try:
        size = remote_bytes(name)
    except RegistryError as error:
        return ImagePlan(name, "missing", note=str(error))
    return ImagePlan(name, "pull", transfer=size, disk=int(size * UNPACKED))


def _free(folder: Path) -> int:
    """Bytes free on the disk that a folder is, or will be, on."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free
