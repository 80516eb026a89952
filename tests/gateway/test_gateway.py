"""The gateway, as OpenAI's own client sees it, and as a trainer finds what it recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

torch = pytest.importorskip("torch")
openai = pytest.importorskip("openai")

import toys  # noqa: E402
import uvicorn  # noqa: E402
from batches import algo, optim, plain_model  # noqa: E402
from server.serving import running  # noqa: E402

from rollenv.cli import main  # noqa: E402
from rollenv.gateway.app import make_gateway  # noqa: E402
from rollenv.gateway.messages import BadMessages  # noqa: E402
from rollenv.gateway.sessions import Sessions  # noqa: E402
from rollenv.inference import ScriptedEngine  # noqa: E402
from rollenv.inference.base import Engine, EngineError, SamplingParams  # noqa: E402
from rollenv.inference.chat import ChatFormat  # noqa: E402
from rollenv.inference.torch_engine import TorchEngine  # noqa: E402
from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.trainers.data import samples_of, train_tokens  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trajectory import Trajectory  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "open", "description": "Opens.", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "open", "arguments": {"what": "door"}}\n</tool_call>'


@contextlib.contextmanager
def gateway(engine: Engine, out: Path | None = None, token: str | None = None, most: int = 64) -> Iterator[str]:
    """Its address."""
    app = make_gateway(Sessions(engine, ChatFormat(toys.tokenizer()), folder=out, most=most), "toy", token)
    with running(uvicorn.Server(uvicorn.Config(app, log_level="warning"))) as address:
        yield address


def saying(*texts: str) -> ScriptedEngine:
    """An engine that says these, one after another."""
    chat, left = ChatFormat(toys.tokenizer()), iter(texts)
    return ScriptedEngine(lambda prompt, sampling: [*chat.plain(next(left)), chat.end_of_turn_id])


def client(address: str, session: str | None = None, key: str = "none") -> Any:
    base = f"{address}/v1" if session is None else f"{address}/sessions/{session}/v1"
    return openai.OpenAI(base_url=base, api_key=key, max_retries=0)


def recorded(address: str, session: str) -> Trajectory:
    return Trajectory.from_dict(httpx.get(f"{address}/sessions/{session}").json())


def play_with_tools(model: Any, name: str) -> list[dict[str, Any]]:
    """A multi-turn tool episode as a framework plays it: it sends back what it got, in its own words."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Act."}, {"role": "user", "content": "Go out."}]
    while True:
        said = model.chat.completions.create(
            model="toy", messages=messages, tools=TOOLS, extra_headers={"X-Session-Id": name}
        ).choices[0]
        messages.append(said.message.model_dump(exclude_none=True))
        if said.finish_reason != "tool_calls":
            return messages
        for call in said.message.tool_calls:
            what = json.loads(call.function.arguments)["what"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"the {what} is open"})


def test_a_tool_episode_is_one_stream_of_tokens() -> None:
    engine = saying(f"I open it.\n{CALL}", CALL, "Out.")
    with gateway(engine) as address:
        messages = play_with_tools(client(address), "mine")
        trajectory = recorded(address, "mine")
    assert [message["role"] for message in messages[2:]] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert [turn.completion for turn in trajectory.turns] == [f"I open it.\n{CALL}", CALL, "Out."]
    assert not any(turn.fork for turn in trajectory.turns)
    (stream,) = trajectory.segments()
    text = toys.tokenizer().decode(stream.ids)
    assert text.count("the door is open") == 2
    assert text.count("I open it.") == 1


