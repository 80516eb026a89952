"""TextEnv, its text space, its asynchronous calls, and that `import rollenv` stays light."""

from __future__ import annotations

import asyncio
import importlib.util
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
from conformance.toy import Corridor
from gymnasium.utils import env_checker
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv import InvalidAction, RollenvError, SnapshotError, TextEnv, TextSpace
from rollenv.errors import did_you_mean


def run_python(code: str) -> str:
    """What a fresh interpreter prints for `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- import ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["rollenv", "rollenv.config", "rollenv.rollout", "rollenv.envs.webshop"])
def test_light_modules_load_no_heavy_library(module: str) -> None:
    assert importlib.util.find_spec(module) is not None
    heavy = "torch", "ray", "transformers", "tokenizers", "vllm", "trl", "tensorboard"
    assert run_python(f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_import_takes_less_than_half_a_second() -> None:
    """In time of its own, so that other work on the machine does not count; the best of five."""
    code = "import time; start = time.process_time(); import rollenv; print(time.process_time() - start)"
    assert min(float(run_python(code)) for _ in range(5)) < 0.5


def test_check_env_is_loaded_when_it_is_asked_for() -> None:
    code = "import sys, rollenv; print('rollenv.conformance' in sys.modules, rollenv.check_env.__module__)"
    assert run_python(code) == "False rollenv.conformance"


def test_every_public_name_exists() -> None:
    assert [name for name in rollenv.__all__ if not hasattr(rollenv, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'chekc_env'"):
        rollenv.chekc_env  # noqa: B018


# -- gymnasium ---------------------------------------------------------------------------------------------


def test_an_environment_passes_gymnasiums_own_checker() -> None:
    env_checker.check_env(Corridor(), skip_render_check=True)


# -- TextSpace ---------------------------------------------------------------------------------------------


@given(st.text())
def test_a_text_space_contains_every_text(text: str) -> None:
    assert text in TextSpace()
    assert (text in TextSpace(max_length=5)) == (len(text) <= 5)


@given(st.one_of(st.none(), st.integers(), st.binary(), st.lists(st.text())))
def test_a_text_space_contains_nothing_else(value: Any) -> None:
    assert value not in TextSpace()


@given(seed=st.integers(0, 2**32 - 1), max_length=st.one_of(st.none(), st.integers(1, 60)))
def test_samples_lie_in_the_space_and_depend_on_its_seed(seed: int, max_length: int | None) -> None:
    space, again = TextSpace(max_length, seed=seed), TextSpace(max_length, seed=seed)
    samples = [space.sample() for _ in range(3)]
    assert samples == [again.sample() for _ in range(3)]
    assert all(sample in space for sample in samples)
    assert space.from_jsonable(space.to_jsonable(samples)) == samples


def test_text_spaces_are_equal_by_their_limit() -> None:
    assert TextSpace() == TextSpace(seed=3)
    assert TextSpace(5) != TextSpace()
    assert len({TextSpace(5), TextSpace(5), TextSpace()}) == 2
    assert not TextSpace().is_np_flattenable
    assert eval(repr(TextSpace(5)), {"TextSpace": TextSpace}) == TextSpace(5)


# -- asynchronous calls ------------------------------------------------------------------------------------


class Inline(Corridor):
    executor = "inline"


class WhereAmI(Corridor):
    """Notes the thread of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        self.threads.append(threading.current_thread().name)
        return super().reset(**kwargs)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.threads.append(threading.current_thread().name)
        return super().step(action)


class WhereAmIInline(WhereAmI):
    executor = "inline"


@pytest.mark.parametrize("env", [Corridor(), Inline()], ids=["thread", "inline"])
def test_asynchronous_calls_give_what_the_plain_ones_give(env: TextEnv) -> None:
    async def play() -> list[Any]:
        return [await env.areset(seed=4, options={"task": "chest-1"}), await env.astep("listen")]

    played = asyncio.run(play())
    plain = Corridor()
    assert played == [plain.reset(seed=4, options={"task": "chest-1"}), plain.step("listen")]
    env.close()


