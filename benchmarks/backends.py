"""Which sandboxes work on this machine: for benchmarks of what runs in them."""

from __future__ import annotations

from rollenv.sandboxes import DEFAULT_IMAGE, SandboxError
from rollenv.sandboxes.backends import backend_module
from rollenv.sandboxes.images import build

BACKENDS = ("bubblewrap", "docker")


def usable() -> list[str]:
    """The backends that work here, with the default image made."""
    found = []
    for name in BACKENDS:
        reason = backend_module(name).why_not()
        try:
            if not reason:
                build.make(DEFAULT_IMAGE, name, source="packages")
        except SandboxError as error:
            reason = str(error)
        if reason:
            print(f"{name} is left out: {reason}")
        else:
            found.append(name)
    return found
