"""One episode: whatever happens, exactly one labelled trajectory; whatever is cancelled reaches the engine."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rollout.fakes import END, Fragile, Letters, Recorder, babbles, model_play, run, says

from rollenv.inference import Completion, EngineError
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.play import ScriptedPlay
from rollenv.seeding import derive_seed
from rollenv.trajectory import StopReason, Trajectory

REQUEST = EpisodeRequest("t1", seed=7, group=4, sample=2, attempt=1)


@pytest.fixture
def freed() -> Iterator[threading.Event]:
    """Set at the end, so that hung threads go home."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def world(freed: threading.Event) -> Callable[[str], Callable[[], Fragile]]:
    return lambda fault="": lambda: Fragile(lambda task, tried: fault, Counter(), freed)


World = Callable[..., Callable[[], Fragile]]


def test_a_clean_episode_records_everything(world: World) -> None:
    engine = Recorder(babbles)
    trajectory = run(model_play(world(), engine)(REQUEST))
    assert trajectory.stop is StopReason.TERMINATED
    assert (trajectory.task, trajectory.seed) == ("t1", 7)
    assert (trajectory.group, trajectory.sample, trajectory.attempt) == (4, 2, 1)
    assert trajectory.success is True
    assert trajectory.failure is None
    assert trajectory.reward == 0.75
    assert [turn.observation for turn in trajectory.turns] == ["t1:0", "t1:1", "t1:2"]
    assert [s.seed for s in engine.samplings] == [derive_seed(7, "turn", i) for i in range(3)]
    for turn in trajectory.turns:
        assert len(turn.completion_ids) == len(turn.logprobs) == len(turn.policy_versions)
        assert turn.completion_ids[-1] == END
        assert turn.action == turn.completion == Letters().decode(turn.completion_ids)
        assert turn.seconds.keys() == {"generate", "env"}
    assert engine.released == ["train/4/2/1"]
    assert engine.aborted == []


def test_one_attempt_after_another_has_the_same_randomness(world: World) -> None:
    play = model_play(world(), Recorder(babbles))
    first, second = (run(play(EpisodeRequest("t1", 7, attempt=attempt))) for attempt in (0, 1))
    assert [t.completion_ids for t in first.turns] == [t.completion_ids for t in second.turns]


LABELS = {
    "reset crash": ("crash", "KeyError"),
    "reset hang": ("timeout", "reset took longer than 0.5 s"),
    "reset tuple": ("bad_output", "reset must return"),
    "reset number": ("bad_output", "reset must return"),
    "step crash": ("crash", "RuntimeError: broken at step"),
    "step hang": ("timeout", "step took longer than 0.5 s"),
    "step exit": ("crash", "SystemExit"),
    "step own timeout": ("crash", "TimeoutError: a socket's"),
    "nan": ("bad_output", "finite float"),
    "inf": ("bad_output", "finite float"),
    "huge": ("bad_output", ""),
    "no number": ("bad_output", "finite float"),
    "bytes": ("bad_output", "must return"),
    "short": ("bad_output", "must return"),
    "no info": ("bad_output", "must return"),
    "vector": ("bad_output", ""),
}


@pytest.mark.parametrize("fault", Fragile.FAULTS)
def test_an_environments_fault_is_labelled_and_never_trains(world: World, fault: str) -> None:
    play = model_play(world(fault), **({"reset_seconds": 0.5, "step_seconds": 0.5} if "hang" in fault else {}))
    trajectory = run(play(REQUEST))
    kind, message = LABELS[fault]
    assert trajectory.stop is StopReason.FAILED
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.kind) == ("env", kind)
    assert message in trajectory.failure.message
    assert trajectory.failure.turn == (None if fault.startswith("reset") else 1)
    assert not trajectory.trainable
    assert trajectory.success is None
    assert play.engine.aborted == ["train/4/2/1"]


def test_a_faulty_environment_is_never_used_again_and_a_clean_one_is(freed: threading.Event) -> None:
    made: list[Fragile] = []
    tries: Counter[str] = Counter()

    def make() -> Fragile:
        made.append(Fragile(lambda task, tried: "step crash" if task == "bad" else "", tries, freed))
        return made[-1]

    play = model_play(make)
    for task in ("a", "b", "bad", "c"):
        run(play(EpisodeRequest(task, 1)))
    assert len(made) == 2
    play.pool.close()
    assert made[1].closed


