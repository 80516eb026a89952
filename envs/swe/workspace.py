"""An agent's sandbox: the repository laid out, the tools at work in it, and what was changed in the end."""

from __future__ import annotations

import functools
import io
import tarfile
from collections.abc import Mapping, Sequence

from rollenv.envs.swe.changes import Changes, counted, find_changes, patched_paths, unified, without
from rollenv.envs.swe.git_folder import git_folder
from rollenv.envs.swe.task import (
    R2E_RUNNER,
    R2E_TESTS,
    PytestChecks,
    RewardChecks,
    ScriptChecks,
    StatusChecks,
    SweTask,
)
from rollenv.messages import ToolCall
from rollenv.sandboxes import ExecResult, Sandbox, SandboxDied, SandboxError, SandboxSpec, Shell

_DIFF = "git add -A && git -c core.fileMode=false diff --cached --binary --no-ext-diff --no-textconv --no-color"
_VIEWED = 1 << 20

_IN_THE_WAY = {"pytest", "pytest.py", "_pytest", "pluggy", "pluggy.py", "pyproject.toml", ".venv"}
"""What, at the top of a repository, comes before the pytest that is installed, or tells it what to do."""

Submission = Changes | str | bytes
"""What an agent leaves: changes by path; a patch of the image's repository; or an archive of the whole working folder,
for tasks whose solution need not be a patch."""


def sandbox_spec(task: SweTask, timeout: float = 60.0) -> SandboxSpec:
    """The sandbox that a task is worked on, and checked, in."""
    return SandboxSpec(
        image=task.image,
        workdir=task.workdir,
        memory=task.memory,
        disk=task.memory // 2,
        pids=128,
        user=task.user,
        writable=task.writable,
        exec_timeout=timeout,
    )


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Files as a tar archive; the same files give the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o644
            info.mode |= 0o111 if content.startswith(b"#!") else 0
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


