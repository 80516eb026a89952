"""Backends by name. A package brings one with an entry point in the group `rollenv.sandboxes`: `name = module`, where
the module has `async create(spec, ledger) -> Sandbox` and `why_not() -> str` (empty when it can be used here)."""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.metadata
from types import ModuleType

from rollenv.errors import RollenvError, did_you_mean
from rollenv.sandboxes.errors import EngineUnavailable, SandboxError
from rollenv.sandboxes.ledger import Ledger
from rollenv.sandboxes.protocol import Sandbox
from rollenv.sandboxes.spec import SandboxSpec

_OURS = {
    "bubblewrap": "rollenv.sandboxes.bubblewrap",
    "docker": "rollenv.sandboxes.docker",
    "subprocess": "rollenv.sandboxes.subprocess",
}
TRUSTING = "subprocess"
"""The backend that contains nothing: never chosen, only named."""


@functools.cache
def _modules() -> dict[str, str]:
    brought = importlib.metadata.entry_points(group="rollenv.sandboxes")
    return {**{entry.name: entry.value for entry in brought}, **_OURS}


def backend_names() -> list[str]:
    """Names of all backends, whether they can be used here or not."""
    return list(_modules())


def backend_module(name: str) -> ModuleType:
    """The module of a backend.

    Raises:
        RollenvError: there is none of that name.
    """
    modules = _modules()
    if name not in modules:
        raise RollenvError(
            f"no sandbox backend '{name}'{did_you_mean(name, modules)} (known: {', '.join(sorted(modules))})"
        )
    return importlib.import_module(modules[name])


def available() -> list[str]:
    """The backends that contain what they run and can be used here, the fastest first."""
    return [name for name in ("bubblewrap", "docker") if not backend_module(name).why_not()]


async def create(spec: SandboxSpec | None = None, *, backend: str | None = None) -> Sandbox:
    """Makes a sandbox, after reaping what dead owners left (once per process).

    Args:
        spec: what it is to be; None: the defaults.
        backend: `bubblewrap`, `docker`, or one that a package brings; None: the first of these two that can be used
        here.
            `subprocess` contains nothing and is for trusted code: it must be asked for by this name.

    Raises:
        EngineUnavailable: the backend cannot be used here.
        UnknownImage: it has no such image.
        SandboxDied: the sandbox was not ready within `create_timeout`.
        SandboxError: the backend cannot make a sandbox like this.
    """
    if spec is not None and not isinstance(spec, SandboxSpec):
        raise SandboxError(f"a sandbox is made from a SandboxSpec, not from {type(spec).__name__}")
    name = await asyncio.to_thread(_choose) if backend is None else backend
    module = backend_module(name)
    ledger = await asyncio.to_thread(Ledger.current)
    made: Sandbox = await module.create(spec or SandboxSpec(), ledger)
    return made


def _choose() -> str:
    found = available()
    if not found:
        reasons = "; ".join(f"{name}: {backend_module(name).why_not()}" for name in ("bubblewrap", "docker"))
        raise EngineUnavailable(f"nothing here can contain untrusted code ({reasons})")
    return found[0]
