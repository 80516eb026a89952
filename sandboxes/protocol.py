"""What every backend's sandboxes can do, and what they answer with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from rollenv.sandboxes.spec import SandboxSpec

if TYPE_CHECKING:
    from rollenv.sandboxes.shell import Shell

Command = str | Sequence[str]
"""One string runs in the sandbox's shell; a sequence is a program and its arguments."""
Label = Literal["ok", "failed", "timeout", "oom", "flood"]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What became of a command."""

    exit_code: int
    """128 + n when signal n ended it."""
    stdout: str
    """Undecodable bytes are replaced; the middle is left out where there was more than `output_limit`."""
    stderr: str
    seconds: float
    """Wall time on this machine's clock, which nothing inside can turn."""
    timed_out: bool = False
    oom: bool = False
    """A process was killed for memory while the command ran."""
    flooded: bool = False
    """It was ended because its output knew no end."""
    truncated: bool = False
    """The middle of its output was left out."""

    @property
    def label(self) -> Label:
        """Why it ended, in a word."""
        if self.timed_out:
            return "timeout"
        if self.flooded:
            return "flood"
        if self.oom:
            return "oom"
        return "ok" if self.exit_code == 0 else "failed"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a folder; a link is told of, not followed."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a sandbox's writable folders, which that sandbox can go back to until it is closed."""

    sandbox: str
    layers: tuple[str, ...]


@runtime_checkable
class Sandbox(Protocol):
    """A place where code runs that nobody trusts. Also an asynchronous context manager, which closes it.

    Paths are looked up inside: whatever links an agent makes lead to nowhere else. Relative ones begin at `workdir`.
    Every method raises `SandboxDied` when the sandbox is gone.
    """

    id: str
    spec: SandboxSpec
    backend: str

    async def exec(
        self,
        cmd: Command,
        *,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Runs a command to its end; when this returns, nothing that it started is left.

        Args:
            cmd: what to run.
            timeout: seconds; None: the spec's `exec_timeout`.
            stdin: what it reads; None: nothing.
            env: variables beside those of the spec.
            cwd: where it runs; None: `workdir`.
            user: who runs it; None: the spec's.

        Raises:
            SandboxError: the command could not even be started.
        """
        ...

    def shell(self, *, env: Mapping[str, str] | None = None, cwd: str | None = None, user: str | None = None) -> Shell:
        """A shell that remembers: variables, functions and the working directory stay from command to command."""
        ...

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """A file's content.

        Raises:
            SandboxError: it is missing, not a file, or larger than `limit` bytes.
        """
        ...

    async def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file, making the folders above it.

        Raises:
            SandboxError: it cannot be written.
        """
        ...

    async def list(self, path: str = ".") -> list[FileInfo]:
        """A folder's entries, sorted by name.

        Raises:
            SandboxError: it cannot be read.
        """
        ...

    async def upload(self, tar: bytes, path: str = ".") -> None:
        """Unpacks a tar archive (plain or gzip) into a folder, which is made if it is missing.

        Raises:
            SandboxError: the archive is broken, or would leave the folder.
        """
        ...

    async def download(self, path: str = ".", *, limit: int = 256 << 20) -> bytes:
        """A tar archive of a folder's content or of one file. Open it with `rollenv.sandboxes.unpack`.

        Raises:
            SandboxError: it cannot be read, or is larger than `limit` bytes.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Keeps the writable folders as they are. Ends every process; shells begin anew."""
        ...

    async def restore(self, snapshot: Snapshot | None = None) -> None:
        """Goes back to a snapshot; None: to how it was made. Ends every process; shells begin anew.

        Raises:
            SandboxError: a snapshot of another sandbox.
        """
        ...

    async def close(self) -> None:
        """Ends every process and removes everything that it was. May be called again."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
