"""What hostile code tries, on every backend that contains: it meets its limits, the machine does not notice, and the
episode is told why it ended. Each test has small limits of its own, so that a hole would be found by an assertion and
not by a dead machine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import socket
import tarfile
import time
from pathlib import Path

import psutil
import pytest
from in_loop import in_loop

from rollenv.sandboxes import ExecResult, MiB, Sandbox, SandboxDied, SandboxError, SandboxSpec, create, unpack

TIGHT = SandboxSpec(memory=96 * MiB, disk=8 * MiB, pids=32, cpus=0.5, exec_timeout=8.0, output_limit=1 << 16)


CONNECT = """
import socket, sys
for family, address in ((2, ("127.0.0.1", int(sys.argv[1]))), (1, chr(0) + sys.argv[2]), (2, ("1.1.1.1", 53))):
    try:
        s = socket.socket(family)
        s.settimeout(2)
        s.connect(address)
        print("reached", address)
    except OSError:
        pass
"""


async def still_works(sandbox: Sandbox) -> bool:
    """Whether commands run, or the sandbox says in a sentence that it is lost."""
    try:
        return (await sandbox.exec("echo fine")).stdout == "fine\n"
    except SandboxDied as error:
        return "create another" in str(error)


@in_loop
async def test_a_fork_bomb_stays_within_its_processes(containing: str) -> None:
    before = len(psutil.pids())
    async with await create(TIGHT, backend=containing) as sandbox:
        bomb = asyncio.create_task(sandbox.exec("f() { f | f & f; }; f; while :; do f; done", timeout=3))
        most = 0
        while not bomb.done():
            most = max(most, len(psutil.pids()))
            await asyncio.sleep(0.1)
        assert (await bomb).label in ("timeout", "failed", "oom", "flood")
        # The bomb's own limit, what starts it, and what else this machine does.
        assert most - before < TIGHT.pids + 100
        assert await still_works(sandbox)


@in_loop
async def test_a_memory_bomb_is_killed_and_labelled(containing: str) -> None:
    async with await create(TIGHT, backend=containing) as sandbox:
        done = await sandbox.exec(["python3", "-c", "x = b'x' * (400 << 20); print('survived')"])
        assert done.oom
        assert (done.label, done.stdout) == ("oom", "")
        assert await still_works(sandbox)


@in_loop
async def test_files_in_memory_count_as_memory(containing: str) -> None:
    spec = SandboxSpec(memory=64 * MiB, disk=512 * MiB, pids=32, exec_timeout=10)
    async with await create(spec, backend=containing) as sandbox:
        done = await sandbox.exec("head -c 300M /dev/zero >file")
        assert done.label == "oom"
        await sandbox.restore()  # files that fill the memory leave no room for a command
        assert await still_works(sandbox)


@in_loop
async def test_a_full_disk_is_the_sandboxs_own(containing: str) -> None:
    async with await create(TIGHT, backend=containing) as sandbox:
        done = await sandbox.exec(
            "for f in a b /tmp/c; do head -c 20M /dev/zero >$f; done; du -bc a b /tmp/c | tail -1"
        )
        assert "No space left" in done.stderr
        assert int(done.stdout.split()[0]) <= TIGHT.disk
        done = await sandbox.exec(
            "rm a b /tmp/c; for i in $(seq 9000); do : >$i || break; done 2>/dev/null; ls | wc -l"
        )
        assert int(done.stdout) <= TIGHT.disk // 4096 + 1
        done = await sandbox.exec(
            "head -c 90M /dev/zero >/dev/shm/x; head -c 1M /dev/zero >/dev/x; stat -c %s /dev/shm/x"
        )
        assert int(done.stdout or 0) <= 64 * MiB
        await sandbox.restore()
        await sandbox.write("file", "room again")


@in_loop
async def test_the_image_cannot_be_written(containing: str) -> None:
    async with await create(TIGHT, backend=containing) as sandbox:
        for user in (None, "root"):
            script = "for f in /x /etc/passwd /usr/bin/python3 /var/x /.dockerenv; do : >>$f && echo wrote $f; done"
            assert (await sandbox.exec(script, user=user)).stdout == ""


@in_loop
async def test_endless_output_is_cut_and_ended(containing: str) -> None:
    async with await create(TIGHT, backend=containing) as sandbox:
        for script in ("yes", "yes >&2"):
            done = await sandbox.exec(script, timeout=60)
            assert done.label == "flood"
            assert len(done.stdout) + len(done.stderr) < 2 * TIGHT.output_limit
            assert done.seconds < 60
        async with sandbox.shell() as shell:
            assert (await shell.run("yes", timeout=60)).flooded
            assert (await shell.run("echo fine")).stdout == "fine\n"


@in_loop
async def test_no_network_of_the_machine_is_reached(containing: str) -> None:
    name = f"rollenv-{secrets.token_hex(4)}"
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        async with await create(TIGHT, backend=containing) as sandbox:
            for user in (None, "root"):
                words = ["python3", "-c", CONNECT, str(server.getsockname()[1]), name]
                done = await sandbox.exec(words, user=user)
                assert (done.exit_code, done.stdout) == (0, "")
            assert (await sandbox.exec("getent hosts example.com")).exit_code != 0


@in_loop
async def test_files_of_the_machine_are_not_there(containing: str, tmp_path: Path, own_state: Path) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    (tmp_path / canary).write_text(canary)
    places = ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../../../..", "/mnt", "/.sandbox", "/mnt/root"]
    async with await create(TIGHT, backend=containing) as sandbox:
        for user in (None, "root"):
            words = [f"{place}{path}" for place in places for path in (tmp_path / canary, own_state / "ledgers")]
            done = await sandbox.exec(["ls", "-d", *words], user=user)
            assert done.stdout == ""
            done = await sandbox.exec(
                f"find / -name '{canary}' -o -name '*.sock' -o -name '*.jsonl' 2>/dev/null", user=user
            )
            assert done.stdout == ""
            done = await sandbox.exec("cat /etc/shadow; ls /dev/[vsn][dv]* /dev/mem /dev/kmsg", user=user)
            assert "root:" not in done.stdout
            assert "/dev/" not in done.stdout


@in_loop
async def test_links_and_dots_lead_nowhere_outside(containing: str, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("canary")
    up = "../" * 12
    async with await create(TIGHT, backend=containing) as sandbox:
        await sandbox.exec(
            f"ln -s {tmp_path} direct; ln -s {up}{str(tmp_path)[1:]} dots; ln -s /proc/1/root{tmp_path} proc"
        )
        for name in ("direct", "dots", "proc", f"{up}{str(tmp_path)[1:]}"):
            with pytest.raises(SandboxError):
                await sandbox.read(f"{name}/canary")
            with contextlib.suppress(SandboxError):
                await sandbox.write(f"{name}/written", "x")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name in (f"{up}{str(tmp_path)[1:]}/written", "direct/written"):
                archive.addfile(tarfile.TarInfo(name))
        with contextlib.suppress(SandboxError):
            await sandbox.upload(packed.getvalue())
        assert sorted(path.name for path in tmp_path.iterdir()) == ["canary"]
        assert (tmp_path / "canary").read_text() == "canary"


def hostile(*members: tuple[str, bytes, str]) -> bytes:
    """An archive of names, types and where they lead."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return packed.getvalue()


