"""What a controller and an engine in a worker say to each other: many words in one message.

All that is asked in one turn of the controller's loop goes out in one call; all that a step of the engine has finished
comes back in one. A prompt is sent without what the worker knows of its session already. An episode's turns add little
to what was said before: a message for each, with the whole of it, costs more than a small model's own work.

Invariant: every question gets one answer, its completion or its error, or the line breaks and all of them get that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from rollenv.cluster.runtime import Handle
from rollenv.inference.base import Completion, Engine, EngineError, SamplingParams, fork, made_before, note_made

Verb = Literal["generate", "abort", "release", "fork"]


class Question(NamedTuple):
    """One call of an engine's method. For `generate`, `known` of the tokens that the session last had come first in the
    prompt, then `ids`; for `fork`, `source` is the other session."""

    number: int
    verb: Verb
    session: str
    known: int = 0
    ids: Sequence[int] = ()
    sampling: SamplingParams | None = None
    source: str = ""


class Answer(NamedTuple):
    """What became of it."""

    number: int
    completion: Completion | None = None
    error: EngineError | None = None


class Sessions:
    """The tokens that each session had when its last completion ended. Both ends of a line keep the same books."""

    def __init__(self) -> None:
        self._tokens: dict[str, list[int]] = {}

    def known(self, session: str, prompt: Sequence[int]) -> int:
        """How many of the first tokens of `prompt` need not be said: all that the session had, or none."""
        tokens = self._tokens.get(session, [])
        return len(tokens) if prompt[: len(tokens)] == tokens else 0

    def prompt(self, question: Question) -> list[int]:
        """The whole prompt of a question.

        Raises:
            EngineError: the books of the two ends differ.
        """
        tokens = self._tokens.get(question.session, [])
        if question.known not in (0, len(tokens)):
            raise EngineError(f"session '{question.session}' has {len(tokens)} tokens here, not {question.known}")
        return [*tokens[: question.known], *question.ids]

    def ended(self, session: str, prompt: Sequence[int], completion: Completion | None) -> None:
        """A completion has ended; None: it has failed."""
        if completion is None:
            self._tokens.pop(session, None)
        else:
            self._tokens[session] = [*prompt, *completion.ids]

    def forget(self, session: str) -> None:
        """The session will not come back, or begins anew."""
        self._tokens.pop(session, None)


class Desk:
    """The worker's end: answers questions with an engine. For one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions = Sessions()
        self._answers: list[Answer] = []
        self._some = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, questions: Sequence[Question]) -> None:
        """Takes questions; `answers` gives their answers, in any order."""
        for question in questions:
            task = asyncio.get_running_loop().create_task(self._serve(question))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def answers(self) -> list[Answer]:
        """Waits until there are answers, and gives all that come in the same turn of the loop."""
        await self._some.wait()
        await asyncio.sleep(0)
        self._some.clear()
        answers, self._answers = self._answers, []
        return answers

    async def _serve(self, question: Question) -> None:
        try:
            answer = Answer(question.number, await self._carry_out(question))
        except Exception as error:
            answer = Answer(question.number, error=_portable(error))
        self._answers.append(answer)
        self._some.set()

    async def _carry_out(self, question: Question) -> Completion | None:
        session = question.session
        match question.verb:
            case "generate":
                return await self._generate(question)
            case "abort":
                self._sessions.forget(session)
                await self._engine.abort(session)
            case "release":
                self._sessions.forget(session)
                await self._engine.release(session)
            case "fork":
                await fork(self._engine, question.source, session)
        return None

    async def _generate(self, question: Question) -> Completion:
        assert question.sampling is not None
        prompt, completion = self._sessions.prompt(question), None
        try:
            completion = await self._engine.generate(prompt, question.sampling, session=question.session)
        finally:
            if completion is not None and completion.finish_reason == "aborted":
                self._sessions.forget(question.session)
            else:
                self._sessions.ended(question.session, prompt, completion)
        return completion


def _portable(error: Exception) -> EngineError:
    """An error that can be sent: others' classes may not be picklable."""
    if isinstance(error, EngineError):
        return error
    sent = EngineError(f"{type(error).__name__}: {error}".rstrip(": "))
    if (made := made_before(error)) is not None:
        note_made(sent, made)
    return sent


class Line:
    """The controller's end.

    Args:
        handle: the worker, whose methods `ask` and `answers` are those of a `Desk`.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._sessions = Sessions()
        self._numbers = itertools.count()
        self._forget_loop()

    def _forget_loop(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[int, asyncio.Future[Completion | None]] = {}
        self._outgoing: list[Question] = []
        self._listener: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def generate(self, prompt: Sequence[int], sampling: SamplingParams, session: str) -> asyncio.Future[Completion]:
        """Asks for a completion."""
        ids = list(prompt)
        known = self._sessions.known(session, ids)
        future = self._say(Question(0, "generate", session, known, ids[known:], sampling))
        future.add_done_callback(lambda done: self._ended(session, ids, done))
        return future

    def tell(self, verb: Verb, session: str, source: str = "") -> asyncio.Future[Completion | None]:
        """Asks for anything else."""
        if verb != "fork":
            self._sessions.forget(session)
        return self._say(Question(0, verb, session, source=source))

    def _ended(self, session: str, prompt: list[int], done: asyncio.Future[Completion | None]) -> None:
        good = not done.cancelled() and done.exception() is None
        completion = done.result() if good else None
        if completion is not None and completion.finish_reason == "aborted":
            completion = None
        self._sessions.ended(session, prompt, completion)

    def _say(self, question: Question) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._forget_loop()
            self._loop = loop
        question = question._replace(number=next(self._numbers))
        future = self._open[question.number] = loop.create_future()
        self._outgoing.append(question)
        if len(self._outgoing) == 1:
            loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        """Sends what was asked since the last turn of the loop, and listens."""
        questions, self._outgoing = self._outgoing, []
        self._spawn(self._send(questions))
        if self._listener is None or self._listener.done():
            self._listener = self._spawn(self._listen())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self, questions: list[Question]) -> None:
        with self._breaking():
            await self._handle.call("ask", questions)

    async def _listen(self) -> None:
        with self._breaking():
            while self._open:
                for answer in await self._handle.call("answers"):
                    self._answered(answer)

    def _answered(self, answer: Answer) -> None:
        future = self._open.pop(answer.number, None)
        if future is None or future.done():
            return
        if answer.error is not None:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.completion)

    @contextlib.contextmanager
    def _breaking(self) -> Iterator[None]:
        """Whatever goes wrong with the line itself is the answer to all that is open."""
        try:
            yield
        except Exception as error:
            broken, self._open = self._open, {}
            for future in broken.values():
                if not future.done():
                    future.set_exception(error)
