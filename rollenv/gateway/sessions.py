"""Sessions of a gateway: what each has asked and got, as the tokens that the model read and wrote.

Invariant: a turn's `prompt_ids` and `completion_ids` are the ids that the engine was given and sampled. A client's
messages are encoded once; its copies of earlier answers stand for the ids of those answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollenv.gateway.messages import Answer, BadMessages, conversation, read_answer
from rollenv.inference.base import Completion, Engine, EngineError, SamplingParams
from rollenv.inference.chat import ChatFormat, Conversation
from rollenv.seeding import derive_seed
from rollenv.trajectory import StopReason, Trajectory, Turn


class NoSession(BadMessages):
    """A session that is not there."""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer with what it took.

    Attributes:
        prompt: ids of the whole prompt.
        cached: how many of them earlier turns of the session had read or written already.
    """

    answer: Answer
    completion: Completion
    prompt: list[int]
    cached: int


class RecordedSession:
    """One client's conversation. Requests are answered one after another."""

    def __init__(self, name: str, number: int, chat: ChatFormat, engine: Engine, seed: int) -> None:
        self.name, self._chat, self._engine, self._seed = name, chat, engine, seed
        self._conversation = Conversation(chat)
        self._answers: list[tuple[Answer, str]] = []
        self._turn = asyncio.Lock()
        self.trajectory = Trajectory("gateway", name, seed, group=number)
        self.ended = False

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], sampling: SamplingParams
    ) -> Said:
        """Answers a conversation.

        Args:
            sampling: a `seed` below 0 is the session's own.

        Raises:
            BadMessages, EngineError: it cannot be answered; nothing is recorded.
        """
        async with self._turn:
            ours = conversation(messages, tools, self._answers)
            before = self._conversation.copy()
            try:
                prompt, new, fork = self._conversation.prompt(ours)
                turn = Turn(ours[-1].content, prompt_ids=new, fork=fork)
                completion = await self._generate(prompt, sampling, turn)
            except BaseException:
                self._conversation = before
                raise
            number = len(self._answers)
            self._conversation.answered(number, completion.ids, turn.completion)
            answer = read_answer(turn.completion, f"call-{self.name}-{number}")
            self._answers.append((answer, turn.completion))
            return Said(answer, completion, prompt, len(prompt) - len(new))

    async def complete(self, prompt: list[int], sampling: SamplingParams) -> Said:
        """Continues ids, or text that was encoded by the caller: a stream of its own, unless it goes on from the last
        one."""
        async with self._turn:
            so_far = [id for segment in self.trajectory.segments()[-1:] for id in segment.ids]
            goes_on = bool(so_far) and prompt[: len(so_far)] == so_far and len(prompt) > len(so_far)
            new = prompt[len(so_far) :] if goes_on else prompt
            turn = Turn(self._chat.decode(new), prompt_ids=new, fork=bool(so_far) and not goes_on)
            completion = await self._generate(prompt, sampling, turn)
            return Said(Answer(turn.completion), completion, prompt, len(prompt) - len(new))

    async def _generate(self, prompt: list[int], sampling: SamplingParams, turn: Turn) -> Completion:
        if self.ended:
            raise BadMessages(f"session '{self.name}' has ended: begin another one")
        if sampling.seed < 0:
            sampling = replace(sampling, seed=derive_seed(self._seed, "turn", len(self.trajectory.turns)))
        began = time.monotonic()
        completion = await self._engine.generate(prompt, sampling, session=f"gateway/{self.name}")
        turn.seconds = {"generate": time.monotonic() - began}
        if completion.finish_reason == "aborted":
            raise EngineError(f"session '{self.name}' was dropped while it was answered: others needed its place")
        turn.completion_ids, turn.logprobs = completion.ids, completion.logprobs
        turn.policy_versions = completion.policy_versions
        turn.completion = turn.action = self._chat.decode(completion.ids)
        self.trajectory.turns.append(turn)
        return completion

    async def leave(self) -> None:
        """Ends it unjudged: what is being answered is dropped, and nothing is answered any more."""
        self.ended = True
        await self._engine.abort(f"gateway/{self.name}")
        async with self._turn:
            await self._engine.release(f"gateway/{self.name}")

    async def end(self, reward: float, success: bool | None, info: Mapping[str, Any]) -> Trajectory:
        """The conversation is over and was worth so much. Returns it whole."""
        async with self._turn:
            await self._engine.release(f"gateway/{self.name}")
            if self.trajectory.turns:
                self.trajectory.turns[-1].reward = reward
            self.trajectory.stop, self.trajectory.success = StopReason.TERMINATED, success
            self.trajectory.info = dict(info)
            self.ended = True
            return self.trajectory


