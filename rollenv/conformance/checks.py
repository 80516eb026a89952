"""The checks themselves, in the order in which they are made: a later one relies on the earlier ones."""

from __future__ import annotations

import asyncio
import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import gymnasium

from rollenv.conformance.bench import Bench, Episode, Unpickle, replay
from rollenv.conformance.compare import difference
from rollenv.conformance.player import Event, Player, task_set
from rollenv.conformance.replay import replay_elsewhere
from rollenv.conformance.report import Skipped
from rollenv.conformance.resources import HAS_PROC, Holdings, left_since
from rollenv.core import TextEnv
from rollenv.errors import RollenvError, SnapshotError
from rollenv.tasks import TaskSet

_SEED_ADVICE = (
    "Draw everything random from `self.np_random`, seeded by `super().reset(seed=seed)`, and begin every episode "
    "with a clean state."
)
_NO_TEXT: tuple[Any, ...] = (None, 7, 1.5, b"bytes", ["a", "list"], {"a": "dict"})
_NONSENSE = ("", " ", "\u2603 no such action \u2603", "[no such action]", "no such action " * 500)
_GARBAGE = (b"", b"no snapshot", b"{}", b"null", b"\x80\x05garbage", bytes(range(256)))


def declarations(bench: Bench) -> None:
    """What the class says of itself."""
    with bench.open() as env:
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name), gymnasium.Space):
                raise bench.fault(f"{name} is no gymnasium.Space", "Use rollenv.TextSpace().")
        low_high = env.reward_range
        if not (isinstance(low_high, tuple) and len(low_high) == 2 and low_high[0] <= low_high[1]):
            raise bench.fault(f"reward_range is {low_high!r}", "Declare it as (lowest, highest) reward of a step.")
        if env.executor not in ("inline", "thread"):
            raise bench.fault(f"executor is {env.executor!r}", "It must be 'inline' or 'thread'.")


def contract(bench: Bench) -> None:
    """Plays the episodes that the other checks compare with; the player checks every answer."""
    with bench.player() as player:
        for index in range(bench.n_episodes):
            seed = bench.seed + index
            player.reset(seed)
            actions = player.explore(bench.generator(index), bench.n_steps, bench.policy)
            bench.episodes.append(Episode(seed, tuple(actions), tuple(player.events)))
    if not any(episode.done for episode in bench.episodes):
        bench.skip("end of an episode", f"no episode ended within {bench.n_steps} steps; pass more steps or a policy")


def seeds(bench: Bench) -> None:
    """A seed decides the episode: in another instance, after other episodes, and for the resets after it."""
    with bench.player() as player:
        for episode in reversed(bench.episodes):
            replay(player, episode, "the same seed and actions in another instance", _SEED_ADVICE)
        for episode in bench.episodes:
            replay(player, episode, "the same seed and actions after other episodes", _SEED_ADVICE)
    first = bench.episodes[0]
    next_reset: Event | None = None
    for _ in range(2):
        with bench.player() as player:
            for _ in range(2):
                replay(player, first, "the same seed and actions", _SEED_ADVICE)
                answer = player.reset()
                player.expect([answer], [next_reset or answer], "reset() after the same episode", _SEED_ADVICE)
                next_reset = answer


def another_process(bench: Bench) -> None:
    """A seed decides the episode in every process, whatever order sets of texts have there."""
    recorded = [(episode.seed, episode.actions) for episode in bench.episodes]
    kind, answer = replay_elsewhere(_portable(bench), recorded)
    if kind == "unavailable":
        raise Skipped(answer)
    if kind == "failed":
        raise bench.fault(f"playing it in a new process failed: {answer}")
    with bench.player() as player:
        for episode, events in zip(bench.episodes, answer, strict=True):
            player.resume(episode.seed, events)
            player.expect(
                events,
                episode.events,
                "the same seed and actions in another process",
                "Sort what comes out of sets before choosing from it; use no hash() of a text, no clock, no pid.",
            )


def _portable(bench: Bench) -> bytes:
    try:
        return pickle.dumps(bench.factory)
    except Exception:  # a lambda, say: then an instance travels
        with bench.open() as env:
            return pickle.dumps(Unpickle(_pickled(bench, env)))


def misuse(bench: Bench) -> None:
    """Steps before `reset` and after the end are refused with an error that says so."""
    with bench.player() as player:
        if isinstance(bench.factory, Unpickle) and player.env._np_random is not None:
            bench.skip("a step before reset", "the instance to check had been reset already; pass its id or a function")
        else:
            _expect_reset_demanded(player, "a step before the first reset")
        ended = next((episode for episode in bench.episodes if episode.done), None)
        if ended is None:
            bench.skip("a step after the end", "no recorded episode ended")
            return
        replay(player, ended, "the same seed and actions", _SEED_ADVICE)
        _expect_reset_demanded(player, "a step after the end of the episode")
        replay(player, ended, "the same seed and actions after a refused step", _SEED_ADVICE)


