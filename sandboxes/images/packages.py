"""An image's content from the Debian packages that are installed on this machine: no registry, no download.

dpkg knows which files belong to which package (`/var/lib/dpkg/info/*.list`); those of the wanted packages and of all
that they need, with the few files that installing them made, are a root that works.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rollenv.sandboxes.errors import SandboxError

WANTED = ("git", "mount", "patch", "procps", "python3", "python3-pytest")
"""What the default image has, beside Debian's essential packages and what these need."""
_USED_BY = ("/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/lintian",
            "/usr/share/bug", "/var/lib/dpkg", "/usr/share/bash-completion")  # fmt: skip
_PASSWD = (
    "root:x:0:0:root:/tmp:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/sh\nagent:x:1000:1000:agent:/tmp:/bin/bash\n"
)
_GROUP = "root:x:0:\nnogroup:x:65534:\nagent:x:1000:\n"
_MADE = {
    "/etc/passwd": _PASSWD,
    "/etc/group": _GROUP,
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "/etc/gitconfig": "[safe]\n\tdirectory = *\n[user]\n\tname = agent\n\temail = agent@sandbox\n"
    "[init]\n\tdefaultBranch = main\n",
}
_FOLDERS = ("/workspace", "/tmp", "/home", "/root", "/proc", "/dev", "/sys", "/run", "/var/tmp", "/opt")


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    architecture: str
    needs: tuple[tuple[str, ...], ...]
    """For each thing needed, the packages that would do."""
    provides: tuple[str, ...]
    bytes: int
    essential: bool
    """Others rely on it without saying so."""


class Dpkg:
    """What is installed here.

    Args:
        root: the machine's root folder.

    Raises:
        SandboxError: this machine has no dpkg.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        status = root / "var/lib/dpkg/status"
        if not status.is_file():
            raise SandboxError(
                "this machine has no Debian packages to make an image of: start a container engine that reaches a "
                "registry, or give the image as an archive (rollenv images build NAME --from TAR)"
            )
        parsed = map(_parse, status.read_text(errors="replace").split("\n\n"))
        self.packages = {package.name: package for package in parsed if package is not None}
        self._providers: dict[str, str] = {}
        for package in self.packages.values():
            for name in package.provides:
                self._providers.setdefault(name, package.name)

    def closure(self, wanted: Iterable[str]) -> list[Package]:
        """These packages and everything that they need, by name.

        Raises:
            SandboxError: some are not installed.
        """
        essential = [package.name for package in self.packages.values() if package.essential]
        wanted = [*wanted, *essential]
        missing = [name for name in wanted if name not in self.packages]
        if missing:
            raise SandboxError(
                "the image needs packages that this machine lacks: apt-get install -y --no-install-recommends "
                + " ".join(missing)
            )
        found: dict[str, Package] = {}
        todo = wanted
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found[name] = package = self.packages[name]
            for choices in package.needs:
                known = (c if c in self.packages else self._providers.get(c) for c in choices)
                todo += [next(filter(None, known), "")]
            todo = [name for name in todo if name]
        return [found[name] for name in sorted(found)]

    def files(self, packages: Iterable[Package]) -> list[str]:
        """Absolute paths of the packages' files, folders and links, parents first."""
        paths = {path for package in packages for path in self._listed(package)}
        paths -= {path for path in paths if path.startswith(_USED_BY)}
        paths |= set(self._made_by_installing(paths))
        return sorted(path for path in paths if os.path.lexists(self._at(path)))

    def _listed(self, package: Package) -> Iterator[str]:
        info = self.root / "var/lib/dpkg/info"
        for name in (f"{package.name}.list", f"{package.name}:{package.architecture}.list"):
            with contextlib.suppress(FileNotFoundError):
                for path in (info / name).read_text().splitlines():
                    yield self._merged(path)

    def _merged(self, path: str) -> str:
        """`/bin/sh` lies in `/usr/bin` where `/bin` is a link, whatever the package says."""
        top, _, rest = path.lstrip("/").partition("/")
        if rest and (self.root / top).is_symlink():
            return f"/{os.readlink(self.root / top).strip('/')}/{rest}"
        return "/" + path.strip("/").removeprefix(".").strip("/")

    def _made_by_installing(self, paths: set[str]) -> Iterator[str]:
        for path in paths:
            if path.endswith(".py"):  # compiled when its package was installed
                folder, name = os.path.split(path)
                cache = f"{folder}/__pycache__"
                for compiled in self._at(cache).glob(f"{name[:-3]}.cpython-*.pyc"):
                    yield from (cache, f"{cache}/{compiled.name}")
        for folder in ("/etc/alternatives", "/usr/bin", "/usr/sbin"):  # links such as sh and awk
            for entry in os.scandir(self._at(folder)):
                if entry.is_symlink() and os.path.realpath(entry.path) in paths:
                    yield f"{folder}/{entry.name}"
        yield from (f"/{name}" for name in os.listdir(self.root) if (self.root / name).is_symlink())

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def digest(packages: Iterable[Package]) -> str:
    """Names the content: the same packages in the same versions make the same image."""
    said = "\n".join([f"{p.name} {p.version} {p.architecture}" for p in packages] + [*_MADE.values(), *_FOLDERS])
    return "deb-" + hashlib.sha256(said.encode()).hexdigest()[:32]


def pack(dpkg: Dpkg, packages: Iterable[Package], to: io.BufferedIOBase | io.BufferedWriter) -> None:
    """Writes the image's content as a tar archive, everything owned by root and nothing setuid."""
    with tarfile.open(fileobj=to, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for path in dpkg.files(packages):
            if path in ("/", *_MADE, *_FOLDERS):
                continue
            source = dpkg.root / path.lstrip("/")
            if source.is_symlink() or source.is_file() or source.is_dir():
                archive.add(source, path.lstrip("/"), recursive=False, filter=_plain)
        for path in _FOLDERS:
            member = tarfile.TarInfo(path.lstrip("/"))
            member.type, member.mode = tarfile.DIRTYPE, 0o1777 if path.endswith("tmp") else 0o755
            archive.addfile(member)
        for path, text in _MADE.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode &= 0o1777
    return member


def _parse(paragraph: str) -> Package | None:
    """One paragraph of dpkg's status file; None for a package that is not installed."""
    fields: dict[str, str] = {}
    key = ""
    for line in paragraph.splitlines():
        if line[:1].isspace():
            fields[key] += line
        else:
            key, _, value = line.partition(":")
            fields[key] = value.strip()
    if "installed" not in fields.get("Status", "").split():
        return None
    needs = ", ".join(filter(None, (fields.get("Pre-Depends"), fields.get("Depends"))))
    return Package(
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields.get("Architecture", "all"),
        needs=tuple(tuple(map(_name, choice.split("|"))) for choice in needs.split(",") if choice.strip()),
        provides=tuple(map(_name, filter(str.strip, fields.get("Provides", "").split(",")))),
        bytes=int(fields.get("Installed-Size", 0)) * 1024,
        essential=fields.get("Essential") == "yes",
    )


def _name(word: str) -> str:
    """A package's name without its version and architecture."""
    return re.sub(r"\(.*?\)|\[.*?\]", "", word).strip().partition(":")[0]
