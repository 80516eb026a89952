"""Sandboxes of namespaces, made by bubblewrap in milliseconds. Linux only; no engine, no daemon.

A sandbox is a **holder**, a shell with namespaces of its own for mounts and network, in which the writable folders are
laid out. Each command is a bubblewrap of its own inside these, with fresh namespaces for users, processes, IPC and host
name: whatever it started dies with it. The holder ends when this process does, and its mounts with it, so that nothing
is left on the machine but an empty control group, which the ledger knows.

As root, commands run as a user of this machine that owns nothing (`SANDBOX_ID`) and are bounded by control groups. As
any other user they run as that user; where control groups cannot be written, `memory` bounds each process (RLIMIT_AS)
and `cpus` is not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from rollenv.sandboxes import seccomp
from rollenv.sandboxes.base import PATH, BaseSandbox, started
from rollenv.sandboxes.cgroups import Cgroup, hierarchies, make_cgroup, remove_cgroup
from rollenv.sandboxes.errors import EngineUnavailable, SandboxError
from rollenv.sandboxes.images.store import SANDBOX_ID, ImageStore, StoredImage
from rollenv.sandboxes.ledger import Ledger
from rollenv.sandboxes.network import open_gateway
from rollenv.sandboxes.orphans import see_to
from rollenv.sandboxes.overlay import Overlay, WritableFolder
from rollenv.sandboxes.process import KILL_SECONDS, NOT_STARTED, Process, Writer, discard_after
from rollenv.sandboxes.protocol import Snapshot
from rollenv.sandboxes.spec import SandboxSpec

# A folder that every Linux has. It is covered in a holder's own namespace only: no other process sees that.
_BASE = "/mnt"
_CLEAN = {"PATH": PATH, "LC_ALL": "C"}
_SHARED_MEMORY = 64 << 20
_JOIN = 'ulimit -c 0; while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; exec "$@"'
_TOOLS = ("bwrap", "nsenter", "prlimit", "mount", "umount", "chown")


def why_not() -> str:
    """Why this backend cannot be used here; empty when it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=PATH) is None]
    if sys.platform != "linux":
        return "bubblewrap needs Linux"
    if missing:
        packages = "bubblewrap" if missing == ["bwrap"] else "bubblewrap util-linux"
        return f"{', '.join(missing)} is not installed: apt-get install -y {packages}"
    if not seccomp.supported():
        return f"there is no filter of system calls for {os.uname().machine} processors: use docker"
    return _trial()