def _expect_reset_demanded(player: Player, what: str) -> None:
    advice = "Raise a RollenvError that says to call reset first."
    try:
        player.env.step("look")
    except (RollenvError, gymnasium.error.ResetNeeded) as error:
        if "reset" not in str(error).lower():
            player.fault(f"{what} raised an error that does not mention reset: {error}", advice, cause=error)
    except Exception as error:
        player.fault(f"{what} raised {type(error).__name__}: {error}", advice, cause=error)
    else:
        player.fault(f"{what} was accepted", advice)


def tasks(bench: Bench) -> None:
    """The task set: splits apart, contents stable, each task playable and decided by id and seed alone."""
    with bench.player() as player, bench.player() as other:
        known, known_to_other = task_set(player.env), task_set(other.env)
        if known is None or known_to_other is None:
            raise Skipped("the environment has no task set")
        _check_task_sets(bench, known, known_to_other)
        for task_id in _some_tasks(known):
            player.reset(bench.seed, task_id)
            actions = player.explore(bench.generator(task_id), min(bench.n_steps, 8), bench.policy)
            other.reset(bench.seed + 1)
            other.explore(bench.generator(task_id, "before"), 3, bench.policy)
            other.reset(bench.seed, task_id)
            other.play(actions)
            other.expect(other.events, player.events, "the same task and seed after other episodes", _SEED_ADVICE)


def _check_task_sets(bench: Bench, first: TaskSet, second: TaskSet) -> None:
    seen: dict[str, str] = {}
    for split, ids in first.splits.items():
        for task_id in ids:
            if task_id in seen:
                raise bench.fault(
                    f"task {task_id!r} is in the splits '{seen[task_id]}' and '{split}'", "Splits may not overlap."
                )
            seen[task_id] = split
    if found := difference(dict(first.splits), dict(second.splits), "tasks.splits"):
        raise bench.fault(f"two instances have other tasks: {found}", "Fix the order of the ids: sort or list them.")
    for split, ids in first.splits.items():
        some = ids[:32]
        hashes = {first.sha256(some), first.sha256(some), second.sha256(some)}
        if len(hashes) > 1:
            raise bench.fault(
                f"the hash of split '{split}' changes from call to call or between instances",
                "A task's data must depend on its id alone: no clock, no counter, no unsorted set.",
            )


def _some_tasks(task_set: TaskSet) -> list[str]:
    """The first and last task of up to four splits."""
    ends = [(ids[0], ids[-1]) for ids in list(task_set.splits.values())[:4] if ids]
    return list(dict.fromkeys(task_id for pair in ends for task_id in pair))


def options(bench: Bench) -> None:
    """Unknown tasks and options of the wrong type are refused, and the environment stays usable."""
    advice = (
        "Raise a RollenvError that says what is wrong: `self.check_options(options)` does for what is no dict, "
        "`self.tasks.split_of(id)` for an unknown task."
    )
    bad: list[Any] = ["a text", 7, ["task"], {"task": 7}, {"task": ["a", "list"]}, {"task": "no such task \u2603"}]
    with bench.player() as player:
        if task_set(player.env) is None:
            raise Skipped("the environment has no task set")
        for wrong in bad:
            refused = functools.partial(player.env.reset, options=wrong)
            _expect_refusal(player, f"reset(options={wrong!r})", refused, advice)
        for episode in bench.episodes[:1]:
            replay(player, episode, "the same seed and actions after refused options", _SEED_ADVICE)


def _expect_refusal(
    player: Player,
    what: str,
    function: Callable[[], object],
    advice: str,
    errors: tuple[type[Exception], ...] = (RollenvError,),
) -> None:
    try:
        function()
    except errors:
        return
    except Exception as error:
        player.fault(f"{what} raised {type(error).__name__}: {error}", advice, cause=error)
    player.fault(f"{what} was accepted", advice)


def admissible_actions(bench: Bench) -> None:
    """Every listed action (a sample of them, at some points of each episode) is valid when it is taken."""
    tried = 0
    with bench.player() as player:
        for episode in bench.episodes:
            for point in bench.points(episode, 3):
                listed = episode.events[point].info.get("admissible_actions", [])
                for action in bench.generator(episode.seed, point).sample(listed, min(4, len(listed))):
                    replay(player, episode, "the same seed and actions", _SEED_ADVICE, steps=point)
                    tried += 1
                    if not player.step(action).info["valid_action"]:
                        player.fault(
                            f"{action!r} was listed in info['admissible_actions'] and was not valid",
                            "List an action only when it can be taken at that moment.",
                        )
    if not tried:
        raise Skipped("the environment lists no admissible actions")


