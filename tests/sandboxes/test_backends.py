"""What every backend's sandboxes do alike."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest
from in_loop import in_loop

from rollenv.errors import RollenvError
from rollenv.sandboxes import ExecResult, MiB, Sandbox, SandboxDied, SandboxError, SandboxSpec, create, pack, unpack
from rollenv.sandboxes.ledger import Ledger

SMALL = SandboxSpec(memory=128 * MiB, disk=16 * MiB, pids=64, cpus=1.0, exec_timeout=20.0)


@in_loop
async def test_a_sandbox_is_one(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        assert isinstance(sandbox, Sandbox)
        assert (sandbox.backend, sandbox.spec) == (backend, SMALL)


@in_loop
async def test_a_command_says_out_err_and_code(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        done = await sandbox.exec("echo out; echo err >&2; exit 3")
        assert (done.exit_code, done.stdout, done.stderr, done.label) == (3, "out\n", "err\n", "failed")
        assert (await sandbox.exec("true")).label == "ok"


@in_loop
async def test_a_sequence_is_taken_word_by_word(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        done = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "'", ""])
        assert done.stdout == "a b|$HOME|'||"


@in_loop
async def test_a_missing_program_is_127_and_a_missing_folder_is_told(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        done = await sandbox.exec("true", cwd="/no/such/folder")
        assert done.exit_code != 0
        assert "/no/such/folder" in done.stderr


@in_loop
async def test_stdin_env_and_cwd_reach_the_command(backend: str) -> None:
    spec = SandboxSpec(memory=128 * MiB, disk=16 * MiB, env={"A": "spec", "B": "spec"})
    async with await create(spec, backend=backend) as sandbox:
        await sandbox.exec("mkdir sub")
        done = await sandbox.exec("cat; echo $A $B; basename $PWD", stdin="in\n", env={"B": "more"}, cwd="sub")
        assert done.stdout == "in\nspec more\nsub\n"


@in_loop
async def test_stdin_that_is_larger_than_any_pipe_comes_through(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        done = await sandbox.exec("wc -c", stdin=b"x" * (3 * MiB))
        assert done.stdout.strip() == str(3 * MiB)


@in_loop
async def test_a_command_ends_at_its_timeout(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        done = await sandbox.exec("trap '' TERM INT HUP; echo begun; while :; do sleep 60; done", timeout=3)
        assert done.timed_out
        assert (done.label, done.stdout) == ("timeout", "begun\n")
        assert (await sandbox.exec("echo still here")).stdout == "still here\n"


@in_loop
async def test_output_is_kept_at_both_ends(backend: str) -> None:
    spec = SandboxSpec(memory=128 * MiB, disk=16 * MiB, output_limit=1000)
    async with await create(spec, backend=backend) as sandbox:
        done = await sandbox.exec("echo first; seq 5000; echo last")
        assert done.truncated
        assert done.stdout.startswith("first\n1\n2\n")
        assert done.stdout.endswith("5000\nlast\n")
        assert "bytes left out]" in done.stdout
        assert len(done.stdout) < 1100


@in_loop
async def test_commands_beside_each_other_do_not_meet(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        done = await asyncio.gather(*(sandbox.exec(f"sleep 0.1; echo {n}") for n in range(4)))
        assert [one.stdout for one in done] == ["0\n", "1\n", "2\n", "3\n"]


@in_loop
async def test_a_cancelled_command_is_ended(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        running = asyncio.create_task(sandbox.exec("touch begun.txt; sleep 6; touch late.txt"))
        await asyncio.sleep(2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(5)
        assert [file.name for file in await sandbox.list()] == ["begun.txt"]


class SlowStart:
    """Lets a sandbox's processes start, and tells nobody of it until `go` is set."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.there, self.go = asyncio.Event(), asyncio.Event()
        self._sandbox, self._begin = sandbox, sandbox._begin  # type: ignore[attr-defined]
        sandbox._begin = self  # type: ignore[attr-defined]

    async def __call__(self, *args: object) -> object:
        process = await self._begin(*args)
        self.there.set()
        await self.go.wait()
        return process

    def cancel(self, running: asyncio.Task[ExecResult]) -> None:
        """Cancels what waits for a start, and lets starts be as they were."""
        running.cancel()
        asyncio.get_running_loop().call_later(0.1, self.go.set)
        self._sandbox._begin = self._begin  # type: ignore[attr-defined]