@functools.cache
def _trial() -> str:
    """Whether namespaces may be made: some systems forbid it."""
    words = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--unshare-net", "true"]
    done = subprocess.run(words, env=_CLEAN, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return f"no permission to make namespaces ({said[0]}): run as root, or set sysctl user.max_user_namespaces"


async def create(spec: SandboxSpec, ledger: Ledger) -> BubblewrapSandbox:
    """Makes a sandbox; see `rollenv.sandboxes.create`."""
    if reason := await asyncio.to_thread(why_not):
        raise EngineUnavailable(f"the bubblewrap backend cannot be used: {reason}")
    image = ImageStore().find(spec.image)
    _check_folders(spec, image)
    sandbox = BubblewrapSandbox(spec, image, ledger)
    await started(sandbox.start(), sandbox, "a bubblewrap sandbox")
    return sandbox


def _check_folders(spec: SandboxSpec, image: StoredImage) -> None:
    for folder in spec.folders:
        if folder.count("/") > 1 and not image.has_folder(folder):
            raise SandboxError(
                f"image '{spec.image}' has no folder '{folder}': a writable folder below another must be in the image"
            )


class BubblewrapSandbox(BaseSandbox):
    """See the module."""

    backend = "bubblewrap"

    def __init__(self, spec: SandboxSpec, image: StoredImage, ledger: Ledger) -> None:
        super().__init__(ledger.new_name(), spec)
        self._image, self._ledger = image, ledger
        self._root = os.geteuid() == 0
        self._group: Cgroup | None = None
        self._holder = Holder()
        self._running: set[BubblewrapProcess] = set()
        owner = f"{SANDBOX_ID}:{SANDBOX_ID}" if self._root else "0:0"
        self._overlay = Overlay(_BASE, self._folders(), owner, spec.disk, "" if self._root else ",userxattr")
        self._sees = self._view()

    async def start(self) -> None:
        """Makes the control group and the holder, and lays out the folders."""
        if hierarchies() is not None:
            self._ledger.record("cgroup", self.id)
            self._group = make_cgroup(self.id, self.spec)
        await self._holder.start(self._root)
        folders = " ".join(f"{_BASE}/m/{n}" for n in range(len(self.spec.folders)))
        layers = ":".join(map(str, reversed(self._image.layers)))
        root = f"mount --bind '{layers}' {_BASE}/image"
        if len(self._image.layers) > 1:
            root = f"mount -t overlay -o ro,lowerdir='{layers}' overlay {_BASE}/image"
        lay_out = [self._overlay.mount_disk(), f"mkdir -p {_BASE}/image {_BASE}/none {folders}", root]
        await self._holder.run("\n".join([*lay_out, self._overlay.attach()]))
        if self.spec.network:
            self._gateway = await open_gateway(self.spec.network, self._holder.pid)

    def _folders(self) -> list[WritableFolder]:
        return [
            WritableFolder(
                target=f"{_BASE}/m/{n}",
                lower=self._image.lower(folder) or f"{_BASE}/none",
                shared=folder == "/tmp",
            )
            for n, folder in enumerate(self.spec.folders)
        ]

    def _view(self) -> list[str]:
        """What a command sees, as arguments of bubblewrap: the image read-only, the writable folders, and no more."""
        view: list[str] = []
        for name, link in sorted(self._image.top().items()):
            if name in ("proc", "dev", "sys", "run") or f"/{name}" in self.spec.folders:
                continue
            view += (
                ["--ro-bind", f"{_BASE}/image/{name}", f"/{name}"] if link is None else ["--symlink", link, f"/{name}"]
            )
        for n, folder in enumerate(self.spec.folders):
            view += ["--bind", f"{_BASE}/m/{n}", folder]
        shared = ["--perms", "1777", "--size", str(min(_SHARED_MEMORY, self.spec.memory)), "--tmpfs", "/dev/shm"]
        return [*view, "--proc", "/proc", "--dev", "/dev", *shared, "--remount-ro", "/dev", "--remount-ro", "/"]

    # -- processes ---------------------------------------------------------------------------------------------

    async def _spawn(self, argv: Sequence[str], env: Mapping[str, str], user: str, *, shell: bool) -> Process:
        if self._holder.ended:
            await self._die("its namespaces are gone")
            raise self._gone()
        return await self._begun(self._begin(argv, env, user))

    async def _begin(self, argv: Sequence[str], env: Mapping[str, str], user: str) -> BubblewrapProcess:
        uid, gid = self._numbers(user)
        options = ["--unshare-user", "--uid", str(uid), "--gid", str(gid), "--disable-userns"]
        options += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]
        options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        options += [word for name, value in env.items() for word in ("--setenv", name, value)]
        options += [*self._sees, "--chdir", "/"]
        # Not on the command line: everybody on the machine could read the variables there.
        told, filtered = _memory_file("\0".join(options).encode() + b"\0"), _memory_file(seccomp.program())
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        words = [
            *self._into(),
            "bwrap",
            "--args",
            str(told),
            "--seccomp",
            str(filtered),
            "--json-status-fd",
            str(write),
        ]
        try:
            started = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", _JOIN, "sh", *words, "--", *argv,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=_CLEAN, cwd="/", pass_fds=(told, filtered, write),
            )  # fmt: skip
        except BaseException as error:
            os.close(read)
            if isinstance(error, OSError):
                raise SandboxError(f"cannot start a process for sandbox {self.id}: {error.strerror}") from error
            raise
        finally:
            for fd in (told, filtered, write):
                os.close(fd)
        process = BubblewrapProcess(started, read, self._running.discard)
        self._running.add(process)
        return process

    def _into(self) -> list[str]:
        """Arguments that bring a process into the control group and the holder's namespaces, and take its rights."""
        pid = str(self._holder.pid)
        if self._root:
            enter = ["nsenter", "-t", pid, "-m", "-n", "-S", str(SANDBOX_ID), "-G", str(SANDBOX_ID)]
        else:
            enter = ["nsenter", "-t", pid, "-U", "--preserve-credentials", "-m", "-n"]
        if self._group is not None:
            return [*self._group.procs, "--", *enter]
        return ["--", "prlimit", f"--as={self.spec.memory}", f"--nproc={self.spec.pids}", *enter]

    def _numbers(self, user: str) -> tuple[int, int]:
        first, _, second = user.partition(":")
        if first.isdecimal():
            return int(first), int(second) if second.isdecimal() else int(first)
        known = (0, 0) if first == "root" else self._image.user(first)
        if known is None:
            raise SandboxError(f"image '{self.spec.image}' knows no user '{user}': give numbers, such as 1000:1000")
        return known

    async def _oom_kills(self) -> int:
        return self._group.oom_kills() if self._group else 0

    # -- states ------------------------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        """See `Sandbox.snapshot`."""
        self._check_alive()
        await self._lay_out(self._overlay.freeze())
        return Snapshot(self.id, self._overlay.layers)

    async def restore(self, snapshot: Snapshot | None = None) -> None:
        """See `Sandbox.restore`."""
        self._check_alive()
        layers = () if snapshot is None else self._owned(snapshot).layers
        await self._lay_out(self._overlay.take_back(layers))

    async def _lay_out(self, commands: str) -> None:
        try:
            await self._end_processes()
            async with asyncio.timeout(self.spec.create_timeout):
                await self._holder.run(commands)
        except (TimeoutError, SandboxError) as error:
            await self._die(f"its folders cannot be laid out ({error})")
            raise self._gone() from error

    async def _end_processes(self) -> None:
        """Ends all that runs.

        Raises:
            SandboxError: something does not end.
        """
        await self._all_begun()
        running = list(self._running)
        for process in running:
            await process.kill()
        if running:
            ends = [asyncio.ensure_future(process.wait()) for process in running]
            await asyncio.wait(ends, timeout=KILL_SECONDS)
            if not all(end.done() and end.exception() is None for end in ends):
                raise SandboxError("a process does not end")
        await self._end_shells()

    async def _remove(self) -> None:
        with contextlib.suppress(SandboxError, TimeoutError):
            await self._end_processes()
        await self._holder.end()
        if self._group is not None:
            await asyncio.to_thread(remove_cgroup, self.id)
        self._ledger.forget("cgroup", self.id)