def bad_actions(bench: Bench) -> None:
    """What is no text raises, what makes no sense is invalid, and neither changes what comes next."""
    with bench.player() as player:
        for episode in bench.episodes:
            for point in bench.points(episode, 2):
                replay(player, episode, "the same seed and actions", _SEED_ADVICE, steps=point)
                for wrong in _NO_TEXT:
                    _expect_refusal(
                        player,
                        f"step({wrong!r})",
                        functools.partial(player.env.step, wrong),
                        "Call `self.check_text(action)` first: it raises InvalidAction.",
                        (RollenvError, TypeError),
                    )
                player.play(episode.actions[point:])
                player.expect(
                    player.events,
                    episode.events,
                    "the same actions after a refused one",
                    "Refuse an action before changing anything.",
                )
        if player.env.free_text:
            bench.skip("nonsense", "any text is an action here (free_text)")
            return
        for episode in bench.episodes:
            for point in bench.points(episode, 2):
                _check_nonsense(player, episode, point)


def _check_nonsense(player: Player, episode: Episode, point: int) -> None:
    replay(player, episode, "the same seed and actions", _SEED_ADVICE, steps=point)
    listed = episode.events[point].info.get("admissible_actions", [])
    said = 0
    for nonsense in _NONSENSE:
        if nonsense in listed or not player.env.action_space.contains(nonsense):
            continue
        event, said = player.step(nonsense), said + 1
        if event.info["valid_action"]:
            player.fault(
                f"the nonsense {nonsense!r:.60} was accepted as a valid action",
                "Set info['valid_action'] to False for what cannot be understood; declare `free_text = True` when any "
                "text is an action.",
            )
        if event.reward > 0 or event.terminated:
            player.fault(
                f"the nonsense {nonsense!r:.60} gave reward {event.reward}, terminated {event.terminated}",
                "An invalid action changes nothing: no reward, no end.",
            )
        if event.truncated:  # it may count towards the environment's own limit of steps
            return
    why = f"the same actions after {said} invalid ones"
    advice = "An invalid action changes nothing; leave the state and the generator as they are."
    rest = player.play(episode.actions[point:])
    if player.last.truncated and not episode.events[point + len(rest)].truncated:
        rest.pop()
        player.events.pop()
        player.expect(rest, episode.events[point + 1 : point + 1 + len(rest)], why, advice)
        return
    player.expect(rest, episode.events[point + 1 :], why, advice)
    following = player.reset()
    replay(player, episode, "the same seed and actions", _SEED_ADVICE)
    expected = player.reset()
    player.expect([following], [expected], f"{why} and then reset()", advice)


def snapshots(bench: Bench) -> None:
    """A snapshot continues to the same future, in this instance and in others, and disturbs nothing."""
    with bench.player() as player, bench.player() as other:
        player.reset(bench.seed)
        try:
            player.env.snapshot()
        except SnapshotError as error:
            raise Skipped(f"no snapshots: {error}") from None
        for episode in bench.episodes:
            for point in bench.points(episode, 4):
                _check_snapshot(player, other, episode, point)
        _check_garbage(bench, player)


def _check_snapshot(player: Player, other: Player, episode: Episode, point: int) -> None:
    replay(player, episode, "the same seed and actions", _SEED_ADVICE, steps=point)
    snapshot = player.call("snapshot", player.env.snapshot)
    if not isinstance(snapshot, bytes):
        player.fault(f"snapshot returned {type(snapshot).__name__}, not bytes")
    after = _go_on(player, episode, point, "going on after a snapshot", "Taking a snapshot may not change the state.")
    for taker, where in ((player, "the same instance"), (other, "another instance")):
        restored = taker.call("restore", functools.partial(taker.env.restore, snapshot))
        taker.resume(episode.seed, episode.events[: point + 1])
        why = f"a snapshot of step {point}, restored in {where},"
        advice = "Everything that decides the future belongs into the snapshot, the generator's state included."
        _check_restored(taker, restored, why)
        next_reset = _go_on(taker, episode, point, why, advice)
        taker.expect([next_reset], [after], f"{why} and then reset()", advice)


def _check_restored(taker: Player, restored: Any, why: str) -> None:
    if not (isinstance(restored, tuple) and len(restored) == 2 and isinstance(restored[1], dict)):
        taker.fault("restore returned no pair (observation, info)")
    keys = ("task", "admissible_actions", "tools")
    then = taker.last
    found = difference(then.observation, restored[0], "observation") or difference(
        {key: then.info[key] for key in keys if key in then.info},
        {key: restored[1][key] for key in keys if key in restored[1]},
        "info",
    )
    if found:
        taker.fault(f"{why} came back with another view: {found}", "Return what was visible when it was taken.")


