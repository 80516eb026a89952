"""A remote environment is the local one: the same contract, the same traces, whatever happens to its connection."""

from __future__ import annotations

import asyncio
import functools
import pickle
import random
import threading
from typing import Any

import pytest
import toys
from server.serving import served, until

import rollenv
from rollenv.errors import InvalidAction, RollenvError
from rollenv.server.client import RemoteEnv, facts_of


@pytest.fixture(autouse=True)
def forget_servers() -> None:
    facts_of.cache_clear()  # another server may get the port of an earlier one


def trace(env: rollenv.TextEnv, task: str, seed: int, steps: int = 12) -> list[Any]:
    """An episode of random admissible actions, and now and then nonsense."""
    draw = random.Random(f"{task} {seed}")
    seen: list[Any] = [env.reset(seed=seed, options={"task": task})]
    for _ in range(steps):
        actions = seen[-1][-1].get("admissible_actions") or ["x"]
        seen.append(env.step(draw.choice([*actions, "nonsense"])))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


@pytest.mark.parametrize("name", ["webshop", "alfworld"])
def test_a_remote_environment_keeps_the_contract(name: str) -> None:
    # Pings draw from the global generator, which in this process would be the environment's fault.
    with served(name, ping_seconds=1e6) as (address, _):
        rollenv.connect(f"{address}/{name}").reset()  # the loop of all connections outlives environments
        here = rollenv.check_env(name)
        there = rollenv.check_env(functools.partial(rollenv.connect, f"{address}/{name}"))
        assert (there.passed, there.skipped) == (here.passed, here.skipped)
        assert {"snapshots", "pickling", "tasks", "admissible actions"} <= set(there.passed)


@pytest.mark.parametrize("name", ["webshop", "alfworld"])
def test_traces_are_those_of_the_local_environment(name: str) -> None:
    local = rollenv.make(name)
    tasks = local.tasks.ids(rollenv.spec(name).eval_split)[:10]
    with served(name) as (address, _):
        remote = rollenv.connect(f"{address}/{name}")
        assert remote.tasks.splits == local.tasks.splits
        assert remote.tasks.sha256(tasks[:3]) == local.tasks.sha256(tasks[:3])
        for seed, task in enumerate(tasks):
            assert trace(remote, task, seed) == trace(local, task, seed)
        remote.close()


def test_many_at_once_do_not_see_each_other(colours: Any) -> None:
    address, hosts = colours
    env = toys.Colours()
    tasks = env.tasks.ids("test")[:8]
    expected = {task: trace(env, task, 1) for task in tasks}

    async def play(task: str) -> list[Any]:
        remote = rollenv.connect(address)
        draw = random.Random(f"{task} 1")
        seen: list[Any] = [await remote.areset(seed=1, options={"task": task})]
        for _ in range(12):
            seen.append(await remote.astep(draw.choice([*seen[-1][-1]["admissible_actions"], "nonsense"])))
            if seen[-1][2] or seen[-1][3]:
                break
        remote.close()
        return seen

    async def all_of_them() -> list[list[Any]]:
        return await asyncio.gather(*map(play, tasks))

    assert asyncio.run(all_of_them()) == [expected[task] for task in tasks]
    until(lambda: not len(hosts["colours"].sessions))


def test_errors_are_those_of_the_environment(colours: Any) -> None:
    env = rollenv.connect(colours[0])
    with pytest.raises(RollenvError, match=r"the episode is over or has not begun"):
        env.step("red")
    with pytest.raises(RollenvError, match="has no task 'nowhere'"):
        env.reset(options={"task": "nowhere"})
    with pytest.raises(InvalidAction, match="an action must be text"):
        env.step(7)  # type: ignore[arg-type]
    with pytest.raises(rollenv.SnapshotError):
        env.restore(b"no snapshot")
    env.close()


def test_an_episode_survives_its_connection_and_plays_nothing_twice(colours: Any) -> None:
    address, hosts = colours
    env = rollenv.connect(address)
    task = env.tasks.ids("test")[0]
    colour = env.tasks.get(task).data["colour"]
    env.reset(options={"task": task})
    break_connection(env)
    assert env.step(colour)[:2] == ("again", 0.0)
    session = hosts["colours"].sessions.all()[0]
    break_connection(env)
    assert env.step(colour)[1:3] == (1.0, True)
    assert session.steps == 2
    env.close()