class Workspace:
    """One episode's sandbox.

    Args:
        sandbox: fresh.
        task: what is to be done.
        limit: characters of an observation.
        timeout: seconds of a command.
    """

    def __init__(self, sandbox: Sandbox, task: SweTask, limit: int, timeout: float) -> None:
        self.sandbox, self._task = sandbox, task
        self._limit, self._timeout = limit, timeout
        self._base = "HEAD"
        self._shell: Shell = sandbox.shell()

    async def lay_out(self, tree: bytes | None) -> None:
        """Puts the repository there (an archive), or finds out where the image's own stands."""
        if tree is not None:
            await self.sandbox.upload(tree, ".")
            return
        found = await self.sandbox.exec("git -c safe.directory='*' rev-parse HEAD")
        if found.exit_code == 0:
            self._base = found.stdout.strip()

    # -- tools ---------------------------------------------------------------------------------------------------

    async def call(self, call: ToolCall) -> str:
        """What a tool answers. A mistake of the agent's is an answer like any other.

        Raises:
            SandboxDied: the sandbox is gone.
        """
        work = getattr(self, f"_{call.name}")
        try:
            return self.cut(await work(**call.arguments))
        except SandboxDied:
            raise
        except SandboxError as error:
            return self.cut(f"error: {error}")

    async def _bash(self, command: str) -> str:
        done = await self._shell.run(command, timeout=self._timeout)
        return _told(done, self._timeout)

    async def _view(self, path: str, start: int | None = None, end: int | None = None) -> str:
        done = await self.sandbox.exec(["test", "-d", path])
        if done.exit_code == 0:
            listed = await self.sandbox.exec(
                ["find", path, "-maxdepth", "2", "-not", "-path", "*/.git*", "-not", "-name", "__pycache__"]
            )
            return "\n".join(sorted(listed.stdout.splitlines()))
        lines = (await self.sandbox.read(path, limit=_VIEWED)).decode("utf-8", "replace").splitlines()
        first, last = max(1, start or 1), min(len(lines), end or len(lines))
        if lines and first > last:
            return f"error: '{path}' has {len(lines)} lines: no line is between {first} and {end or last}"
        return "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, last + 1)) or "(an empty file)"

    async def _edit(self, path: str, old: str, new: str) -> str:
        content = await self.sandbox.read(path, limit=_VIEWED)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return f"error: '{path}' is no text in UTF-8"
        count = text.count(old) if old else 0
        if count != 1:
            what = "is empty: use 'create' for a new file" if not old else f"is there {count} times, not once"
            return f"error: the old text {what}; '{path}' is unchanged"
        at = text.index(old)
        await self._write(path, text.replace(old, new))
        line = text.count("\n", 0, at) + 1
        return await self._view(path, max(1, line - 3), line + new.count("\n") + 3)

    async def _create(self, path: str, content: str) -> str:
        await self._write(path, content)
        return f"wrote {len(content.splitlines())} lines to '{path}'"

    async def _write(self, path: str, text: str) -> None:
        """Writes into the file that is there, if one is, so that its mode stays."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1"'
        done = await self.sandbox.exec(["/bin/sh", "-c", script, "sh", path], stdin=text)
        if done.exit_code:
            raise SandboxError(f"cannot write '{path}': {done.stderr.strip().splitlines()[-1:]}")

    async def _search(self, pattern: str, path: str = ".") -> str:
        words = ["grep", "-rnIE", "--exclude-dir=.git", "--exclude-dir=__pycache__", "-e", pattern, "--", path]
        done = await self.sandbox.exec(words)
        if done.exit_code > 1:
            return f"error: {done.stderr.strip()}"
        return "\n".join(sorted(done.stdout.splitlines())) or "no line matches"

    def cut(self, text: str) -> str:
        """At most so many characters: beginning and end."""
        if len(text) <= self._limit:
            return text
        half = self._limit // 2
        return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"

    # -- the end -------------------------------------------------------------------------------------------------

    async def submission(self) -> Submission:
        """The changes that count: by path where the repository is the task's, as a patch where it is the image's.

        Raises:
            SandboxError: they are too many to be read.
        """
        task = self._task
        if task.files is None:
            whole = isinstance(task.checks, RewardChecks)
            return await (self.sandbox.download(".") if whole else self._patch_of_image())
        changes = find_changes(task.files, await self.sandbox.download("."))
        tests = task.checks.files if isinstance(task.checks, PytestChecks) else ()
        return {path: changes[path] for path in counted(changes, task.gold, tests)}

    async def _patch_of_image(self) -> str:
        done = await self.sandbox.exec(f"{_DIFF} {self._base}", timeout=120)
        if done.truncated:
            raise SandboxError("the changes are too many to be read")
        if done.exit_code:
            return ""
        paths = patched_paths(done.stdout)
        return without(done.stdout, counted(paths, self._task.gold, _judges_own(self._task, paths)))


def _judges_own(task: SweTask, paths: Sequence[str]) -> list[str]:
    """Files of an image's repository that its tests consist of, beside those that are called like tests."""
    checks = task.checks
    if isinstance(checks, ScriptChecks):
        return patched_paths(str(checks.instance.get("test_patch", "")))
    if isinstance(checks, StatusChecks):  # R2E's images have them among the repository's own
        solution = set(patched_paths(task.gold))
        tops = {path: path.partition("/")[0] for path in paths}
        return [
            path for path, top in tops.items()
            if top in (R2E_RUNNER, R2E_TESTS) or (top in _IN_THE_WAY and path not in solution)
        ]  # fmt: skip
    return []


def _told(done: ExecResult, timeout: float) -> str:
    parts = [done.stdout.rstrip("\n"), done.stderr.rstrip("\n")]
    if done.timed_out:
        parts.append(f"[ended after {timeout:g} s; the shell is a new one]")
    elif done.oom:
        parts.append("[a process was ended: out of memory]")
    elif done.flooded:
        parts.append("[ended: its output had no end; the shell is a new one]")
    if done.exit_code and not done.timed_out:
        parts.append(f"[exit code {done.exit_code}]")
    return "\n".join(part for part in parts if part) or "(no output)"


def as_patch(task: SweTask, submission: Submission) -> str:
    """A submission as a git patch; empty for one that is none."""
    if isinstance(submission, bytes):
        return ""
    return submission if isinstance(submission, str) else unified(task.files or {}, submission)


@functools.lru_cache(maxsize=512)
def _packed(files: tuple[tuple[str, bytes], ...]) -> bytes:
    tree = dict(files)
    return pack_files({**tree, **git_folder(tree)})


def tree_of(task: SweTask) -> bytes | None:
    """A task's repository as an archive, with a git repository of one commit around it; None: it is in the image."""
    return None if task.files is None else _packed(tuple(task.files.items()))
