"""Environments of verifiers (the package `verifiers`, 0.1): `verifiers.load_environment(...)`, played as rollenv's own.

There an environment drives: it asks a model, as often as it likes, and scores what came of it. Here whoever acts does.
So a rollout runs as it is, on a loop of its own, and the model that it asks is `step`: what it is asked with is the
observation, the action its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollenv.envs.adapters.foreign import ForeignEnv, Seen, called, checked_range, plain
from rollenv.errors import RollenvError
from rollenv.executor import LoopThread
from rollenv.tasks import TaskSet

CLOSE_SECONDS = 10.0


class VerifiersEnv(ForeignEnv):
    """One environment of verifiers.

    Args:
        env_id: what `verifiers.load_environment` takes, or `module:function` that returns an environment.
        args: its arguments.
        success: an episode with at least this reward is solved.
        reward_range: lowest and highest reward, where they are known.

    Tasks are the rows of its data sets, `train-N` and `test-N`. Any text is an action; where the environment has tools
    (`info["tools"]`), `{"name": ..., "arguments": {...}}` calls one. The reward comes with the last step, and so do
    `info["metrics"]`, which its rubric measured, and `info["stop"]`, the condition that ended it.

    Raises:
        RollenvError: the package is not installed, has no such environment, or cannot make it; or the environment
            scores rollouts against each other, which one that is played alone cannot have.
    """

    library = "verifiers"
    free_text = True

    def __init__(
        self,
        env_id: str | None = None,
        args: Mapping[str, Any] | None = None,
        success: float = 1.0,
        reward_range: Sequence[float] | None = None,
    ) -> None:
        if env_id is None:
            raise RollenvError("verifiers: which environment? Give env_id=NAME, or env_id=module:function")
        self._name, self._args, self._solved = env_id, dict(args or {}), float(success)
        self.reward_range = checked_range(self.library, reward_range)  # type: ignore[misc]
        self._rollout: Rollout | None = None
        self._open()
        super().__init__({"env": env_id, "args": plain(self._args), "success": self._solved, "verifiers": _version()})

    def _open(self) -> None:
        self._inner = _environment(self._name, json.dumps(self._args, sort_keys=True))

    def _make_tasks(self) -> TaskSet:
        rows = _rows(self._inner)
        named = {split: [f"{split}-{i}" for i in range(len(each))] for split, each in rows.items()}

        def content(task: str) -> Any:
            split, _, place = task.rpartition("-")
            return plain(dict(rows[split][int(place)]))

        return TaskSet(self.library, named, content, self._identity)

    def _begin(self, task: str, chance: int) -> Seen:
        self._abandon()
        split, _, place = task.rpartition("-")
        self._rollout = Rollout(self._inner, dict(_rows(self._inner)[split][int(place)]))
        return self._saw(_loop().submit(self._rollout.begin()).result())

    def _act(self, action: str) -> Seen:
        assert self._rollout is not None
        return self._saw(_loop().submit(self._rollout.answer(action)).result())

    def _saw(self, asked: Asked | None) -> Seen:
        if asked is not None:
            return Seen(asked.text, info={"tools": asked.tools} if asked.tools else {})
        assert self._rollout is not None
        state = self._rollout.state
        reward = float(state["reward"])
        cut = bool(state.get("is_truncated") or state.get("timed_out"))
        info = {"metrics": state.get("metrics") or {}, "stop": state.get("stop_condition")}
        last = _text(state.get("final_env_response") or [])
        return Seen(last, reward, not cut, cut, success=reward >= self._solved, info=info)

    def _abandon(self) -> None:
        """Ends a rollout that nobody plays on."""
        rollout, self._rollout = self._rollout, None
        if rollout is not None:
            with contextlib.suppress(Exception):  # its cleanup may fail or hang: nobody is waiting for it
                _loop().submit(rollout.end()).result(CLOSE_SECONDS)

    def close(self) -> None:
        """Ends the rollout; the environment inside is shared, and stays."""
        self._abandon()
        self._seen = None
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_rollout": None}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the environment wants an answer to: the messages that are new, as text, and the tools that may be called."""

    text: str
    tools: list[dict[str, Any]]