def break_connection(env: RemoteEnv) -> None:
    from rollenv.server.client import _loop

    line: Any = env._line
    done = threading.Event()
    _loop().loop.call_soon_threadsafe(lambda: (line._socket.transport.abort(), done.set()))
    done.wait(5)


def test_an_answer_that_is_lost_on_its_way_is_given_again(colours: Any) -> None:
    """The server has played the step, and the connection breaks before the client hears of it."""
    from websockets.asyncio.client import ClientConnection

    address, hosts = colours
    env = rollenv.connect(address)
    task = env.tasks.ids("test")[0]
    colour = env.tasks.get(task).data["colour"]
    env.reset(options={"task": task})
    session = hosts["colours"].sessions.all()[0]
    real = ClientConnection.recv
    lost = []

    async def recv(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await real(self, *args, **kwargs)
        if not lost:
            lost.append(answer)
            self.transport.abort()
            raise ConnectionResetError("lost")
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientConnection, "recv", recv)
        assert env.step(colour)[0] == "again"
    assert lost
    assert session.steps == 1
    env.close()


def forgotten(address: str, hosts: Any) -> RemoteEnv:
    """An environment whose connection is broken, and whose session the server has ended."""
    env = rollenv.connect(address)
    env.reset()
    host = hosts["colours"]
    host.end(host.sessions.all()[0])
    break_connection(env)
    return env


def test_a_server_that_has_forgotten_the_session_says_so(colours: Any) -> None:
    env = forgotten(*colours)
    with pytest.raises(RollenvError, match="there is no session"):
        env.step("red")


def test_a_refusal_is_read_also_when_the_server_has_hung_up_by_then(
    colours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from websockets.asyncio.client import ClientConnection

    env = forgotten(*colours)
    send = ClientConnection.send

    async def late(self: Any, message: str) -> None:
        await self.wait_closed()
        await send(self, message)

    monkeypatch.setattr(ClientConnection, "send", late)
    with pytest.raises(RollenvError, match="there is no session"):
        env.step("red")


def test_a_copy_goes_on_from_the_same_point_in_a_session_of_its_own(colours: Any) -> None:
    address, hosts = colours
    env = rollenv.connect(address)
    task = env.tasks.ids("test")[0]
    colour = env.tasks.get(task).data["colour"]
    env.reset(options={"task": task})
    env.step(colour)
    copy = pickle.loads(pickle.dumps(env))
    assert env.step("nonsense") == copy.step("nonsense")
    assert env.step(colour) == copy.step(colour)
    assert len(hosts["colours"].sessions) == 2
    env.close()
    copy.close()


def test_futures_from_one_snapshot_are_drawn_from_their_own_seeds(temp_registry: Any) -> None:
    """As of a local environment: restored with a seed, and reseeded, by either kind of call."""
    rollenv.register("Dice-v0", Dice)
    local = Dice()
    with served("dice") as (address, _):
        remote = rollenv.connect(f"{address}/dice")
        for env in (local, remote):
            env.reset(seed=1)
        snapshots = local.snapshot(), remote.snapshot()
        rolls = []
        for env, snapshot in zip((local, remote), snapshots, strict=True):
            asyncio.run(env.arestore(snapshot, seed=5))
            restored = [env.step("roll")[0] for _ in range(5)]
            env.restore(snapshot)
            env.reseed(6)
            rolls.append((restored, [env.step("roll")[0] for _ in range(5)]))
        assert rolls[0] == rolls[1]
        assert rolls[0][0] != rolls[0][1]
        remote.close()


class Dice(toys.Colours):
    """Says what it has rolled, for ever."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return str(self.np_random.integers(1000)), 0.0, False, False, self._info()


def test_nobody_there_is_one_sentence(temp_registry: Any) -> None:
    with pytest.raises(RollenvError, match=r"http://127.0.0.1:1/webshop: no environment answers there"):
        rollenv.connect("http://127.0.0.1:1/webshop")
    with pytest.raises(RollenvError, match="is not the address of an environment"):
        rollenv.connect("webshop")


def test_a_token_is_asked_for_and_taken_from_the_environment(
    temp_registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.register()
    monkeypatch.delenv("ROLLENV_TOKEN", raising=False)
    with served("colours", token="s3cret") as (address, _):
        with pytest.raises(RollenvError, match="the server wants a token"):
            rollenv.connect(f"{address}/colours")
        monkeypatch.setenv("ROLLENV_TOKEN", "s3cret")
        env = rollenv.connect(f"{address}/colours")
        env.reset()
        env.close()
