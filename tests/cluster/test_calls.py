"""Many words in one message: every question is answered once, prompts arrive whole, and a broken line says so."""

from __future__ import annotations

import asyncio
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.cluster.calls import Desk, Line
from rollenv.cluster.runtime import WorkerDied
from rollenv.inference import EngineError, InvalidRequest, SamplingParams, ScriptedEngine
from rollenv.inference.base import made_before


class Recording(ScriptedEngine):
    """Says what its prompt ends with; remembers prompts, and who was released or forked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(lambda prompt, sampling: [prompt[-1] + 1, prompt[-1] + 2], **options)
        self.prompts: list[tuple[str, list[int]]] = []
        self.told: list[tuple[str, ...]] = []

    async def generate(self, prompt_ids: Any, sampling: Any, *, session: str) -> Any:
        self.prompts.append((session, list(prompt_ids)))
        if prompt_ids[-1] == 13:
            raise InvalidRequest("unlucky")
        if prompt_ids[-1] == 14:
            raise ZeroDivisionError("a defect")
        return await super().generate(prompt_ids, sampling, session=session)

    async def release(self, session: str) -> None:
        self.told.append(("release", session))
        await super().release(session)

    async def fork(self, source: str, session: str) -> None:
        self.told.append(("fork", source, session))


class Wire:
    """A handle to a desk: what goes over it is pickled; counts calls and tokens; `cut` breaks it."""

    name = "wire"

    def __init__(self, engine: Any, late: random.Random | None = None) -> None:
        self.desk, self.calls, self.tokens, self._late = Desk(engine), 0, 0, late
        self._cut = asyncio.Event()

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._cut.is_set():
            raise WorkerDied("worker 'wire' has ended")
        args = pickle.loads(pickle.dumps(args))
        self.calls += 1
        if method == "ask":
            self.tokens += sum(len(q.ids) for q in args[0])
            self.desk.ask(args[0])
            return None
        work, cut = asyncio.ensure_future(self.desk.answers()), asyncio.ensure_future(self._cut.wait())
        await asyncio.wait({work, cut}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            raise WorkerDied("worker 'wire' died")
        cut.cancel()
        return pickle.loads(pickle.dumps(work.result()))

    async def stop(self, seconds: float = 10.0) -> None:
        self.cut()

    def kill(self) -> None:
        self.cut()

    def cut(self) -> None:
        self._cut.set()


SAMPLING = SamplingParams(max_tokens=8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_prompts_arrive_whole_whatever_sessions_do(seed: int) -> None:
    """Sessions that grow, that begin anew, that leave and come back, that fail, side by side."""
    draw = random.Random(seed)

    async def main() -> None:
        engine = Recording()
        line = Line(Wire(engine))  # type: ignore[arg-type]
        said: list[tuple[str, list[int]]] = []

        async def live(session: str) -> None:
            history: list[int] = []
            for _ in range(8):
                what = draw.random()
                if what < 0.15:
                    await line.tell("release", session)
                if what < 0.3:
                    history = []
                history = history + [draw.randrange(20) for _ in range(draw.randint(1, 4))]
                said.append((session, history))
                [answer] = await asyncio.gather(line.generate(history, SAMPLING, session), return_exceptions=True)
                if isinstance(answer, BaseException):
                    assert type(answer) is {13: InvalidRequest, 14: EngineError}[history[-1]]
                    history = [1]
                else:
                    assert answer.ids == [history[-1] + 1, history[-1] + 2]
                    history = history + answer.ids

        await asyncio.gather(*(live(str(i)) for i in range(4)))
        assert sorted(said) == sorted(engine.prompts)
        assert not line._open

    asyncio.run(main())


def test_a_turns_questions_go_out_together_without_what_is_known() -> None:
    async def main() -> None:
        wire = Wire(Recording())
        line = Line(wire)  # type: ignore[arg-type]
        histories = {str(i): list(range(100, 300)) for i in range(50)}
        for _ in range(3):
            made = await asyncio.gather(*(line.generate(h, SAMPLING, s) for s, h in histories.items()))
            histories = {s: [*h, *c.ids, 7, 7] for (s, h), c in zip(histories.items(), made, strict=True)}
        assert wire.tokens == 50 * (200 + 2 + 2)
        assert wire.calls <= 12, "one to ask and a few to listen, for fifty"

    asyncio.run(main())


def test_leaving_and_forking_reach_the_engine() -> None:
    async def main() -> None:
        engine = Recording()
        line = Line(Wire(engine))  # type: ignore[arg-type]
        await line.generate([1, 2], SAMPLING, "a")
        await line.tell("fork", "b", source="a")
        await line.tell("release", "a")
        await line.generate([1, 2, 3], SAMPLING, "b")
        assert engine.told == [("fork", "a", "b"), ("release", "a")]
        assert [prompt for _, prompt in engine.prompts] == [[1, 2], [1, 2, 3]]

    asyncio.run(main())


def test_an_aborted_completion_is_answered_and_its_session_begins_anew() -> None:
    async def main() -> None:
        engine = Recording(seconds_per_token=0.02)
        wire = Wire(engine)
        line = Line(wire)  # type: ignore[arg-type]
        call = line.generate([1, 2], SAMPLING, "a")
        await asyncio.sleep(0.03)
        await line.tell("abort", "a")
        assert (await call).finish_reason == "aborted"
        await line.generate([1, 2, 4], SAMPLING, "a")
        assert engine.prompts[-1] == ("a", [1, 2, 4])

    asyncio.run(main())


def test_when_the_worker_dies_all_that_is_open_hears_it_and_later_questions_too() -> None:
    async def main() -> None:
        wire = Wire(Recording(seconds_per_token=5.0))
        line = Line(wire)  # type: ignore[arg-type]
        calls = [line.generate([1], SAMPLING, str(i)) for i in range(3)]
        await asyncio.sleep(0.01)
        wire.cut()
        assert all(isinstance(e, WorkerDied) for e in await asyncio.gather(*calls, return_exceptions=True))
        with pytest.raises(WorkerDied):
            await line.generate([1], SAMPLING, "x")
        assert not line._open

    asyncio.run(main())


def test_books_that_differ_are_an_error_and_no_wrong_prompt() -> None:
    async def main() -> None:
        engine = Recording()
        wire = Wire(engine)
        line = Line(wire)  # type: ignore[arg-type]
        await line.generate([1, 2], SAMPLING, "a")
        wire.desk._sessions.forget("a")
        with pytest.raises(EngineError, match="session 'a' has 0 tokens here, not 4"):
            await line.generate([1, 2, 3, 4, 9], SAMPLING, "a")
        assert len(engine.prompts) == 1
        assert (await line.generate([1, 2, 3, 4, 9], SAMPLING, "a")).ids == [10, 11]

    asyncio.run(main())


def test_what_had_been_made_stays_on_an_error_that_cannot_be_sent() -> None:
    class Breaking(Recording):
        async def generate(self, prompt_ids: Any, sampling: Any, *, session: str) -> Any:
            class Local(Exception):
                pass

            from rollenv.inference.base import Completion, note_made

            error = Local("half way")
            note_made(error, Completion([1], [0.0], [0], "aborted"))
            raise error

    async def main() -> None:
        line = Line(Wire(Breaking()))  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="Local: half way") as raised:
            await line.generate([1], SAMPLING, "a")
        made = made_before(raised.value)
        assert made is not None
        assert made.ids == [1]

    asyncio.run(main())
