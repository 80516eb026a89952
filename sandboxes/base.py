"""What all backends share: commands, shells and files, on top of one thing that each does its own way: start a process.

Files are read and written by programs inside the sandbox: a path means what it means in there, whatever was linked
where, and this process never opens a file that an agent named.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import stat
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from rollenv.sandboxes.errors import SandboxDied, SandboxError
from rollenv.sandboxes.network import Gateway
from rollenv.sandboxes.process import KILL_SECONDS, NOT_STARTED, Captured, Process, collect
from rollenv.sandboxes.protocol import Command, ExecResult, FileInfo, Snapshot
from rollenv.sandboxes.shell import Shell
from rollenv.sandboxes.spec import SandboxSpec, check_env_vars

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOOL_SECONDS = 120.0
_NOTES_LIMIT = 1 << 16
_P = TypeVar("_P", bound=Process)


class BaseSandbox(ABC):
    """A sandbox whose backend knows how to start a process in it."""

    backend: str

    def __init__(self, id: str, spec: SandboxSpec) -> None:
        self.id, self.spec = id, spec
        self._shells: list[Shell] = []
        self._beginning: set[asyncio.Task[Any]] = set()
        self._image_env: dict[str, str] = {}
        self._gateway: Gateway | None = None
        self._died = ""
        self.closed = False

    # -- a backend's part --------------------------------------------------------------------------------------

    @abstractmethod
    async def _spawn(self, argv: Sequence[str], env: Mapping[str, str], user: str, *, shell: bool) -> Process:
        """Starts a process. `shell`: it stays while others come and go."""

    @abstractmethod
    async def _oom_kills(self) -> int:
        """How often memory ran out so far."""

    @abstractmethod
    async def snapshot(self) -> Snapshot: ...

    @abstractmethod
    async def restore(self, snapshot: Snapshot | None = None) -> None: ...

    @abstractmethod
    async def _remove(self) -> None:
        """Ends every process and removes everything that the sandbox was."""

    # -- commands ----------------------------------------------------------------------------------------------

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
        """See `Sandbox.exec`."""
        self._check_alive()
        argv = [self.spec.shell, "-c", cmd] if isinstance(cmd, str) else list(cmd)
        if not cmd or any("\0" in word for word in argv):
            raise SandboxError("a command is one string, or a program and its arguments, without null characters")
        before = await self._oom_kills()
        process = await self._spawn(self._at(cwd, argv), self._env(env), user or self.spec.user, shell=False)
        fed = stdin.encode() if isinstance(stdin, str) else stdin
        seconds = self.spec.exec_timeout if timeout is None else timeout
        seen = await self._collect(process, fed, seconds, self.spec.output_limit)
        return ExecResult(
            exit_code=seen.exit_code,
            stdout=seen.stdout.text(),
            stderr=seen.stderr.text(),
            seconds=seen.seconds,
            timed_out=seen.timed_out,
            oom=await self._oom_kills() > before,
            flooded=seen.flooded,
            truncated=seen.stdout.truncated or seen.stderr.truncated,
        )

    async def _begun(self, beginning: Coroutine[Any, Any, _P]) -> _P:
        """Awaits a process's start to its end: one that is given up halfway leaves a process that nobody knows.

        Cancelled meanwhile, it ends the process as soon as there is one.
        """
        task = asyncio.ensure_future(beginning)
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(_give_up(task)))
            raise

    async def _all_begun(self) -> None:
        if self._beginning:  # they are others': not cancelled with whoever waits for them
            await asyncio.wait(self._beginning)

    def shell(self, *, env: Mapping[str, str] | None = None, cwd: str | None = None, user: str | None = None) -> Shell:
        """See `Sandbox.shell`."""
        self._check_alive()
        argv, variables = self._at(cwd, [self.spec.shell]), self._env(env)

        async def spawn() -> Process:
            self._check_alive()
            return await self._spawn(argv, variables, user or self.spec.user, shell=True)

        shell = Shell(spawn, self._oom_kills, self.spec.exec_timeout, self.spec.output_limit)
        self._shells.append(shell)
        return shell

    def _at(self, cwd: str | None, argv: Sequence[str]) -> list[str]:
        """A command in a folder. A shell inside looks for both, and says the same about a missing one everywhere."""
        return ["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", self._path(cwd), *argv]

    def _env(self, more: Mapping[str, str] | None) -> dict[str, str]:
        check_env_vars(more or {})
        ours = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "SHELL": self.spec.shell}
        doors = self._gateway.env if self._gateway else {}
        return {**ours, **self._image_env, **doors, **self.spec.env, **(more or {})}

    def _path(self, path: str | None) -> str:
        if path is not None and "\0" in path:
            raise SandboxError("a path cannot have null characters in it")
        return posixpath.join(self.spec.workdir, path) if path else self.spec.workdir

    async def _collect(self, process: Process, stdin: bytes | None, seconds: float, limit: int) -> Captured:
        try:
            seen = await collect(process, stdin, seconds, limit)
        except TimeoutError as error:
            await self._die("a process in it cannot be ended")
            raise self._gone() from error
        if seen.exit_code == NOT_STARTED:
            raise SandboxError(f"a command cannot be started in sandbox {self.id}: {_reason(seen)}")
        return seen

    # -- files -------------------------------------------------------------------------------------------------

    async def read(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """See `Sandbox.read`."""
        script = '[ -e "$1" ] || exit 3; [ -f "$1" ] || exit 4; exec head -c "$2" <"$1"'
        done = await self._tool(script, self._path(path), str(limit + 1), limit=limit + 1)
        reasons = {3: "does not exist", 4: "is not a file"}
        if done.exit_code:
            raise SandboxError(f"cannot read '{path}' in the sandbox: {_reason(done, reasons)}")
        if done.stdout.total > limit:
            raise SandboxError(
                f"'{path}' in the sandbox is larger than {limit} bytes: read a part of it, or raise 'limit'"
            )
        return done.stdout.bytes()

    async def write(self, path: str, content: bytes | str, *, mode: int = 0o644) -> None:
        """See `Sandbox.write`."""
        # Each program that need not be started saves a millisecond.
        script = 'd=${1%/*}/; { [ -d "$d" ] || mkdir -p "$d"; } && cat >"$1" && chmod "$2" "$1"'
        data = content.encode() if isinstance(content, str) else content
        done = await self._tool(script, self._path(path), f"{mode:o}", stdin=data)
        if done.exit_code:
            raise SandboxError(f"cannot write '{path}' in the sandbox: {_reason(done)}")

    async def list(self, path: str = ".") -> list[FileInfo]:
        """See `Sandbox.list`."""
        # Names and figures come apart: a name may have anything in it.
        script = (
            'cd "$1" && find . -mindepth 1 -maxdepth 1 -exec stat -c "%f %s" {} + && echo && '
            "find . -mindepth 1 -maxdepth 1 -print0"
        )
        done = await self._tool(script, self._path(path), limit=64 << 20)
        if done.exit_code:
            raise SandboxError(f"cannot list '{path}' in the sandbox: {_reason(done)}")
        figures, _, names = b"\n".join([b"", done.stdout.bytes()]).partition(b"\n\n")
        listed = [name[2:].decode("utf-8", "surrogateescape") for name in names.split(b"\0") if name]
        lines = figures.split()
        if len(lines) != 2 * len(listed):
            raise SandboxError(f"'{path}' in the sandbox changed while it was listed: try again")
        entries = [
            FileInfo(name, _kind(int(mode, 16)), int(size))
            for name, mode, size in zip(listed, lines[::2], lines[1::2], strict=True)
        ]
        return sorted(entries, key=lambda entry: entry.name)

    async def upload(self, tar: bytes, path: str = ".") -> None:
        """See `Sandbox.upload`."""
        unzip = "z" if tar[:2] == b"\x1f\x8b" else ""
        script = f'{{ [ -d "$1" ] || mkdir -p "$1"; }} && exec tar -x{unzip}of - -C "$1"'
        done = await self._tool(script, self._path(path), stdin=tar)
        if done.exit_code:
            raise SandboxError(f"cannot unpack an archive into '{path}' in the sandbox: {_reason(done)}")

    async def download(self, path: str = ".", *, limit: int = 256 << 20) -> bytes:
        """See `Sandbox.download`."""
        script = (
            'if [ -d "$1" ]; then exec tar -cf - -C "$1" .; fi; '
            'exec tar -cf - -C "$(dirname "$1")" -- "$(basename "$1")"'
        )
        done = await self._tool(script, self._path(path), limit=limit)
        if done.stdout.truncated:
            raise SandboxError(
                f"'{path}' in the sandbox is larger than {limit} bytes: take a part of it, or raise 'limit'"
            )
        if done.exit_code:
            raise SandboxError(f"cannot pack '{path}' in the sandbox: {_reason(done)}")
        return done.stdout.bytes()

    async def _tool(self, script: str, *args: str, stdin: bytes | None = None, limit: int = _NOTES_LIMIT) -> Captured:
        """Runs a script of ours as the spec's user, with an environment that nobody changed."""
        self._check_alive()
        argv = ["/bin/sh", "-c", script, "sh", *args]
        process = await self._spawn(argv, {"PATH": PATH, "LC_ALL": "C"}, self.spec.user, shell=False)
        seen = await self._collect(process, stdin, _TOOL_SECONDS, limit)
        if seen.timed_out:
            raise SandboxError(f"a file operation in the sandbox took longer than {_TOOL_SECONDS:g} s")
        return seen

    # -- life --------------------------------------------------------------------------------------------------

    async def _end_shells(self) -> None:
        for shell in self._shells:
            await shell.close()

    def _check_alive(self) -> None:
        if self._died:
            raise self._gone()
        if self.closed:
            raise SandboxDied(f"sandbox {self.id} is closed: create another")

    def _gone(self) -> SandboxDied:
        return SandboxDied(f"sandbox {self.id} died: {self._died}; create another")

    async def _die(self, why: str) -> None:
        """Gives the sandbox up: what is left of it is removed, and every later call raises."""
        if not self._died:
            self._died = why
            await self._end()

    def _owned(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.sandbox != self.id:
            raise SandboxError(f"a snapshot of sandbox {snapshot.sandbox} cannot be restored in sandbox {self.id}")
        return snapshot

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if not self.closed:
            self.closed = True
            # To its end, whatever happens to the caller: half a removal leaves something behind.
            await asyncio.shield(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        await self._remove()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _give_up(beginning: asyncio.Task[_P]) -> None:
    """Ends what has just been started; who wanted it hears of its own cancellation, not of what fails here."""
    with contextlib.suppress(Exception):
        process = await beginning
        await process.kill()
        # Its end may have consequences for others: it is over when they are.
        await asyncio.wait_for(process.wait(), KILL_SECONDS)


def _kind(mode: int) -> Literal["file", "folder", "link", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


def _reason(done: Captured, known: Mapping[int, str] | None = None) -> str:
    """Why a tool failed, in its own last words."""
    lines = done.stderr.text().strip().splitlines()
    last = lines[-1] if lines else f"exit code {done.exit_code}"
    return (known or {}).get(done.exit_code) or last.removeprefix("sh: ")


async def started(start: Awaitable[None], sandbox: BaseSandbox, what: str) -> None:
    """Waits until a sandbox is ready; closes one that cannot be.

    Args:
        start: what makes it ready, within `spec.create_timeout` seconds.
        what: the sandbox, for a message.

    Raises:
        SandboxDied: it took too long. Whatever `start` raises is raised here as well.
    """
    seconds = sandbox.spec.create_timeout
    try:
        async with asyncio.timeout(seconds):
            await start
    except BaseException as error:
        await sandbox.close()
        if isinstance(error, TimeoutError):
            raise SandboxDied(f"{what} was not ready in {seconds:g} s: try again") from error
        raise