def test_an_environment_lives_on_one_thread_of_its_own_or_inline() -> None:
    async def play(env: WhereAmI) -> list[str]:
        await env.areset(seed=0)
        await env.astep("listen")
        await env.astep("listen")
        env.close()
        return env.threads

    assert asyncio.run(play(WhereAmI())) == ["env-WhereAmI"] * 3
    assert asyncio.run(play(WhereAmIInline())) == [threading.current_thread().name] * 3
    assert "env-WhereAmI" not in [thread.name for thread in threading.enumerate()]


def test_a_blocking_step_does_not_block_the_loop() -> None:
    class Waits(Corridor):
        go_on = threading.Event()

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            assert self.go_on.wait(60), "the event loop never came to run"
            return super().step(action)

    async def play() -> bool:
        env = Waits()
        await env.areset(seed=0)
        step = asyncio.ensure_future(env.astep("listen"))
        await asyncio.sleep(0)
        Waits.go_on.set()  # only a loop that still runs gets here
        answer = await step
        env.close()
        return bool(answer[-1]["valid_action"])

    assert asyncio.run(play())


@pytest.mark.parametrize("kind", [Corridor, Inline])
def test_errors_of_asynchronous_calls_arrive(kind: type[Corridor]) -> None:
    async def play() -> None:
        env = kind()
        try:
            await env.areset(seed=0)
            await env.astep(7)  # type: ignore[arg-type]
        finally:
            env.close()

    with pytest.raises(InvalidAction, match="must be text"):
        asyncio.run(play())


def test_close_ends_the_thread_and_can_be_repeated() -> None:
    env = Corridor()
    asyncio.run(env.areset(seed=0))
    thread = env._thread
    assert thread is not None
    env.close()
    env.close()
    assert env._thread is None
    with pytest.raises(RuntimeError, match="was stopped"):
        thread.submit(lambda: None)


def test_a_pickle_leaves_the_thread_behind_and_nothing_else() -> None:
    env = Corridor()
    asyncio.run(env.areset(seed=3))
    copy = pickle.loads(pickle.dumps(env))
    assert copy._thread is None
    assert copy.step("listen") == env.step("listen")
    assert asyncio.run(copy.astep("listen")) == asyncio.run(env.astep("listen"))
    copy.close()
    env.close()


# -- what a subclass may leave out -------------------------------------------------------------------------


def test_what_an_environment_lacks_is_said() -> None:
    class Bare(TextEnv):
        pass

    env = Bare()
    for call in (env.snapshot, lambda: env.restore(b"")):
        with pytest.raises(SnapshotError, match="Bare does not support snapshots"):
            call()
    with pytest.raises(AttributeError, match="Bare has no task set"):
        env.tasks  # noqa: B018


@pytest.mark.parametrize("action", [None, 3, b"look", ["look"], {"do": "look"}])
def test_an_action_that_is_no_text_is_refused_by_name(action: Any) -> None:
    with pytest.raises(InvalidAction, match=f"not {type(action).__name__}"):
        TextEnv.check_text(action)
    assert TextEnv.check_text("") == ""


@pytest.mark.parametrize("options", ["task", 7, ["task"], ("task", "x")])
def test_options_that_are_no_dict_are_refused(options: Any) -> None:
    with pytest.raises(RollenvError, match=r"options must be a dict such as \{'task': id\}, not "):
        TextEnv.check_options(options)


def test_options_are_copied() -> None:
    given = {"task": "x"}
    assert TextEnv.check_options(given) == given
    assert TextEnv.check_options(given) is not given
    assert TextEnv.check_options(None) == {}


@pytest.mark.parametrize(
    ("word", "known", "said"),
    [
        ("webshp", ["webshop", "alfworld"], "; did you mean 'webshop'?"),
        ("zzz", ["webshop", "alfworld"], ""),
        ("webshop", [], ""),
    ],
)
def test_suggestions(word: str, known: list[str], said: str) -> None:
    assert did_you_mean(word, known) == said
