"""Sandboxes in containers: one container each, made by Docker or by Podman through the same interface.

A container runs nothing but a shell that waits. Its root is made read-only and its writable folders are laid out in one
tmpfs (`overlay`) by short commands of ours, which run as root and may mount. Agents' commands have no capability: other
users lose them when they are started and cannot gain any (no-new-privileges), root drops them for good before it starts
(setpriv). One command runs at a time, beside any number of shells, and at its end everything is killed that no shell of
ours started: processes that are left would be nobody's otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.sandboxes import engine, seccomp
from rollenv.sandboxes.base import PATH, BaseSandbox, started
from rollenv.sandboxes.cgroups import MOUNT, oom_kills
from rollenv.sandboxes.errors import EngineUnavailable, SandboxError
from rollenv.sandboxes.ledger import Ledger
from rollenv.sandboxes.network import open_gateway
from rollenv.sandboxes.overlay import Overlay, WritableFolder
from rollenv.sandboxes.process import Captured, Process, Writer, collect
from rollenv.sandboxes.protocol import Snapshot
from rollenv.sandboxes.spec import MiB, SandboxSpec

_BASE = "/.sandbox"
_SHARED_MEMORY = 64 * MiB
_OWN_PIDS = 24
"""The waiting shell and what the engine itself runs in the container for a moment at each command."""
_OWN_MEMORY = 64 * MiB
"""For commands of ours in a container whose files fill its memory, until they are gone."""
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETPCAP", "SYS_ADMIN"]
"""Of our own commands, which mount, hand out folders and kill."""
_WITHOUT_CAPABILITIES = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]
_SETTLE_SECONDS = 5.0
_SWEEPS = 10
_LAST_WORDS_SECONDS = 0.3
_KILLED = 137
# Orphans are reaped by the first process: a shell that waits does that. Killing its sleep only makes it start another,
# and where memory is too full for that (`command eval`: an error does not end the shell), it tries again.
_WAIT = "while :; do command eval 'ROLLENV_SHELL=init sleep 2147483647 &'; wait; done"
# Files that fill the memory are nobody's, so that the kernel kills whatever process it likes: first the command, then
# what keeps it, and the first process of the container last. To ask for that takes no right.
_FIRST_TO_GO = "{ echo %d >/proc/self/oom_score_adj; } 2>/dev/null"
_COMMAND = f'{_FIRST_TO_GO % 500}; ({_FIRST_TO_GO % 1000}; exec "$@"); c=$?'
_ALONE = f"{_COMMAND}; kill -9 -1 2>/dev/null; exit $c"
_SHELL = f'{_FIRST_TO_GO % 1000}; exec "$@"'
# Kills what does not carry the name of a living shell ($k), until a round finds nothing new.
_SWEEP = r"""
i=0; while [ $i -lt 20 ]; do i=$((i + 1)); f=
  for p in /proc/[0-9]*; do
    n=${p#/proc/}; case $n in 1|$$) continue;; esac
    m=$(tr '\0' '\n' <$p/environ 2>/dev/null | sed -n 's/^ROLLENV_SHELL=//p' | head -n 1)
    case " init $k " in *" ${m:-none} "*) continue;; esac
    kill -9 $n 2>/dev/null && f=1
  done
  [ -n "$f" ] || break