class Holder:
    """A shell of ours that keeps a sandbox's namespaces open and lays out its folders in them. Agents cannot see it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.pid = 0

    @property
    def ended(self) -> bool:
        """Whether it is not there."""
        return self._process is None or self._process.returncode is not None

    async def start(self, root: bool) -> None:
        """Starts it. It ends at the end of its input: when this process ends, however it does."""
        words = ["bwrap", "--dev-bind", "/", "/", "--unshare-net", "--cap-add", "ALL", "--die-with-parent"]
        words += [] if root else ["--unshare-user", "--uid", "0", "--gid", "0"]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *words, "/bin/sh", env=_CLEAN | {"LIBMOUNT_FORCE_MOUNT2": "always"}, cwd="/", stdin=pipe, stdout=pipe,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.pid = int(await self.run("echo $$"))

    async def run(self, commands: str) -> str:
        """Runs commands in its namespaces and returns what they said.

        Raises:
            SandboxError: one of them failed, or the holder ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(f"(set -e\n{commands}\n) </dev/null\nprintf '\\n:%d\\n' $?\n".encode())
                await self._process.stdin.drain()
            said: list[bytes] = []
            while line := await self._process.stdout.readline():
                said.append(line)
                if line.startswith(b":"):
                    break
        words = b"".join(said[:-1]).decode(errors="replace").strip()
        if not said or said[-1] != b":0\n":
            raise SandboxError(f"a sandbox's folders cannot be laid out: {words or 'its holder ended'}")
        return words

    async def end(self) -> None:
        """Ends it, and with it the namespaces that no process is in."""
        if self._process is None:
            return
        shell = None
        with contextlib.suppress(ProcessLookupError):
            shell = os.pidfd_open(self.pid) if self.pid else None
            self._process.kill()
        await self._process.wait()
        if shell is not None:
            await _gone(shell)
            see_to(self.pid, "sh")