@in_loop
async def test_a_command_whose_start_is_given_up_is_ended(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        slow = SlowStart(sandbox)
        running = asyncio.create_task(sandbox.exec("sleep 4; touch late.txt"))
        await slow.there.wait()
        slow.cancel(running)
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(6)
        assert await sandbox.list() == []


@in_loop
async def test_a_shell_whose_start_is_given_up_leaves_the_next_command_alone(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox, sandbox.shell() as shell:
        slow = SlowStart(sandbox)
        running = asyncio.create_task(shell.run("true"))
        await slow.there.wait()
        slow.cancel(running)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await sandbox.exec("sleep 2; echo whole")).stdout == "whole\n"


@in_loop
async def test_who_waits_for_a_start_and_is_cancelled_does_not_cancel_it(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        slow = SlowStart(sandbox)
        running = asyncio.create_task(sandbox.exec("echo whole"))
        await slow.there.wait()
        restoring = asyncio.create_task(sandbox.restore())
        await asyncio.sleep(0.1)
        slow.cancel(restoring)
        with pytest.raises(asyncio.CancelledError):
            await restoring
        assert (await running).stdout == "whole\n"


@in_loop
async def test_a_command_is_ended_at_whatever_moment_of_its_beginning(backend: str) -> None:
    """Bubblewrap's child outlives it while it begins."""
    async with await create(SMALL, backend=backend) as sandbox:
        for milliseconds in range(24):
            running = asyncio.create_task(sandbox.exec("sleep 4; touch late.txt"))
            await asyncio.sleep(milliseconds / 1000)
            running.cancel()
            done, _ = await asyncio.wait({running}, timeout=3)
            assert done, f"it did not end when it was cancelled after {milliseconds} ms"
        await asyncio.sleep(6)
        assert await sandbox.list() == []


@in_loop
async def test_a_command_that_docker_begins_after_the_first_try_to_end_it_is_ended(docker: str) -> None:
    """Its sandbox lives on: it is not for want of anything else that this command did not end."""
    async with await create(SMALL, backend=docker) as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 600"))
        await asyncio.sleep(1)
        sweep, tries = sandbox._privileged, 0  # type: ignore[attr-defined]

        async def too_early(commands: str, seconds: float | None = None) -> str:
            nonlocal tries
            tries += 1
            return "" if tries == 1 else str(await sweep(commands, seconds))

        sandbox._privileged = too_early  # type: ignore[attr-defined]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert tries > 1
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"


@in_loop
async def test_a_command_of_bubblewrap_is_ended_as_soon_as_it_has_a_process(bubblewrap: str) -> None:
    """Then its process lays out what it sees, and does not die with bubblewrap yet."""
    async with await create(SMALL, backend=bubblewrap) as sandbox:
        for _ in range(10):
            running = asyncio.create_task(sandbox.exec("sleep 60"))
            while not any("child-pid" in process._said() for process in sandbox._running):  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            running.cancel()
            done, _ = await asyncio.wait({running}, timeout=5)
            assert done


@in_loop
async def test_a_sandbox_closes_at_whatever_moment_of_a_commands_beginning(backend: str) -> None:
    before = Ledger.current().live()
    for milliseconds in range(0, 24, 2):
        sandbox = await create(SMALL, backend=backend)
        running = asyncio.create_task(sandbox.exec("sleep 60"))
        await asyncio.sleep(milliseconds / 1000)
        async with asyncio.timeout(8):
            await sandbox.close()
            await asyncio.gather(running, return_exceptions=True)
    assert Ledger.current().live() == before


# -- shells ----------------------------------------------------------------------------------------------------


@in_loop
async def test_a_shell_remembers(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox, sandbox.shell() as shell:
        await shell.run("mkdir -p deep; cd deep; x=5; f() { echo f$1; }")
        done = await shell.run("f $x; basename $PWD; echo err >&2; false")
        assert (done.stdout, done.stderr, done.exit_code) == ("f5\ndeep\n", "err\n", 1)


@in_loop
async def test_a_shell_reads_no_stdin_and_takes_several_lines(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox, sandbox.shell() as shell:
        done = await shell.run("cat\nfor i in 1 2; do\n  echo \"line $i\"\ndone\necho 'it''s'")
        assert done.stdout == "line 1\nline 2\nits\n"
        assert (await shell.run("printf 'no newline'")).stdout == "no newline"
        broken = await shell.run("if then")
        assert broken.exit_code != 0
        assert (await shell.run("echo goes on")).stdout == "goes on\n"


@in_loop
async def test_a_shell_that_ends_is_followed_by_a_new_one(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox, sandbox.shell() as shell:
        await shell.run("x=5")
        assert (await shell.run("exit 7")).exit_code == 7
        assert not shell.alive
        assert (await shell.run("echo x=$x")).stdout == "x=\n"


@in_loop
async def test_a_shells_command_ends_at_its_timeout(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox, sandbox.shell() as shell:
        done = await shell.run("echo begun; sleep 60", timeout=5)
        assert (done.label, done.stdout) == ("timeout", "begun\n")
        assert (await shell.run("echo new")).stdout == "new\n"


@in_loop
async def test_a_shell_lives_beside_commands_and_files(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox, sandbox.shell() as shell:
        await shell.run("x=5; sleep 300 & echo $! >pid")
        await sandbox.write("a.txt", "a")
        assert (await sandbox.exec("cat a.txt")).stdout == "a"
        assert (await shell.run("echo $x; kill -0 $(cat pid) && echo alive")).stdout == "5\nalive\n"


# -- files -----------------------------------------------------------------------------------------------------


@in_loop
async def test_files_go_in_and_out_byte_by_byte(backend: str) -> None:
    content = bytes(range(256)) * 4000
    async with await create(SMALL, backend=backend) as sandbox:
        await sandbox.write("new/folders/file.bin", content, mode=0o755)
        assert await sandbox.read("new/folders/file.bin") == content
        assert (await sandbox.exec("test -x new/folders/file.bin")).exit_code == 0
        await sandbox.write("empty", "")
        assert await sandbox.read("empty") == b""


@in_loop
async def test_a_folder_is_listed(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        await sandbox.exec(["sh", "-c", 'mkdir f; printf abc >b; ln -s b l; : >"$(printf "new\\nline")"; mkfifo p'])
        found = {entry.name: (entry.kind, entry.size) for entry in await sandbox.list()}
        assert found["b"] == ("file", 3)
        assert {name: kind for name, (kind, _) in found.items()} == {
            "b": "file", "f": "folder", "l": "link", "new\nline": "file", "p": "other",
        }  # fmt: skip
        assert await sandbox.list("f") == []


@in_loop
async def test_what_cannot_be_read_is_one_sentence(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        await sandbox.exec("mkdir folder; head -c 2000 /dev/zero >big")
        for path, words in (("missing", "does not exist"), ("folder", "is not a file"), ("big", "larger than 1000")):
            with pytest.raises(SandboxError, match=words) as caught:
                await sandbox.read(path, limit=1000)
            assert f"'{path}'" in str(caught.value)
            assert "\n" not in str(caught.value)
        with pytest.raises(SandboxError, match="cannot list 'missing'"):
            await sandbox.list("missing")
        with pytest.raises(SandboxError, match="cannot write '/proc/version/x'"):
            await sandbox.write("/proc/version/x", "x")


@in_loop
async def test_archives_go_in_and_out(backend: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "file.txt").write_text("text")
    (tmp_path / "in" / "link").symlink_to("sub/file.txt")
    async with await create(SMALL, backend=backend) as sandbox:
        await sandbox.upload(pack(tmp_path / "in"), "repo")
        assert (await sandbox.exec("cat repo/link")).stdout == "text"
        unpack(await sandbox.download("repo"), tmp_path / "out")
        assert (tmp_path / "out" / "link").read_text() == "text"
        unpack(await sandbox.download("repo/sub/file.txt"), tmp_path / "one")
        assert (tmp_path / "one" / "file.txt").read_text() == "text"
        with pytest.raises(SandboxError, match="cannot unpack"):
            await sandbox.upload(b"no archive at all" * 100, "repo")
        with pytest.raises(SandboxError, match="larger than 10 bytes"):
            await sandbox.download("repo", limit=10)


@in_loop
async def test_a_gzipped_archive_is_unpacked(backend: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    async with await create(SMALL, backend=backend) as sandbox:
        await sandbox.upload(packed.getvalue())
        assert await sandbox.read("a.txt") == b"abc"


# -- states ----------------------------------------------------------------------------------------------------


@in_loop
async def test_snapshots_are_gone_back_to_in_any_order(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        await sandbox.exec("echo 1 >a; mkdir d; echo 1 >d/b")
        first = await sandbox.snapshot()
        await sandbox.exec("echo 2 >a; rm -r d; echo 2 >c")
        second = await sandbox.snapshot()
        await sandbox.exec("rm a; echo 3 >c")
        look = "cat a c d/b 2>/dev/null; ls"
        for snapshot, seen in ((first, "1\n1\na\nd\n"), (second, "2\n2\na\nc\n"), (first, "1\n1\na\nd\n")):
            await sandbox.restore(snapshot)
            assert (await sandbox.exec(look)).stdout == seen
            await sandbox.exec("rm -rf a d; echo spoilt >c")
        await sandbox.restore()
        assert await sandbox.list() == []


@in_loop
async def test_shells_begin_anew_after_a_restore(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox, sandbox.shell() as shell:
        await shell.run("mkdir d; cd d; x=5; sleep 300 &")
        await sandbox.restore()
        assert (await shell.run("ls; echo x=$x")).stdout == "x=\n"


@in_loop
async def test_a_snapshot_of_another_sandbox_is_refused(backend: str) -> None:
    async with await create(SMALL, backend=backend) as one, await create(SMALL, backend=backend) as two:
        with pytest.raises(SandboxError, match="cannot be restored"):
            await two.restore(await one.snapshot())


# -- life ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_closed_sandbox_leaves_nothing_and_says_so(backend: str) -> None:
    before = Ledger.current().live()
    sandbox = await create(SMALL, backend=backend)
    assert len(Ledger.current().live()) > len(before) or backend == "bubblewrap"
    running = asyncio.create_task(sandbox.exec("sleep 60"))
    await asyncio.sleep(0.3)
    await sandbox.close()
    await sandbox.close()
    await asyncio.gather(running, return_exceptions=True)
    assert Ledger.current().live() == before
    with pytest.raises(SandboxDied, match="is closed"):
        await sandbox.exec("true")


@in_loop
async def test_null_characters_are_refused(backend: str) -> None:
    async with await create(SMALL, backend=backend) as sandbox:
        for call in (sandbox.exec("a\0b"), sandbox.read("a\0b"), sandbox.exec("true", env={"A": "\0"})):
            with pytest.raises(RollenvError):
                await call


@in_loop
async def test_a_user_is_a_number_or_known_to_the_image(containing: str) -> None:
    async with await create(SMALL, backend=containing) as sandbox:
        assert (await sandbox.exec("id -u; id -g")).stdout == "1000\n1000\n"
        assert (await sandbox.exec("id -u", user="root")).stdout == "0\n"
        assert (await sandbox.exec("id -un", user="agent")).stdout == "agent\n"
        with pytest.raises(SandboxError, match="no user 'nobody-knows'"):
            await sandbox.exec("true", user="nobody-knows")


@in_loop
async def test_writable_folders_show_what_the_image_has_there(containing: str) -> None:
    spec = SandboxSpec(memory=128 * MiB, disk=16 * MiB, workdir="/srv/here", writable=("/opt",))
    if containing == "bubblewrap":
        with pytest.raises(SandboxError, match="no folder '/srv/here'"):
            await create(spec, backend=containing)
    spec = SandboxSpec(memory=128 * MiB, disk=16 * MiB, workdir="/here", writable=("/var/lib", "/opt"))
    async with await create(spec, backend=containing) as sandbox:
        assert (await sandbox.exec("pwd; touch file /opt/x")).exit_code == 0
        assert [entry.name for entry in await sandbox.list("/opt")] == ["x"]
        assert len(await sandbox.list("/var/lib")) > 0