done
"""
_BESIDE = f"k=$1; shift; {_COMMAND}{_SWEEP}exit $c"


def why_not() -> str:
    """Why this backend cannot be used here; empty when it can."""
    try:
        engine.connect()
    except EngineUnavailable as error:
        return str(error)
    return ""


async def create(spec: SandboxSpec, ledger: Ledger) -> DockerSandbox:
    """Makes a sandbox; see `rollenv.sandboxes.create`."""
    call = await asyncio.to_thread(engine.calls)
    sandbox = DockerSandbox(spec, ledger, call)
    await started(sandbox.start(), sandbox, "a container")
    return sandbox


class DockerSandbox(BaseSandbox):
    """See the module."""

    backend = "docker"

    def __init__(self, spec: SandboxSpec, ledger: Ledger, call: engine.Calls) -> None:
        super().__init__(ledger.new_name(), spec)
        self._ledger, self._call, self._api = ledger, call, call.api
        self._turn = asyncio.Lock()
        self._live: dict[str, DockerProcess] = {}
        self._users: dict[str, str] = {"root": "0:0"}
        self._oom_file: Path | None = None
        self._oom_seen, self._killed = 0, False
        self._folders = [WritableFolder(f, f, shared=f == "/tmp") for f in spec.folders]

    async def start(self) -> None:
        """Makes and starts the container, and lays out its folders."""
        image = self.spec.image
        found = await self._call(f"find image '{image}'", self._api.inspect_image, image, image=image)
        pairs = (pair.partition("=") for pair in found["Config"].get("Env") or ())
        self._image_env = {name: value for name, _, value in pairs}
        self._ledger.record("container", self.id, self._call.where)
        options = (await self._call("describe itself", self._api.info)).get("SecurityOptions") or ()
        # AppArmor's profile for containers forbids mounting, to everybody.
        self._unconfined = ["apparmor=unconfined"] if any("apparmor" in option for option in options) else []
        host = self._api.create_host_config(**self._limits())
        make = self._api.create_container_from_config
        config = self._api.create_container_config(
            image, ["/bin/sh", "-c", _WAIT], entrypoint=[], user="0:0", working_dir="/", host_config=host,
            labels=self._ledger.labels, hostname="sandbox",
        )  # fmt: skip
        await self._call("make a container", make, config, self.id, image=image)
        await self._call("start a container", self._api.start, self.id)
        state = await self._call("look at a container", self._api.inspect_container, self.id)
        pid = state["State"].get("Pid", 0)
        self._oom_file = _oom_file(pid, state["Id"])
        if self._oom_file is not None:
            _spare(pid)
        if self.spec.network:
            self._gateway = await open_gateway(self.spec.network, pid or 0)
        await self._lay_out_first(rootless=any("rootless" in option for option in options))

    def _limits(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "network_mode": "none",
            "mem_limit": spec.memory,
            "memswap_limit": spec.memory,
            "nano_cpus": int(spec.cpus * 1e9),
            "pids_limit": spec.pids + _OWN_PIDS,
            "shm_size": min(_SHARED_MEMORY, spec.memory),
            "cap_drop": ["ALL"],
            "cap_add": _CAPABILITIES,
            "security_opt": ["no-new-privileges", f"seccomp={seccomp.profile()}", *self._unconfined],
            "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            # Whoever may write to the first process's output would fill the disk through a log.
            "log_config": {"Type": "none"},
            "ipc_mode": "private",
        }

    async def _lay_out_first(self, rootless: bool) -> None:
        owner, options = await self._numbers(self.spec.user), ",userxattr" if rootless else ""
        self._overlay = Overlay(_BASE, self._folders, owner, self.spec.disk, options)
        folders = " ".join(shlex.quote(folder.target) for folder in self._folders)
        commands = [
            f"mkdir -p {_BASE} {folders}",
            self._overlay.mount_disk(),
            self._overlay.attach(),
            # These three are files of the host's, outside every limit.
            "for f in /etc/hosts /etc/hostname /etc/resolv.conf; do mount -o remount,bind,ro $f || true; done",
            _COVER,
            "mount -o remount,bind,ro /",
        ]
        await self._privileged("\n".join(commands))

    async def _numbers(self, user: str) -> str:
        """A user as `uid:gid`."""
        first, _, second = user.partition(":")
        if first.isdecimal():
            return f"{first}:{second if second.isdecimal() else first}"
        if first not in self._users:
            named = shlex.quote(first)
            try:
                said = await self._privileged(f"id -u {named}; id -g {named}")
            except SandboxError as error:
                raise SandboxError(
                    f"image '{self.spec.image}' knows no user '{user}': give numbers, such as 1000:1000"
                ) from error
            self._users[first] = ":".join(said.split())
        return self._users[first]

    # -- processes ---------------------------------------------------------------------------------------------

    async def _spawn(self, argv: Sequence[str], env: Mapping[str, str], user: str, *, shell: bool) -> Process:
        name = f"s{secrets.token_hex(8)}" if shell else ""
        user = await self._numbers(user)
        await self._turn.acquire()
        return await self._begun(self._begin(argv, env, user, name))

    async def _begin(self, argv: Sequence[str], env: Mapping[str, str], user: str, name: str) -> DockerProcess:
        """Starts a process, in this turn; `name`: a shell's."""
        try:
            if name:
                words, more = ["/bin/sh", "-c", _SHELL, "sh", *argv], {"ROLLENV_SHELL": name}
            elif self._live:
                words, more = ["/bin/sh", "-c", _BESIDE, "sh", " ".join(self._live), *argv], {}
            else:
                words, more = ["/bin/sh", "-c", _ALONE, "sh", *argv], {}
            if user.startswith("0:"):
                words = [*_WITHOUT_CAPABILITIES, *words]
            id, stream = await self._start(words, {**env, **more}, user)
        except BaseException as error:
            self._turn.release()
            if isinstance(error, EngineUnavailable) or await self._stopped():
                await self._die("its container is gone")
                raise self._gone() from error
            raise
        process = DockerProcess(self, id, stream, name)
        if name:
            self._live[name] = process
            self._turn.release()
        return process

    async def _start(self, words: Sequence[str], env: Mapping[str, str], user: str) -> tuple[str, engine.Stream]:
        made = await self._call(
            "prepare a command", self._api.exec_create, self.id, list(words), stdin=True, environment=dict(env),
            user=user, workdir="/",
        )  # fmt: skip
        return made["Id"], await engine.open_stream(self._call.where, self._api._version, made["Id"])

    async def _privileged(self, commands: str, seconds: float | None = None) -> str:
        """Runs commands of ours as root, with capabilities, and returns what they said.

        Raises:
            SandboxError: they failed.
        """
        env = {"PATH": PATH, "LC_ALL": "C", "LIBMOUNT_FORCE_MOUNT2": "always"}
        id, stream = await self._start(["/bin/sh", "-c", f"set -e\n{commands}"], env, "0:0")
        seen = await collect(_Ours(self, id, stream), None, seconds or self.spec.create_timeout, 1 << 14)
        if seen.exit_code or seen.timed_out:
            raise SandboxError(f"a container's folders cannot be laid out: {_last_line(seen)}")
        return seen.stdout.text()

    async def _exit_code(self, id: str) -> int:
        """A command's exit code, once the engine knows that it ended. A container that is gone was killed."""
        for _ in range(int(_SETTLE_SECONDS / 0.02)):
            try:
                state = await self._call("look at a command", self._api.exec_inspect, id)
            except SandboxError:
                return _KILLED
            if not state["Running"] and state["ExitCode"] is not None:
                return int(state["ExitCode"])
            await asyncio.sleep(0.02)
        return _KILLED

    async def _kill(self, process: DockerProcess) -> None:
        """Kills everything but the living shells; the container, if that does not help."""
        keep = " ".join(name for name in self._live if name != process.name)
        commands = f"k={keep!r}\nset +e{_SWEEP}" if keep else "kill -9 -1 || true"
        # The engine learns of no other command's end while somebody does not take the output of one that has ended.
        asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, process.stream.discard)
        with contextlib.suppress(SandboxError):
            for _ in range(_SWEEPS):  # one that the engine had yet to begin was not there for the first
                await self._privileged(commands, _SETTLE_SECONDS)
                ended, _ = await asyncio.wait({process.stream.ended}, timeout=_SETTLE_SECONDS / _SWEEPS)
                if ended:
                    break
        if not process.stream.ended.done():
            # Full of processes, it takes no command of ours either: everything in it has to go.
            await self._die("its processes could not be ended otherwise")
            await asyncio.wait({process.stream.ended}, timeout=_SETTLE_SECONDS)
            process.stream.drop()

    async def _ended(self, process: DockerProcess) -> int:
        """What follows a process's end."""
        code = await self._exit_code(process.id)
        self._killed |= code == _KILLED
        if process.name:
            self._live.pop(process.name, None)
        if (process.name or code == _KILLED) and not self._died:
            # A shell leaves what it started in the background, and so does a command whose keeper was killed.
            await self._kill(process)
        if not process.name:
            self._turn.release()
        return code

    async def _stopped(self) -> bool:
        try:
            state = await self._call("look at a container", self._api.inspect_container, self.id)
        except SandboxError:
            return True
        return not state["State"]["Running"]

    async def _oom_kills(self) -> int:
        if self._oom_file is not None:
            return oom_kills(self._oom_file)
        if self._killed:  # an engine elsewhere: its container knows, but to ask takes a command
            self._killed = False
            files = "/sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control"
            seen = await self._tool(f"cat {files} 2>/dev/null | sed -n 's/^oom_kill //p'")
            self._oom_seen = int(seen.stdout.text().strip() or 0)
        return self._oom_seen

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
        await self._lay_out(self._overlay.take_back(layers) + _FRESH_SHARED_MEMORY)

    async def _lay_out(self, commands: str) -> None:
        await self._end_shells()
        async with self._turn:
            try:
                # Files that fill the memory leave none for commands of ours, either.
                full = await self._oom_kills() > 0
                if full:
                    await self._limit_memory(self.spec.memory + _OWN_MEMORY)
                await self._privileged(f"kill -9 -1 || true\numount {_BASE}\n{commands}\n{_COVER}")
                if full:
                    await self._limit_memory(self.spec.memory)
            except (SandboxError, TimeoutError) as error:
                await self._die(f"its folders cannot be laid out ({error})")
                raise self._gone() from error

    async def _limit_memory(self, limit: int) -> None:
        update = self._api.update_container
        await self._call("change a container's memory", update, self.id, mem_limit=limit, memswap_limit=limit)

    async def _remove(self) -> None:
        import docker.errors

        def remove() -> None:
            with contextlib.suppress(docker.errors.NotFound):
                self._api.remove_container(self.id, force=True, v=True)

        # What cannot be removed now stays in the ledger, for a later start.
        with contextlib.suppress(SandboxError):
            await self._call("remove a container", remove)
            self._ledger.forget("container", self.id)
        for process in list(self._live.values()):
            process.stream.drop()