class BubblewrapProcess:
    """One bubblewrap: its death is the death of all that runs in it."""

    def __init__(
        self, process: asyncio.subprocess.Process, status: int, on_end: Callable[[BubblewrapProcess], None]
    ) -> None:
        self._process, self._status = process, status
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin: Writer = process.stdin
        self.stdout, self.stderr = process.stdout, process.stderr
        self._on_end = on_end
        self._told = b""
        self._discarding: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[int] = asyncio.ensure_future(self._wait())

    async def wait(self) -> int:
        """See `Process.wait`."""
        return await asyncio.shield(self._ended)

    async def _wait(self) -> int:
        try:
            code = await self._process.wait()
            said = self._said()
            if "child-pid" in said:
                if (first := _open_first(said)) is not None:
                    await _gone(first)
                see_to(said["child-pid"], "bwrap")  # bubblewrap does not wait for it
        finally:
            os.close(self._status)
            self._on_end(self)
        if "exit-code" in said:
            return int(said["exit-code"])
        # Bubblewrap's own failure, which it has told on stderr; or its death, which took all others along.
        return NOT_STARTED if code > 0 and code < 128 else 128 - code if code < 0 else code

    def _said(self) -> dict[str, int]:
        """What it has said of itself so far, in whole lines. Not once it has ended."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._status, 1 << 16):
                self._told += part
        whole = self._told[: self._told.rfind(b"\n") + 1].splitlines()
        return {key: value for line in whole for key, value in json.loads(line).items() if isinstance(value, int)}

    async def kill(self) -> None:
        """See `Process.kill`."""
        first = await self._first()
        if first is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        else:  # bubblewrap ends with it
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(first, signal.SIGKILL)
            os.close(first)
        if self._discarding is None:
            self._discarding = asyncio.ensure_future(discard_after(self._ended, self.stdout, self.stderr))

    async def _first(self) -> int | None:
        """The first process of its namespace, whose death is the death of all; None when there is none.

        `--die-with-parent` binds it to bubblewrap only when it has laid out what it sees: if bubblewrap dies before
        that, it lives on. It begins, though, only when bubblewrap has said which it is.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                while not self._ended.done():
                    said = self._said()
                    if "child-pid" in said:
                        return _open_first(said)
                    if self._process.returncode is not None:
                        return None
                    await asyncio.sleep(0.002)
        return None


def _open_first(said: Mapping[str, int]) -> int | None:
    """A descriptor of the process that bubblewrap has told of; None when it has ended."""
    pid = said["child-pid"]
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        number = os.stat(f"/proc/{pid}/ns/pid").st_ino
        same = number == said.get("pid-namespace", number)
    except PermissionError:  # as it changes its user, which is right after its start
        same = True
    except OSError:
        same = False
    if same:
        return fd
    os.close(fd)  # it has ended, and its number may be another's by now
    return None


async def _gone(fd: int) -> None:
    """Waits until the first process of a namespace has ended, which is when the last one in there has."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(KILL_SECONDS):
            await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("rollenv", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