def _go_on(player: Player, episode: Episode, point: int, why: str, advice: str) -> Event:
    """Plays the rest of the episode, which must be as recorded; the start of the next one from the same generator."""
    player.play(episode.actions[point:])
    player.expect(player.events, episode.events, why, advice)
    return player.reset()


def _check_garbage(bench: Bench, player: Player) -> None:
    episode = max(bench.episodes, key=lambda e: len(e.actions))
    point = bench.points(episode, 3)[-1] // 2
    replay(player, episode, "the same seed and actions", _SEED_ADVICE, steps=point)
    snapshot = player.env.snapshot()
    advice = "Check the bytes before changing anything, and raise SnapshotError."
    for garbage in (*_GARBAGE, snapshot[:-1], snapshot[: len(snapshot) // 2]):
        what = f"restore of garbage ({garbage[:20]!r}, {len(garbage)} bytes)"
        _expect_refusal(player, what, functools.partial(player.env.restore, garbage), advice, (SnapshotError,))
    player.play(episode.actions[point:])
    player.expect(player.events, episode.events, "going on after a refused restore", advice)


def pickling(bench: Bench) -> None:
    """A pickled copy plays the same, from the start and from the middle of an episode."""
    advice = "Everything that decides the future belongs into the pickle."
    with bench.player() as player:
        for episode in bench.episodes[:2]:
            middle = bench.points(episode, 3)[-1] // 2
            replay(player, episode, "the same seed and actions", _SEED_ADVICE, steps=middle)
            copy = Player(pickle.loads(_pickled(bench, player.env)), bench.check)
            try:
                copy.resume(episode.seed, episode.events[: middle + 1])
                copy.play(episode.actions[middle:])
                copy.expect(copy.events, episode.events, f"a copy pickled at step {middle}", advice)
                replay(copy, episode, "the same seed and actions in a pickled copy", advice)
            finally:
                bench.close(copy.env)


def _pickled(bench: Bench, env: TextEnv) -> bytes:
    try:
        return pickle.dumps(env)
    except Exception as error:
        raise bench.fault(
            f"it cannot be pickled: {type(error).__name__}: {error}",
            "Leave what cannot be pickled out in __getstate__ and make it anew when it is needed.",
        ) from error


def asynchronous(bench: Bench) -> None:
    """`areset` and `astep` give what `reset` and `step` give."""

    def play() -> None:
        with bench.open() as env, asyncio.Runner() as runner:
            player = Player(env, bench.check, runner=runner)
            for episode in bench.episodes:
                replay(player, episode, "the same seed and actions through areset and astep", _SEED_ADVICE)
            _pickled(bench, env)

    _in_thread(play)


def _in_thread(function: Callable[[], None]) -> None:
    """Runs `function` in a thread, where no event loop can be running yet, and raises what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="check_env")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def leaks(bench: Bench) -> None:
    """After `close` nothing is left: no thread, no open file, no child process. Closing twice is fine."""
    _live_and_close(bench)  # what the first instance opens for the whole process stays
    before = Holdings()
    _live_and_close(bench)
    _in_thread(lambda: _live_asynchronously(bench))
    if left := left_since(before):
        held = ", ".join(f"{what} ({count} times)" if count > 1 else what for what, count in sorted(left.items()))
        raise bench.fault(f"close left behind: {held}", "End, close and wait for in close() what the instance opened.")
    if not HAS_PROC:
        bench.skip("open files and child processes", "this system has no /proc")


def _live_and_close(bench: Bench) -> None:
    env = bench.create()
    player = Player(env, bench.check)
    for episode in bench.episodes[:1]:
        replay(player, episode, "the same seed and actions", _SEED_ADVICE)
    player.call("close", env.close)
    player.call("the second close", env.close)


def _live_asynchronously(bench: Bench) -> None:
    with bench.open() as env, asyncio.Runner() as runner:
        Player(env, bench.check, runner=runner).reset(bench.seed)


CHECKS: dict[str, Callable[[Bench], None]] = {
    "declarations": declarations,
    "contract": contract,
    "seeds": seeds,
    "another process": another_process,
    "misuse": misuse,
    "tasks": tasks,
    "options": options,
    "admissible actions": admissible_actions,
    "bad actions": bad_actions,
    "snapshots": snapshots,
    "pickling": pickling,
    "asynchronous calls": asynchronous,
    "leaks": leaks,
}