# The layers are nobody's to see: they are used through the folders, not by their path.
_COVER = f"mount -t tmpfs -o ro,size=4k,mode=000 tmpfs {_BASE}"
_FRESH_SHARED_MEMORY = f"""
umount -l /dev/shm
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777,size={_SHARED_MEMORY} shm /dev/shm
"""


class DockerProcess:
    """A command in a container."""

    def __init__(self, sandbox: DockerSandbox, id: str, stream: engine.Stream, name: str) -> None:
        self._sandbox, self.id, self.stream, self.name = sandbox, id, stream, name
        self.stdin: Writer = stream
        self.stdout, self.stderr = stream.stdout, stream.stderr
        self._ended = asyncio.ensure_future(self._wait())

    async def wait(self) -> int:
        """See `Process.wait`."""
        return await asyncio.shield(self._ended)

    async def _wait(self) -> int:
        await asyncio.wait({self.stream.ended})
        return await self._sandbox._ended(self)

    async def kill(self) -> None:
        """See `Process.kill`."""
        if not self.stream.ended.done():
            await self._sandbox._kill(self)


class _Ours:
    """A command of ours, which ends by itself; after its time nobody waits for it any more."""

    def __init__(self, sandbox: DockerSandbox, id: str, stream: engine.Stream) -> None:
        self._sandbox, self._id, self._stream = sandbox, id, stream
        self.stdin: Writer = stream
        self.stdout, self.stderr = stream.stdout, stream.stderr

    async def wait(self) -> int:
        await asyncio.wait({self._stream.ended})
        return await self._sandbox._exit_code(self._id)

    async def kill(self) -> None:
        self._stream.drop()


def _oom_file(pid: int, container: str) -> Path | None:
    """Where an engine on this machine counts out-of-memory kills of a container; None for one that is elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if container not in path:
                continue
            file = {
                "memory": MOUNT / f"memory{path}/memory.oom_control",
                "": MOUNT / f"{path.lstrip('/')}/memory.events",
            }
            if controllers in file and file[controllers].is_file():
                return file[controllers]
    return None


def _spare(pid: int) -> None:
    """Lets a container's first process live when its memory is full, whatever commands do to their own rank."""
    with contextlib.suppress(OSError):  # not as root, or not allowed to: it is the last to go all the same
        Path(f"/proc/{pid}/oom_score_adj").write_text("-1000")


def _last_line(seen: Captured) -> str:
    lines = (seen.stderr.text() or seen.stdout.text()).strip().splitlines()
    return lines[-1] if lines else f"exit code {seen.exit_code}"