@pytest.mark.parametrize(
    "tar",
    [
        hostile(("../out", tarfile.REGTYPE, "")),
        hostile(("a/../../out", tarfile.REGTYPE, "")),
        hostile(("link", tarfile.SYMTYPE, ".."), ("link/out", tarfile.REGTYPE, "")),
        hostile(("link", tarfile.SYMTYPE, "/etc")),
        hostile(("hard", tarfile.LNKTYPE, "../canary")),
        hostile(("device", tarfile.BLKTYPE, "")),
        hostile(("pipe", tarfile.FIFOTYPE, "")),
        b"nonsense" * 1000,
    ],
    ids=["dots", "inner-dots", "through-link", "absolute-link", "hard-link", "device", "pipe", "nonsense"],
)
def test_an_archive_from_inside_stays_where_it_is_unpacked(tar: bytes, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("canary")
    with pytest.raises(SandboxError, match="not unpacked"):
        unpack(tar, tmp_path / "in")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["canary", "in"]


def test_an_absolute_name_in_an_archive_is_taken_as_a_relative_one(tmp_path: Path) -> None:
    unpack(hostile((f"{tmp_path}/out", tarfile.REGTYPE, "")), tmp_path / "in")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("zeros")
        member.size = 3 * MiB
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(SandboxError, match="more than 1048576 bytes"):
        unpack(packed.getvalue(), tmp_path, limit=MiB)


@in_loop
async def test_the_kernels_switches_cannot_be_turned(containing: str) -> None:
    # Only opened for writing, never written: a hole would be seen, and nothing would happen.
    files = "/proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/overcommit_memory /proc/kcore /proc/mem"
    more = "/sys/kernel/mm/transparent_hugepage/enabled /sys/fs/cgroup/memory/memory.limit_in_bytes"
    groups = "$(find /sys/fs/cgroup -name cgroup.procs -o -name pids.max -o -name memory.max 2>/dev/null)"
    async with await create(TIGHT, backend=containing) as sandbox:
        for user in (None, "root"):
            done = await sandbox.exec(f"for f in {files} {more} {groups}; do (: >>$f) && echo open $f; done", user=user)
            assert done.stdout == ""
            for call in (
                "mount -t tmpfs none /mnt",
                "umount /workspace",
                "umount /proc",
                "unshare -U true",
                "unshare -m true",
            ):
                assert (await sandbox.exec(call, user=user)).exit_code != 0, call


@in_loop
async def test_secrets_of_this_process_are_not_seen(containing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("SECRET_KEY", secret)
    async with await create(TIGHT, backend=containing) as sandbox, sandbox.shell() as shell:
        for run in (sandbox.exec, shell.run):
            done = await run("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'")
            assert "PATH=" in done.stdout
            assert secret not in done.stdout
            assert str(os.getpid()) not in done.stdout.split()


@in_loop
async def test_killing_everything_kills_nothing_outside(containing: str) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        async with await create(TIGHT, backend=containing) as sandbox:
            for user in (None, "root"):
                done = await sandbox.exec("kill -TERM 1; kill -9 1; kill -9 -1; echo $?", user=user)
                assert isinstance(done, ExecResult)
                await sandbox.exec(f"kill -9 $PPID; kill -9 {bystander.pid} {os.getpid()}", user=user)
                assert await still_works(sandbox)
        assert bystander.returncode is None
    finally:
        bystander.kill()
        await bystander.wait()


@in_loop
async def test_no_rights_are_gained(containing: str) -> None:
    async with await create(TIGHT, backend=containing) as sandbox:
        done = await sandbox.exec("cp /bin/bash /usr/bin/id . && chmod 4755 bash id && ./bash -p -c ./id; ls -l bash")
        assert "euid=0" not in done.stdout
        assert "uid=1000" in done.stdout
        for user in (None, "root"):
            done = await sandbox.exec(
                "grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status", user=user
            )
            status = dict(line.split(":\t") for line in done.stdout.splitlines())
            assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {0}
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@in_loop
async def test_a_daemon_does_not_outlive_its_command(containing: str) -> None:
    daemon = "setsid sh -c 'sleep 1; echo alive >/workspace/late' </dev/null >/dev/null 2>&1 &"
    hidden = f"env -i ROLLENV_SHELL=init {daemon}"
    async with await create(TIGHT, backend=containing) as sandbox:
        for script in (daemon, hidden, f"({daemon}); kill -9 $PPID", f"trap '' HUP TERM; {daemon} exit 0"):
            await sandbox.exec(script)
            await asyncio.sleep(1.5)
            assert await sandbox.list() == [], script
        async with sandbox.shell() as shell:
            await shell.run(daemon)
        await asyncio.sleep(1.5)
        assert await sandbox.list() == []


@in_loop
async def test_clocks_cannot_be_turned_nor_timeouts_escaped(containing: str) -> None:
    began, wall = time.monotonic(), time.time()
    async with await create(TIGHT, backend=containing) as sandbox:
        for user in (None, "root"):
            turn = "import time; time.clock_settime(time.CLOCK_REALTIME, 0)"
            for words in (["date", "-s", "2001-01-01"], ["python3", "-c", turn]):
                assert (await sandbox.exec(words, user=user)).exit_code != 0
        for script in ("kill -STOP $$", "kill -STOP $PPID; sleep 60", "trap '' TERM; sleep 60 & wait; sleep 60"):
            at = time.monotonic()
            done = await sandbox.exec(script, timeout=1)
            assert done.timed_out
            assert time.monotonic() - at < 60
        assert await still_works(sandbox)
    assert abs((time.time() - wall) - (time.monotonic() - began)) < 5