class Rollout:
    """A rollout whose model is whoever calls `answer`. Lives on the loop of `_loop`.

    Attributes:
        state: what verifiers calls so, when the rollout is over and scored.
    """

    def __init__(self, env: Any, row: Mapping[str, Any]) -> None:
        self._env, self._row = env, row
        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self._read: list[Any] = []
        self._calls: Iterator[int] = itertools.count()
        self._task: asyncio.Task[Any] | None = None
        self.state: dict[str, Any] = {}

    async def begin(self) -> Asked | None:
        """The first question; None: it was over before."""
        self._task = asyncio.ensure_future(self._play())
        return await self._next()

    async def answer(self, action: str) -> Asked | None:
        """The question that follows; None: the rollout is over."""
        self._answers.put_nowait(action)
        return await self._next()

    async def end(self) -> None:
        """Cancels what is left of it, and waits for its cleanup."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _play(self) -> None:
        """As `Environment.generate` does it for one row."""
        env = self._env
        state = await env.rollout(self._row, _client_class()(self), "rollenv", {})
        if (error := state.get("error")) is not None:
            raise RuntimeError(f"its rollout failed: {type(error).__name__}: {error}")
        await (env.rubric.score_rollout if env.score_rollouts else env.rubric.dummy_score_rollout)(state)
        await env.rubric.cleanup(state)
        self.state = state

    async def _next(self) -> Asked | None:
        assert self._task is not None
        asked = asyncio.ensure_future(self._asked.get())
        await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        await self._task  # raises what went wrong
        return None

    async def respond(self, messages: Sequence[Any], tools: Sequence[Any]) -> Any:
        """A model's message, for the messages so far."""
        known = self._read
        grown = [*messages[: len(known)]] == known
        new = messages[len(known) + 1 :] if known and grown else messages  # the one between is our answer
        self._read = list(messages)
        names = {tool.name for tool in tools}
        self._asked.put_nowait(Asked(_text(new), [_schema(tool) for tool in tools]))
        return _message(await self._answers.get(), names, f"call-{next(self._calls)}")


def _text(messages: Sequence[Any]) -> str:
    """Messages as one text. Who speaks is said where it is neither the user nor the system."""
    parts = []
    for message in messages:
        said = message if isinstance(message, Mapping) else message.model_dump()
        content = said.get("content") or ""
        if not isinstance(content, str):
            others = [part.get("type") for part in content if part.get("type") != "text"]
            if others:
                raise RollenvError(f"verifiers: it shows a message with {others[0]}: a text environment cannot play it")
            content = "\n".join(str(part["text"]) for part in content)
        parts.append(f"{said['role']}: {content}" if said.get("role") == "assistant" else content)
    return "\n\n".join(parts)


def _schema(tool: Any) -> dict[str, Any]:
    """A tool as OpenAI's API has it."""
    function = {"name": tool.name, "description": tool.description, "parameters": plain(tool.parameters)}
    return {"type": "function", "function": function}


def _message(action: str, tools: set[str], call: str) -> Any:
    """An action as a model's message: a call of one of the tools, or what it says."""
    from verifiers.types import ResponseMessage, ToolCall

    with contextlib.suppress(ValueError, TypeError, AttributeError):
        said = json.loads(action)
        if said.get("name") in tools:
            arguments = said.get("arguments") or {}
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            calls = [ToolCall(id=call, name=said["name"], arguments=text)]
            return ResponseMessage(content="", tool_calls=calls, finish_reason="tool_calls", is_truncated=False)
    return ResponseMessage(content=action, finish_reason="stop", is_truncated=False)


@functools.cache
def _client_class() -> Any:
    """A client of verifiers, made when the package is needed."""
    from verifiers.clients import Client
    from verifiers.types import Response

    class Asking(Client):  # type: ignore[misc]
        """Asks the rollout that it was made with."""

        def setup_client(self, config: Any) -> Any:
            return None

        async def to_native_tool(self, tool: Any) -> Any:
            return tool

        async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
            return messages, {}

        async def get_native_response(
            self, prompt: Any, model: str, sampling: Any, tools: Any = None, **more: Any
        ) -> Any:
            return await self.client.respond(prompt, tools or [])

        async def raise_from_native_response(self, response: Any) -> None:
            return None

        async def from_native_response(self, response: Any) -> Any:
            return Response(id="", created=0, model="rollenv", message=response)

        async def close(self) -> None:
            return None

    return Asking


@functools.cache
def _loop() -> LoopThread:
    """Where the rollouts of this process run."""
    return LoopThread("verifiers")


@functools.lru_cache(maxsize=16)
def _environment(name: str, args: str) -> Any:
    """An environment that all episodes share: what differs between them is in their rollouts."""
    try:
        import verifiers
    except ImportError as error:
        raise RollenvError(
            f"verifiers: the package is not installed ({error}); pip install 'rollenv[verifiers]' into an environment "
            "of its own"
        ) from error
    arguments = json.loads(args)
    try:
        found = called("verifiers", name)(**arguments) if ":" in name else verifiers.load_environment(name, **arguments)
    except RollenvError:
        raise
    except Exception as error:  # whatever it raises: no such module, data sets that are not there, wrong arguments
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise RollenvError(f"verifiers: cannot make '{name}' with {arguments} ({said})") from error
    if not isinstance(found, verifiers.Environment):
        raise RollenvError(f"verifiers: '{name}' returned a {type(found).__name__}, no environment of verifiers 0.1")
    if found.requires_group_rollouts:
        raise RollenvError(f"verifiers: '{name}' scores rollouts against each other: it cannot be played one by one")
    return found


def _rows(env: Any) -> dict[str, Any]:
    """Its data sets: `train` and `test`, those that it has.

    Raises:
        RollenvError: it has none.
    """
    found = {"train": env.build_dataset(), "test": env.build_eval_dataset()}
    rows = {split: each for split, each in found.items() if each is not None}
    if not rows:
        raise RollenvError("verifiers: the environment has no data set, so there are no tasks to play")
    return rows


def _version() -> str:
    from importlib.metadata import version

    return version("verifiers")