def test_an_environment_that_cannot_be_made_is_a_labelled_fault() -> None:
    def make() -> Any:
        raise ConnectionError("no container")

    trajectory = run(model_play(make)(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.stop, trajectory.failure.where, trajectory.failure.kind) == (StopReason.FAILED, "env", "crash")
    assert "no container" in trajectory.failure.message
    assert (trajectory.group, trajectory.sample, trajectory.attempt) == (4, 2, 1)


def test_a_call_that_raises_before_it_can_be_awaited_is_a_crash_of_the_environment(world: World) -> None:
    env = world()()

    def astep(action: str) -> Any:
        raise ValueError("not even a coroutine")

    env.astep = astep  # type: ignore[method-assign]
    trajectory = run(model_play(lambda: env)(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.kind) == ("env", "crash")
    assert trajectory.failure.message == "step: ValueError: not even a coroutine"


def failing(prompt: Any, sampling: Any) -> list[int]:
    raise ValueError("no memory")


class Wrong(Recorder):
    """Returns a completion that is not one."""

    def __init__(self, completion: Completion) -> None:
        super().__init__()
        self.completion = completion

    async def generate(self, prompt_ids: Any, sampling: Any, *, session: str) -> Completion:
        return self.completion


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        (lambda: Recorder(failing), "crash"),
        (lambda: Recorder(says("very long"), seconds_per_token=5.0), "timeout"),
        (lambda: Wrong(Completion([], [], [], "stop")), "bad_output"),
        (lambda: Wrong(Completion([5], [-0.5, -0.5], [0], "stop")), "bad_output"),
        (lambda: Wrong(Completion([5], [-0.5], [], "stop")), "bad_output"),
        (lambda: Wrong(Completion([5], [math.nan], [0], "stop")), "bad_output"),
        (lambda: Wrong(Completion([5], [-math.inf], [0], "stop")), "bad_output"),
        (lambda: Wrong(Completion([5], [-0.5], [0], "aborted")), "crash"),
    ],
)
def test_an_engines_fault_is_labelled(world: World, engine: Callable[[], Any], kind: str) -> None:
    trajectory = run(model_play(world(), engine(), generate_seconds=0.05)(REQUEST))
    assert trajectory.stop is StopReason.FAILED
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.kind) == ("engine", kind)
    assert not trajectory.trainable


class BadAgent:
    """Fails where it is told to."""

    def __init__(self, at: str) -> None:
        self.at = at

    def messages(self, history: Any) -> Any:
        from rollenv.messages import Message

        if self.at == "messages":
            raise KeyError("clickables")
        return [Message("user", "x", 0)]

    def action(self, text: str, step: Any) -> str:
        raise IndexError("no such number")