def test_recorded_tokens_train_as_they_are(tmp_path: Path) -> None:
    """The model's own probabilities of the recorded tokens are those recorded: they are the tokens it read and sampled.
    A step then trains on them."""
    policy = toys.policy(seed=1, context=1024)
    engine = TorchEngine(policy.model, tokenizer=policy.tokenizer)
    group = Group(GroupRequest(0, "talk", 3, 0))
    with gateway(engine, tmp_path) as address:
        for sample in range(3):
            model, messages = client(address, f"s{sample}"), [{"role": "user", "content": "say red"}]
            for _ in range(3):
                said = model.chat.completions.create(model="toy", messages=messages, max_tokens=6, logprobs=True)
                assert len(said.choices[0].logprobs.content) == said.usage.completion_tokens
                messages += [
                    said.choices[0].message.model_dump(exclude_none=True),
                    {"role": "user", "content": "again"},
                ]
            end = {"reward": float(sample), "success": sample > 1, "info": {"by": "hand"}}
            httpx.post(f"{address}/sessions/s{sample}/end", json=end).raise_for_status()
            assert httpx.get(f"{address}/sessions/s{sample}").status_code == 404
    asyncio.run(engine.close())
    for line in (tmp_path / "trajectories.jsonl").read_text().splitlines():
        group.trajectories.append(Trajectory.from_dict(json.loads(line)))
    assert [(t.reward, t.success, len(t.turns)) for t in group.trajectories] == [
        (0, False, 3),
        (1, False, 3),
        (2, True, 3),
    ]
    model = plain_model(policy)
    for trajectory in group.trajectories:
        (stream,) = trajectory.segments()
        logps = model(torch.tensor([stream.ids])).logits[0].detach().float().log_softmax(-1)
        for i in range(1, len(stream.ids)):
            if stream.mask[i]:
                assert stream.logprobs[i] == pytest.approx(float(logps[i - 1, stream.ids[i]]), abs=1e-4)
    trainer = PolicyTrainer(toys.policy(seed=1, context=1024), algo(), optim(), 1)
    assert trainer.step([group])["updates"] == 1
    trained = train_tokens(samples_of([group], algo())).targets_N.tolist()
    assert trained == [id for t in group.trajectories for turn in t.turns for id in turn.completion_ids]


def test_a_client_that_names_no_session_is_met_again_by_what_was_said() -> None:
    engine = saying("one", "two", "three")
    with gateway(engine) as address:
        first = httpx.post(f"{address}/v1/chat/completions", json=chat("hello")).json()
        other = httpx.post(f"{address}/v1/chat/completions", json=chat("hello there")).json()
        history = [*chat("hello")["messages"], first["choices"][0]["message"], {"role": "user", "content": "and?"}]
        again = httpx.post(f"{address}/v1/chat/completions", json={"messages": history}).json()
        assert first["session"] == again["session"] != other["session"]
        assert len(recorded(address, first["session"]).turns) == 2
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["total_tokens"]


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def test_a_history_that_was_rewritten_is_a_fork() -> None:
    with gateway(saying("one", "two")) as address:
        model = client(address, "s")
        model.chat.completions.create(**chat("hello", model="toy"))
        model.chat.completions.create(**chat("something else", model="toy"))
        assert [turn.fork for turn in recorded(address, "s").turns] == [False, True]


