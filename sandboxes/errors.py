"""What goes wrong with sandboxes. All are `RollenvError`: one sentence that says what to do."""

from __future__ import annotations

from rollenv.errors import RollenvError


class SandboxError(RollenvError):
    """A sandbox cannot do what was asked: a missing file, a full disk, a wrong argument. The sandbox itself is
    sound."""


class SandboxDied(SandboxError):
    """The sandbox is gone or can no longer be trusted: a fault, which is tried again in a fresh one, never a reward."""


class EngineUnavailable(SandboxError):
    """What would run the sandbox is not there, does not answer, or may not be used by this user."""


class UnknownImage(SandboxError):
    """No such image where the backend looks for it."""


class PoolBusy(SandboxError):
    """Too many already wait for a sandbox of this pool."""
