"""SWE: mend a repository in a sandbox, with tools; judged by tests that the agent cannot reach.

Invariant: an episode has one sandbox, which nobody else gets before it is as it was made; the judging happens in
another one. What goes wrong with a sandbox is a fault and never a reward.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike, fspath
from typing import Any, TypeVar

from rollenv.core import EpisodeOver, Executor, TextEnv
from rollenv.envs.swe.grader import grade
from rollenv.envs.swe.grading import Grade
from rollenv.envs.swe.library import EMBEDDED, open_library
from rollenv.envs.swe.pools import SandboxLoop, join_loop, leave_loop
from rollenv.envs.swe.probes import PROBES, Probe
from rollenv.envs.swe.task import SweTask
from rollenv.envs.swe.tools import TOOLS, BadCall, parse_call
from rollenv.envs.swe.workspace import Submission, Workspace, as_patch, sandbox_spec, tree_of
from rollenv.errors import RollenvError, did_you_mean
from rollenv.sandboxes import Pool, SandboxDied, SandboxError, SandboxSpec
from rollenv.tasks import TaskSet

T = TypeVar("T")

_CHARACTERS_PER_TOKEN = 4
PROMPT = """\
{issue}

The repository is in {workdir}, where your shell begins. Change its code so that the issue is solved; tests that you \
do not see will check it, and your changes to tests do not count. When you are done, submit."""


class SweEnv(TextEnv):
    """A repository with an issue. Actions are calls of tools (see `rollenv.envs.swe.tools`): `bash`, `view`, `edit`,
    `create`, `search`, `submit`.

    Args:
        tasks: `default` for the tasks that come with rollenv; else a path (see `open_library`).
        sandbox: `bubblewrap` or `docker`; None: the first of these that can be used here.
        partial_credit: whether a submission that keeps all of PASS_TO_PASS and mends some of FAIL_TO_PASS earns the
            share of these.
        max_steps: the episode is judged as it stands after so many steps.
        max_tokens: or after so much text of actions and observations, a token taken for four characters; None: no
            bound.
        max_seconds: or after so many seconds; None: no bound.
        command_timeout: seconds for one command.
        grading_timeout: seconds for the tests, where the task allows more; None: as the task says.
        observation_limit: characters of an observation; of longer ones the middle is left out.
        max_sandboxes: so many exist at a time, in all environments of this process with the same arguments.
        max_judged: so many are judged at a time, so that the time which tests are given is not used up by each other's;
            None: one for each core of this machine.
        network: the `host:port` addresses that an agent's sandbox may reach; `localhost` is this machine. None is
            reached while its work is judged.

    `info` has `tools` (OpenAI's schemas), `repo`, and `source`, where the tasks are from. The step that ends the
    episode adds `success`, `outcome` (FULL, PARTIAL, NO, INVALID), `reason` (of INVALID), `rules` (and their version),
    `reward_parts` (shares of FAIL_TO_PASS and PASS_TO_PASS) and `patch`.

    Raises:
        RollenvError: an argument is not one of its values, or there are no such tasks.
    """

    executor: Executor = "thread"

    def __init__(
        self,
        tasks: str | PathLike[str] | None = None,
        sandbox: str | None = None,
        partial_credit: bool = False,
        max_steps: int = 50,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        command_timeout: float = 30.0,
        grading_timeout: float | None = None,
        observation_limit: int = 10_000,
        max_sandboxes: int = 64,
        max_judged: int | None = None,
        network: Sequence[str] = (),
    ) -> None:
        _check_backend(sandbox)
        _check_bounds(
            max_steps=max_steps,
            max_tokens=max_tokens,
            max_seconds=max_seconds,
            command_timeout=command_timeout,
            grading_timeout=grading_timeout,
            observation_limit=observation_limit,
            max_sandboxes=max_sandboxes,
            max_judged=max_judged,
        )
        self._source = None if tasks is None else fspath(tasks)
        self._backend, self._partial = sandbox, bool(partial_credit)
        self._max_steps, self._max_tokens, self._max_seconds = max_steps, max_tokens, max_seconds
        self._timeout, self._limit, self._max_sandboxes = command_timeout, observation_limit, max_sandboxes
        self._grading_timeout, self._network = grading_timeout, _addresses(network)
        self._max_judged = max_judged or os.cpu_count() or 1
        self._library = open_library(self._source)
        self._loop: SandboxLoop | None = None
        self._task: SweTask | None = None
        self._workspace: Workspace | None = None
        self._over = True
        self._actions: list[str] = []
        self._characters, self._began = 0, 0.0

    @property
    def tasks(self) -> TaskSet:
        """The tasks, in their splits."""
        return self._library.tasks

    # -- audits (see rollenv.evaluation.audit) -------------------------------------------------------------------

    @property
    def probes(self) -> Mapping[str, Probe]:
        """Cheats, and the solution."""
        return PROBES

    def probe_actions(self, name: str, task: str) -> list[str]:
        """What a probe does in a task."""
        return PROBES[name].actions(self._library.task(task))

    # -- called from any thread or loop --------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode: of the task that `options={"task": id}` names, or a random one of the first split.

        Raises:
            RollenvError: no such task, or `options` has other keys.
            SandboxError: there can be no sandbox for it.
        """
        return self._wait(self._reset(self._chosen(seed, options)))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does what a call of a tool says; a text that is none changes nothing.

        Raises:
            InvalidAction: the action is not text.
            EpisodeOver: there is no episode going on.
            SandboxDied: the sandbox is gone.
        """
        return self._wait(self._step(self._checked(action)))

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """`reset`; cancelling it ends what it waits for."""
        return await asyncio.wrap_future(self._start(self._reset(self._chosen(seed, options))))

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """`step`; cancelling it ends the command."""
        return await asyncio.wrap_future(self._start(self._step(self._checked(action))))

    def close(self) -> None:
        """Gives the sandbox back; with the last environment, all sandboxes that were kept ready are closed."""
        if self._workspace is not None:
            self._wait(self._release())
        loop, self._loop = self._loop, None
        if loop is not None:
            leave_loop(loop)
        self._over = True
        super().close()

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._home().submit(work)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _home(self) -> SandboxLoop:
        if self._loop is None:
            self._loop = join_loop()
        return self._loop

    def _chosen(self, seed: int | None, options: dict[str, Any] | None) -> str:
        super().reset(seed=seed)
        options = self.check_options(options)
        unknown = [key for key in options if key != "task"]
        if unknown:
            raise RollenvError(
                f"swe: reset takes the option 'task', not '{unknown[0]}'{did_you_mean(str(unknown[0]), ['task'])}"
            )
        task = options.get("task")
        if task is None:
            ids = next(iter(self.tasks.splits.values()))
            task = ids[int(self.np_random.integers(len(ids)))]
        self.tasks.split_of(task)
        return str(task)

    def _checked(self, action: Any) -> str:
        text = self.check_text(action)
        if self._over:
            raise EpisodeOver("swe: the episode is over or has not begun; call reset() first")
        return text

    # -- on the sandboxes' loop ----------------------------------------------------------------------------------

    def _pool(self) -> Pool:
        return self._home().pool(self._backend, self._max_sandboxes)

    async def _reset(self, id: str) -> tuple[str, dict[str, Any]]:
        task = self._library.task(id)
        await self._release()
        self._over = True
        spec = dataclasses.replace(sandbox_spec(task, self._timeout), network=self._network)
        sandbox = await self._pool().acquire(spec)
        workspace = Workspace(sandbox, task, self._limit, self._timeout)
        try:
            await workspace.lay_out(tree_of(task))
        except BaseException:
            self._pool().release(sandbox, healthy=False)
            raise
        self._task, self._workspace, self._over = task, workspace, False
        self._actions, self._characters, self._began = [], 0, time.monotonic()
        observation = PROMPT.format(issue=task.issue.strip(), workdir=task.workdir)
        self._characters += len(observation)
        return observation, self._info()

    async def _step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._workspace is None:
            await self._catch_up()
        workspace = self._workspace
        assert workspace is not None
        self._actions.append(action)
        try:
            call = parse_call(action)
        except BadCall as error:
            observation, valid, submitted = workspace.cut(f"error: {error}"), False, False
        else:
            valid, submitted = True, call.name == "submit"
            observation = "" if submitted else await workspace.call(call)
        self._characters += len(action) + len(observation)
        bound = "" if submitted else self._bound_reached()
        info = self._info() | {"valid_action": valid}
        if not submitted and not bound:
            return observation, 0.0, False, False, info
        reward, ending = await self._judge(workspace)
        said = f"{bound} The work is judged as it stands." if bound else "The work is judged."
        text = f"{observation}\n{said}" if observation else said
        return text, reward, submitted, not submitted, info | ending

    def _bound_reached(self) -> str:
        """Which bound of the episode is reached, as a sentence; empty for none."""
        if len(self._actions) >= self._max_steps:
            return f"That was the last of {self._max_steps} steps."
        if self._max_tokens is not None and self._characters >= _CHARACTERS_PER_TOKEN * self._max_tokens:
            return f"The bound of {self._max_tokens} tokens is reached."
        if self._max_seconds is not None and time.monotonic() - self._began >= self._max_seconds:
            return f"The bound of {self._max_seconds:g} seconds is reached."
        return ""

    async def _judge(self, workspace: Workspace) -> tuple[float, dict[str, Any]]:
        """The reward and what `info` says in the end."""
        task = self._task
        assert task is not None
        self._over = True
        submission: Submission = ""
        try:
            submission = await workspace.submission()
        except SandboxDied:
            raise
        except SandboxError as error:  # the agent's doing: too much, or nothing that can be read
            verdict = Grade(False, "INVALID", {}, "unread", reason=str(error))
        else:
            # The agent's sandbox goes first: who waits for a second one while holding one can wait for ever.
            await self._release()
            verdict = await self._verdict(task, submission)
        parts = {"fail_to_pass": verdict.fail_to_pass, "pass_to_pass": verdict.pass_to_pass}
        ending = {"success": verdict.resolved, "outcome": verdict.outcome, "reason": verdict.reason}
        more = {"reward_parts": parts, "patch": as_patch(task, submission), "rules": verdict.rules}
        return self._reward(verdict), ending | more

    async def _verdict(self, task: SweTask, submission: Submission) -> Grade:
        if not submission:  # nothing was changed: the tests that fail would fail again
            return Grade(False, "NO", {}, "unchanged", pass_to_pass=1.0)
        spec = sandbox_spec(task, self._timeout)
        async with self._home().judging(self._max_judged), self._pool().sandbox(spec) as sandbox:
            return await grade(sandbox, self._bounded(task), submission)

    def _bounded(self, task: SweTask) -> SweTask:
        """The task, with no more time for its tests than the environment allows."""
        seconds = min(task.checks.timeout, self._grading_timeout or task.checks.timeout)
        return dataclasses.replace(task, checks=dataclasses.replace(task.checks, timeout=seconds))

    def _reward(self, verdict: Grade) -> float:
        if verdict.resolved:
            return 1.0
        return verdict.fail_to_pass if self._partial and verdict.outcome == "PARTIAL" else 0.0

    async def _release(self) -> None:
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            self._pool().release(workspace.sandbox)

    def _info(self) -> dict[str, Any]:
        assert self._task is not None
        return {"task": self._task.id, "tools": TOOLS, "repo": self._task.repo, "source": self._source or EMBEDDED}

    # -- copies --------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no sandbox: it does again what was done so far, in one of its own, when it is needed."""
        left_out = ("_library", "_workspace", "_loop", "_task")
        kept = {key: value for key, value in super().__getstate__().items() if key not in left_out}
        return kept | {"_id": None if self._task is None else self._task.id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        id = state.pop("_id")
        self.__dict__.update(state)
        self._library, self._workspace, self._loop = open_library(self._source), None, None
        self._task = None if id is None else self._library.task(id)

    async def _catch_up(self) -> None:
        """Brings a copy to where the environment was that it is a copy of."""
        actions, task = self._actions, self._task
        assert task is not None
        await self._reset(task.id)
        for action in actions:
            await self._step(action)


def _check_backend(name: str | None) -> None:
    from rollenv.sandboxes.backends import backend_module

    if name == "subprocess":
        raise RollenvError("swe: 'subprocess' contains nothing: use sandbox='bubblewrap' or 'docker'")
    if name is not None:
        backend_module(name)


def _addresses(network: Sequence[str]) -> tuple[str, ...]:
    """A list of them, or one alone, as it is written on a command line; raises RollenvError for what is none."""
    return SandboxSpec(network=(network,) if isinstance(network, str) else tuple(network or ())).network


def _check_bounds(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise RollenvError(f"swe: {name} must be a positive number, not {value!r}")
        if name.startswith("max_") and name != "max_seconds" and not isinstance(value, int | None):
            raise RollenvError(f"swe: {name} must be a whole number, not {value!r}")
