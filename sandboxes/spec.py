"""What a sandbox is to be: a frozen value, checked when it is made, that says the same to every backend."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from rollenv.errors import RollenvError

MiB = 1 << 20
GiB = 1 << 30
DEFAULT_IMAGE = "rollenv/default"
"""python3, git and pytest: `rollenv images build` makes it."""

# What runs with privileges inside a container (mount, rm) and what it loads lie here: never writable for agents.
_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"[A-Za-z0-9.\-]+:[0-9]{1,5}")


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made of, and the limits that hold in it.

    Its root is the image, read-only; `workdir`, `/tmp` and `writable` can be written, and are copy-on-write over what
    the image has there. Files that are written lie in memory: they count against `disk` and against `memory`.

    Raises:
        RollenvError: a value that no sandbox can have.
    """

    image: str = DEFAULT_IMAGE
    cpus: float = 1.0
    """Cores' worth of processor time."""
    memory: int = 1 * GiB
    """Bytes, for all processes and written files together; nothing is swapped."""
    pids: int = 256
    """Processes and threads at the same time."""
    disk: int = 512 * MiB
    """Bytes in all writable folders together."""
    network: tuple[str, ...] = ()
    """`host:port` addresses that can be reached, through a proxy (`http_proxy`, `https_proxy`); none: no network at
    all. `localhost:port` is this machine's own port, and is found inside under the same address."""
    exec_timeout: float = 60.0
    """Seconds that a command may take when it is not told otherwise."""
    create_timeout: float = 60.0
    """Seconds until a sandbox that is not ready is given up."""
    user: str = "1000:1000"
    """Who runs commands, as `uid[:gid]` or a name that the image knows."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of every command. Nothing of this process's own environment gets in."""
    workdir: str = "/workspace"
    """Where commands run; made when the image lacks it."""
    writable: tuple[str, ...] = ()
    """Further folders that can be written."""
    shell: str = "/bin/bash"
    """What commands given as one string, and shell sessions, run in."""
    output_limit: int = 1 * MiB
    """Bytes kept of each of stdout and stderr: beginning and end. A command that says 64 times as much is ended."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        object.__setattr__(self, "network", _strings("network", self.network))
        object.__setattr__(self, "writable", _strings("writable", self.writable))
        _check_amounts(self)
        for key in ("image", "user", "shell"):
            _require(bool(getattr(self, key)) and "\0" not in getattr(self, key), key, "must not be empty")
        for folder in (self.workdir, *self.writable):
            _check_folder(folder)
        for address in self.network:
            _require(bool(_ADDRESS.fullmatch(address)), "network", f"has '{address}', which is not 'host:port'")
        check_env_vars(self.env)

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(SandboxSpec, **self._plain()), ()

    @functools.cached_property
    def key(self) -> str:
        """Sandboxes of specs with the same key are interchangeable (sha256 over all fields, hexadecimal)."""
        return hashlib.sha256(json.dumps(self._plain(), sort_keys=True).encode()).hexdigest()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that can be written, none inside another."""
        wanted = dict.fromkeys(map(str, map(PurePosixPath, (self.workdir, "/tmp", *self.writable))))
        return tuple(f for f in wanted if not any(f != g and PurePosixPath(f).is_relative_to(g) for g in wanted))

    def _plain(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return values | {"env": dict(self.env)}


def check_env_vars(env: Mapping[str, str]) -> None:
    """Raises RollenvError for a name or value that cannot be an environment variable."""
    for name, value in env.items():
        _require(bool(_ENV_NAME.fullmatch(name)), "env", f"has '{name}', which is not a variable's name")
        _require(isinstance(value, str) and "\0" not in value, "env", f"has no text for '{name}'")


def _check_amounts(spec: SandboxSpec) -> None:
    for key in ("memory", "pids", "disk", "output_limit"):
        value = getattr(spec, key)
        _require(isinstance(value, int) and not isinstance(value, bool), key, "must be a whole number")
    for key, least in (("memory", 8 * MiB), ("disk", 1 * MiB), ("pids", 4), ("output_limit", 1)):
        _require(getattr(spec, key) >= least, key, f"must be at least {least}")
    for key in ("cpus", "exec_timeout", "create_timeout"):
        value = getattr(spec, key)
        _require(isinstance(value, int | float) and 0.01 <= value < 1e9, key, "must be a positive number")


def _check_folder(folder: str) -> None:
    path = PurePosixPath(folder)
    where = "'workdir' and 'writable'"
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or "\0" in folder or "\n" in folder:
        raise RollenvError(f"{where} of a sandbox name folders such as '/workspace', not '{folder}'")
    if any(mark in folder for mark in ":,\\'\""):  # they mean something to overlay mounts
        raise RollenvError(f"{where} of a sandbox cannot have any of : , \\ ' \" in their names: '{folder}'")
    if any(path.is_relative_to(system) for system in _SYSTEM):
        raise RollenvError(
            f"'{folder}' belongs to the system of a sandbox, which stays read-only: choose another folder"
        )


def _strings(key: str, values: Iterable[str]) -> tuple[str, ...]:
    _require(not isinstance(values, str), key, "must be a sequence of strings")
    return tuple(values)


def _require(right: bool, key: str, words: str) -> None:
    if not right:
        raise RollenvError(f"'{key}' of a sandbox {words}")