@pytest.mark.parametrize("at", ["messages", "action"])
def test_an_agents_fault_is_labelled(world: World, at: str) -> None:
    trajectory = run(model_play(world(), agent=BadAgent(at))(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.kind) == ("agent", "crash")


def test_a_program_that_cannot_be_made_or_fails_is_a_labelled_fault(world: World) -> None:
    class Broken:
        def reset(self, seed: int) -> None:
            return None

        def act(self, observation: str, info: Any) -> str:
            raise IndexError("lost")

    def unmade() -> Any:
        raise OSError("no file")

    for make in (Broken, unmade):
        trajectory = run(ScriptedPlay(EnvPool(world()), "fragile", make, EpisodeLimits())(REQUEST))
        assert trajectory.failure is not None
        assert (trajectory.failure.where, trajectory.failure.kind) == ("agent", "crash")


def test_limits_end_an_episode_without_a_failure(world: World) -> None:
    two = run(model_play(world(), max_turns=2)(REQUEST))
    assert (two.stop, len(two.turns), two.failure) == (StopReason.MAX_TURNS, 2, None)
    assert two.trainable
    # "<t1:0>" is 6 letters and "ok" + END 3: the second prompt has 9 + "|<t1:1>" = 16.
    short = run(model_play(world(), max_tokens=16)(REQUEST))
    assert (short.stop, len(short.turns)) == (StopReason.MAX_TOKENS, 1)
    cut = run(model_play(world(), max_tokens=17)(REQUEST))
    assert [len(t.completion_ids) for t in cut.turns] == [3, 1]
    assert cut.stop is StopReason.MAX_TOKENS


def test_an_answer_cut_by_the_limit_gets_its_end_token_unmasked_out_of_training(world: World) -> None:
    """The appended end-of-turn token is something read: its mask is 0 and it has no log-probability."""
    engine = Recorder(lambda prompt, sampling: [ord("x")] * sampling.max_tokens)
    trajectory = run(model_play(world(), engine)(REQUEST))
    (segment,) = trajectory.segments()
    ends = [i for i, token in enumerate(segment.ids) if token == END]
    assert len(ends) == 2
    assert [segment.mask[i] for i in ends] == [0, 0]
    assert [segment.policy_versions[i] for i in ends] == [-1, -1]
    assert sum(segment.mask) == sum(len(t.completion_ids) for t in trajectory.turns) == 3 * 16


def test_a_deadline_of_the_whole_episode(world: World) -> None:
    engine = Recorder(says("slow"), seconds_per_token=5.0)
    trajectory = run(model_play(world(), engine, episode_seconds=0.05)(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.stop, trajectory.failure.kind) == (StopReason.FAILED, "timeout")
    assert "the episode took longer than 0.05 s" in trajectory.failure.message
    assert engine.running == 0
    assert trajectory.failure.where == "engine"  # it was the engine that was at it


def test_a_deadline_of_the_whole_episode_names_who_was_at_it(world: World) -> None:
    trajectory = run(model_play(world("step hang"), step_seconds=None, episode_seconds=0.3)(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.kind) == ("env", "timeout")
    assert "the episode took longer" in trajectory.failure.message


@pytest.mark.parametrize("how", ["cancelled", "too slow", "episode too slow", "aborted by the engine"])
def test_tokens_of_a_turn_that_never_ended_are_recorded_and_never_train(world: World, how: str) -> None:
    """Two of ten letters are said, then it hangs; then it is cut off, one way or another."""

    class Hangs(Recorder):
        said = 0

        async def _wait(self, aborted: asyncio.Event) -> None:
            if self.said == 2:
                await aborted.wait()
                return
            self.said += 1

    engine = Hangs(says("ten letters"))
    limits = {"too slow": {"generate_seconds": 0.05}, "episode too slow": {"episode_seconds": 0.05}}.get(how, {})

    async def main() -> Trajectory:
        play = asyncio.ensure_future(model_play(world(), engine, **limits)(REQUEST))
        while engine.said < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        if how == "cancelled":
            play.cancel()
        elif how.startswith("aborted"):
            await engine.abort("train/4/2/1")
        return await play

    trajectory = run(main())
    assert trajectory.stop is (StopReason.ABORTED if how == "cancelled" else StopReason.FAILED)
    (turn,) = trajectory.turns
    assert (turn.completion, turn.action, turn.observation) == ("te", "", "t1:0")
    assert len(turn.completion_ids) == len(turn.logprobs) == len(turn.policy_versions) == 2
    assert not trajectory.trainable
    ledger = Ledger()
    ledger.dispatch()
    ledger.settle(trajectory)
    assert ledger.wasted_tokens == ledger.tokens == 2


async def cancelled(work: Any, until: Callable[[], bool]) -> Trajectory:
    task = asyncio.ensure_future(work)
    while not until():
        await asyncio.sleep(0.001)
    task.cancel()
    return await task


def test_cancelling_in_mid_generation_aborts_in_the_engine(world: World) -> None:
    engine = Recorder(says("slow"), seconds_per_token=5.0)
    trajectory = run(cancelled(model_play(world(), engine)(REQUEST), lambda: engine.running == 1))
    assert trajectory.stop is StopReason.ABORTED
    assert not trajectory.trainable
    assert engine.aborted == ["train/4/2/1"]
    assert engine.running == 0


def test_cancelling_in_a_hanging_step_ends_the_episode_at_once(freed: threading.Event) -> None:
    tries: Counter[str] = Counter()
    made = [Fragile(lambda task, tried: "step hang", tries, freed)]
    engine = Recorder()
    play = model_play(lambda: made[0], engine, step_seconds=60)
    trajectory = run(cancelled(play(REQUEST), lambda: getattr(made[0], "_at", 0) == 2))
    assert trajectory.stop is StopReason.ABORTED
    assert trajectory.reward == 0.25
    assert not trajectory.trainable
    assert engine.aborted == ["train/4/2/1"]
    assert run(play.pool.acquire()) is made[0]  # from make(): it was not put back among the idle
    assert not play.pool._idle


def test_an_engine_that_fails_on_abort_is_a_fault_not_an_exception(world: World) -> None:
    class Stubborn(Recorder):
        async def release(self, session: str) -> None:
            raise EngineError("gone")

    trajectory = run(model_play(world(), Stubborn())(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.stop, trajectory.failure.where) == (StopReason.FAILED, "engine")


def test_an_engine_that_never_lets_go_is_left_after_its_deadline(world: World) -> None:
    class Clinging(Recorder):
        async def release(self, session: str) -> None:
            await asyncio.Event().wait()

    trajectory = run(model_play(world(), Clinging(), generate_seconds=0.05)(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.kind) == ("engine", "timeout")
    assert "leaving the engine took longer than 0.05 s" in trajectory.failure.message
