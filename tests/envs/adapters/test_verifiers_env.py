"""Environments of verifiers, by the real package: the same rollouts and rewards, behind an environment's contract."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Server, serve, tool_call

import rollenv
from rollenv import RollenvError
from rollenv.cli import main
from rollenv.envs.adapters.verifiers_env import VerifiersEnv

vf: Any = pytest.importorskip("verifiers", reason="needs the extra [verifiers], in an environment of its own")

import verifier_envs  # noqa: E402
from verifiers.clients import Client  # noqa: E402
from verifiers.types import Response, ResponseMessage, ToolCall  # noqa: E402

pytestmark = pytest.mark.foreign

HERE = "verifier_envs"
__all__ = ["serve"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package `agents` that verifiers imports is not this repository's folder."""
    monkeypatch.chdir(tmp_path)


class Scripted(Client):  # type: ignore[misc]
    """A model that says what it was told to say; `verifiers` asks it by itself."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(None)
        self._answers, self.asked = list(answers), list[Any]()

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any) -> Any:
        self.asked.append([message.model_dump() for message in prompt])
        said = self._answers.pop(0)
        message = {"content": said, "finish_reason": "stop"}
        if isinstance(said, dict):
            call = ToolCall(id="c", name=said["name"], arguments=json.dumps(said["arguments"]))
            message = {"content": "", "tool_calls": [call], "finish_reason": "tool_calls"}
        return Response(id="", created=0, model=model, message=ResponseMessage(is_truncated=False, **message))

    def setup_client(self, config: Any) -> None: ...
    async def to_native_tool(self, tool: Any) -> None: ...
    async def to_native_prompt(self, messages: Any) -> Any: ...
    async def get_native_response(self, *words: Any, **more: Any) -> None: ...
    async def raise_from_native_response(self, response: Any) -> None: ...
    async def from_native_response(self, response: Any) -> Any: ...
    async def close(self) -> None: ...


def alone(env: Any, row: dict[str, Any], answers: list[Any]) -> tuple[Any, list[Any]]:
    """What verifiers makes of these answers by itself: its state in the end, and what it asked."""

    async def play() -> tuple[Any, list[Any]]:
        client = Scripted(answers)
        state = await env.rollout(row, client, "m", {})
        await env.rubric.score_rollout(state)
        return state, client.asked

    return asyncio.run(play())


def test_a_single_turn_is_asked_and_scored_as_there() -> None:
    env = rollenv.make("verifiers", env_id=f"{HERE}:sums")
    assert len(env.tasks.ids("train")) == len(env.tasks.ids("test")) == len(verifier_envs.SUMS)
    for task, answer in (("train-7", "3"), ("test-7", "13"), ("train-3", "about 3")):
        inner = verifier_envs.sums()
        split, _, place = task.partition("-")
        row = (inner.get_dataset() if split == "train" else inner.get_eval_dataset())[int(place)]
        state, ((system, question),) = alone(inner, row, [answer])
        observation, info = env.reset(options={"task": task})
        assert observation == f"{system['content']}\n\n{question['content']}"
        assert env.tasks.get(task).data["answer"] == row["answer"]
        _, reward, terminated, truncated, info = env.step(answer)
        assert (reward, terminated, truncated) == (state["reward"], True, False)
        assert info["metrics"] == state["metrics"]
        assert info["stop"] == state["stop_condition"]
        assert info["success"] == (reward >= 1)
    env.close()


def test_several_turns_are_those_of_the_environment() -> None:
    env = rollenv.make("verifiers", env_id=f"{HERE}:halving")
    answers = ["5", "eight", "8", "7"]
    state, asked = alone(verifier_envs.halving(), verifier_envs.halving().get_dataset()[7], answers)
    seen = [env.reset(options={"task": "train-7"})[0], *(env.step(answer)[0] for answer in answers[:-1])]
    assert (
        seen
        == [messages[-1]["content"] for messages in asked]
        == ["Which number?", "higher", "a number, please", "lower"]
    )
    observation, reward, terminated, _, info = env.step(answers[-1])
    assert (observation, reward, terminated) == ("right, after 4", state["reward"], True)
    assert info["success"]
    env.reset(options={"task": "train-2"})
    for _ in range(5):
        assert env.step("9")[:3] == ("lower", 0.0, False)
    assert env.step("9")[1:3] == (0.0, True)  # its own limit of turns
    env.close()


def test_tools_are_called_as_there() -> None:
    env = rollenv.make("verifiers", env_id=f"{HERE}:tools")
    call = {"name": "add", "arguments": {"a": 1, "b": 2}}
    inner = verifier_envs.tools()
    state, asked = alone(inner, inner.get_dataset()[7], [call, "3"])
    _, info = env.reset(options={"task": "train-7"})
    (tool,) = info["tools"]
    assert tool["function"]["name"] == "add"
    assert set(tool["function"]["parameters"]["properties"]) == {"a", "b"}
    observation, _, over, _, _ = env.step(json.dumps(call))
    assert (observation, over) == (asked[1][-1]["content"], False)
    assert observation == "3"
    assert env.step("3")[1:3] == (state["reward"], True)
    env.close()


def guesses(observation: str, info: Any, rng: random.Random) -> str:
    return str(rng.randint(0, 9))


@pytest.mark.parametrize("name", ["sums", "halving", "tools"])
def test_it_keeps_the_contract(name: str) -> None:
    VerifiersEnv(f"{HERE}:{name}").reset()  # the loop of all rollouts outlives environments
    report = rollenv.check_env(functools.partial(VerifiersEnv, f"{HERE}:{name}"), episodes=2, steps=8, policy=guesses)
    assert {"seeds", "snapshots", "pickling", "leaks", "tasks"} <= set(report.passed)


def test_what_fails_inside_fails_the_episode_and_not_the_next() -> None:
    env = VerifiersEnv(f"{HERE}:halving")
    env.reset(options={"task": "train-7"})
    with pytest.raises(Exception, match="inside"):
        env.step("crash")
    env.reset(options={"task": "train-7"})
    assert env.step("7")[1] == 1.0
    env.close()


def test_a_model_behind_a_server_is_evaluated_on_it(
    serve: Callable[[Answer], Server], capsys: pytest.CaptureFixture[str]
) -> None:
    """It calls the tool by the API's own tool calls, and says what came back."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        last = body["messages"][-1]
        assert body["tools"][0]["function"]["name"] == "add"
        if last["role"] == "tool":
            return {"choices": [{"message": {"role": "assistant", "content": last["content"]}}]}
        a, b = (int(number) for number in last["content"].rstrip("?").split("+"))
        return tool_call("add", a=a, b=b)

    words = ["eval", "--env", "verifiers", f"env_id={HERE}:tools", "--agent", "chat-completions", "--split", "train"]
    assert main([*words, "--base-url", serve(answer).url, "-n", "6"]) == 0
    assert "success  100.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "which environment"),
        ({"env_id": "no-such-environment-at-all"}, "cannot make 'no-such-environment-at-all'"),
        ({"env_id": f"{HERE}:nothing"}, "nothing"),
        ({"env_id": f"{HERE}:add", "args": {"a": 1, "b": 2}}, "returned a int"),
        ({"env_id": f"{HERE}:sums", "args": {"colour": 3}}, "cannot make"),
        ({"env_id": f"{HERE}:grouped"}, "scores rollouts against each other"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(RollenvError, match=reason) as refused:
        VerifiersEnv(**settings)
    assert "\n" not in str(refused.value)