class Sessions:
    """All sessions of a gateway.

    A request that names no session is met again by what was said: who sends back an answer goes on with the session
    that gave it. Equal conversations that were answered alike cannot be told apart so; name them.

    Args:
        engine: what answers.
        chat: the chat format of its model.
        seed: decides, with a session's name, what is sampled in it.
        folder: where `trajectories.jsonl` gets each session that ends; None keeps them nowhere.
        most: sessions that are kept at the same time; the one that was idle for longest is dropped for another.
        invited_only: whether nobody is answered but who was expected (`begin`).
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        seed: int = 0,
        folder: Path | None = None,
        most: int = 4096,
        invited_only: bool = False,
    ) -> None:
        self.engine, self.chat = engine, chat
        self._seed, self._folder, self._most, self._invited_only = seed, folder, most, invited_only
        self._live: OrderedDict[str, RecordedSession] = OrderedDict()
        self._by_answer: dict[str, str] = {}
        self._keys: dict[str, list[str]] = {}  # of each session in it
        self._begun = 0

    def __len__(self) -> int:
        return len(self._live)

    def get(self, name: str) -> RecordedSession | None:
        """A session, if it is there."""
        return self._live.get(name)

    def begin(self, key: str, name: str, engine: Engine, seed: int) -> RecordedSession:
        """A session that is expected, until it is dismissed.

        Args:
            key: what it is found by: its name for clients, which nobody else should guess.
            name: what it is called in what they and others read; no two live ones have the same.
            engine: what answers it.
            seed: decides what is sampled in it.
        """
        session = self._live[key] = RecordedSession(name, self._begun, self.chat, engine, seed)
        self._begun += 1
        return session

    def dismiss(self, key: str) -> None:
        """Forgets a session that was begun."""
        self._live.pop(key, None)

    async def of(self, name: str | None, messages: Sequence[Mapping[str, Any]]) -> RecordedSession:
        """The session of a request, or a new one.

        Raises:
            NoSession: only expected ones are answered, and this is none.
        """
        if self._invited_only:
            if name is None or name not in self._live:
                raise NoSession("nobody is expected by that name, or not any more")
            return self._live[name]
        if name is None:
            name = self._by_answer.get(_last_answer(messages)) or f"session-{self._begun}"
        session = self._live.get(name)
        if session is None:
            seed = derive_seed(self._seed, "gateway", name)
            session = self._live[name] = RecordedSession(name, self._begun, self.chat, self.engine, seed)
            self._begun += 1
            await self._make_room()
        self._live.move_to_end(name)
        return session

    def answered(self, session: RecordedSession, messages: Sequence[Mapping[str, Any]], answer: Answer) -> None:
        """Notes by what an unnamed session will be met again."""
        if self._invited_only:
            return
        key = _last_answer([*messages, answer.as_dict()])
        self._by_answer[key] = session.name
        self._keys.setdefault(session.name, []).append(key)

    async def end(
        self, session: RecordedSession, reward: float, success: bool | None, info: Mapping[str, Any]
    ) -> Trajectory:
        """Ends a session, and writes it down.

        Raises:
            OSError: it cannot be written; the session is still there.
        """
        trajectory = await session.end(reward, success, info)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "trajectories.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(trajectory.to_dict()) + "\n")
        self._forget(session.name)
        return trajectory

    async def _make_room(self) -> None:
        while len(self._live) > self._most:
            name = next(iter(self._live))
            await self.engine.release(f"gateway/{name}")
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._live.pop(name, None)
        for key in self._keys.pop(name, ()):
            if self._by_answer.get(key) == name:
                del self._by_answer[key]


def _last_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """A key for a conversation up to its last answer; empty where nothing was answered."""
    last = max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=None)
    if last is None:
        return ""
    said = [[m.get("role"), m.get("content") or "", m.get("tool_calls") or []] for m in messages[: last + 1]]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