def test_streams_say_the_same() -> None:
    engine = saying(f"I open it.\n{CALL}", "Plain.", "abc")
    with gateway(engine) as address:
        model = client(address)
        chunks = list(model.chat.completions.create(**chat("go", model="toy", stream=True, tools=TOOLS)))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "I open it."
        calls = [call for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or []]
        assert [call.function.name for call in calls] == ["open"]
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage.completion_tokens > 0
        said = [c.choices[0].text for c in model.completions.create(model="toy", prompt="x", stream=True) if c.choices]
        assert said == ["Plain.", ""]
        ids = toys.tokenizer().encode("say red")
        whole = model.completions.create(model="toy", prompt=ids, logprobs=1)
        assert "".join(whole.choices[0].logprobs.tokens).startswith("abc")


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (chat("a", n=2), 400, "n:"),
        (chat("a", tool_choice="required"), 400, "tool_choice"),
        (chat("a", temperature=-1), 400, "temperature"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, 400, "must be one to answer"),
        (chat("a", stop=["x"]), 400, "stop"),
    ],
)
def test_what_cannot_be_done_is_said_as_openai_says_it(body: dict[str, Any], status: int, why: str) -> None:
    with gateway(saying("one")) as address:
        answer = httpx.post(f"{address}/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
        assert why in answer.json()["error"]["message"]


def test_an_engine_that_fails_records_nothing_and_the_session_goes_on() -> None:
    chat_format = ChatFormat(toys.tokenizer())
    answers: list[Callable[[], list[int]]] = [
        lambda: [*chat_format.plain("one"), chat_format.end_of_turn_id],
        lambda: (_ for _ in ()).throw(OSError("broken")),
        lambda: [*chat_format.plain("two"), chat_format.end_of_turn_id],
    ]
    with gateway(ScriptedEngine(lambda prompt, sampling: answers.pop(0)())) as address:
        model, messages = client(address, "s"), chat("hello")["messages"]
        messages.append(model.chat.completions.create(model="toy", messages=messages).choices[0].message.model_dump())
        messages.append({"role": "user", "content": "and?"})
        with pytest.raises(openai.InternalServerError, match="broken"):
            model.chat.completions.create(model="toy", messages=messages)
        model.chat.completions.create(model="toy", messages=messages)
        trajectory = recorded(address, "s")
        assert [(turn.completion, turn.fork) for turn in trajectory.turns] == [("one", False), ("two", False)]
        assert len(trajectory.segments()) == 1


def test_a_key_is_asked_for_and_idle_sessions_make_room() -> None:
    with gateway(saying("one", "two", "three"), token="s3cret", most=2) as address:
        with pytest.raises(openai.AuthenticationError):
            client(address).models.list()
        assert [model.id for model in client(address, key="s3cret").models.list()] == ["toy"]
        for name in ("a", "b", "c"):
            client(address, name, "s3cret").chat.completions.create(**chat("hello", model="toy"))
        kept = [httpx.get(f"{address}/sessions/{n}", headers={"Authorization": "Bearer s3cret"}) for n in "abc"]
        assert [answer.status_code for answer in kept] == [404, 200, 200]


def test_an_evaluation_through_a_server_finds_what_one_of_the_model_itself_finds(
    temp_registry: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The greedy policy behind the gateway, asked by OpenAI's API, and in this process: the same actions."""
    toys.register()
    policy = toys.warm_policy()
    policy.save(tmp_path / "model")
    words = ["eval", "--env", "colours", "-n", "12", "--temperature", "0", "--concurrency", "4"]
    words += ["agent.system=", "agent.list_actions=false", "sampling.max_tokens=8"]
    assert main([*words, "--model", str(tmp_path / "model"), "threads=1", "--out", str(tmp_path / "here")]) == 0
    engine = TorchEngine(policy.model, tokenizer=policy.tokenizer)
    with gateway(engine) as address:
        there = ["--base-url", f"{address}/v1", "--model", "toy", "--price", "1,2", "--out", str(tmp_path / "there")]
        assert main([*words, *there]) == 0
    asyncio.run(engine.close())
    rows = []
    for run in ("here", "there"):
        lines = [json.loads(line) for line in (tmp_path / run / "trajectories.jsonl").read_text().splitlines()]
        rows.append([[turn["action"] for turn in line["turns"]] for line in lines])
    assert rows[0] == rows[1]
    summary = json.loads((tmp_path / "there" / "summary.json").read_text())
    assert 0 < summary["completion_tokens"] < summary["prompt_tokens"]
    dollars = (summary["prompt_tokens"] + 2 * summary["completion_tokens"]) / 1e6
    assert f"${dollars:.4f}" in capsys.readouterr().out


def test_a_session_that_has_ended_says_nothing_more_and_a_dropped_completion_is_an_error() -> None:
    async def test() -> None:
        sessions = Sessions(saying("one"), ChatFormat(toys.tokenizer()))
        session = await sessions.of("s", [])
        await sessions.end(session, 1.0, True, {})
        with pytest.raises(BadMessages, match="has ended"):
            await session.chat(chat("hello")["messages"], [], SamplingParams())
        assert session.trajectory.turns == []
        slow = ScriptedEngine(lambda prompt, sampling: [5] * 50, seconds_per_token=0.05)
        session = await Sessions(slow, ChatFormat(toys.tokenizer())).of("s", [])
        asking = asyncio.ensure_future(session.chat(chat("hello")["messages"], [], SamplingParams()))
        await asyncio.sleep(0.2)
        await slow.abort("gateway/s")
        with pytest.raises(EngineError, match="was dropped"):
            await asking
        assert session.trajectory.turns == []

    asyncio.run(test())
