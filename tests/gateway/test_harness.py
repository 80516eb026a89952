"""Programs inside sandboxes that ask the model from there: recorded token by token, judged by the environment."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import httpx  # noqa: E402
import runs  # noqa: E402
import toys  # noqa: E402
from swe_bug import TASK, solution  # noqa: E402

from rollenv.agents.harness import FILES_LIMIT, Harness  # noqa: E402
from rollenv.cli import main  # noqa: E402
from rollenv.config import TrainConfig  # noqa: E402
from rollenv.config.rollout import InjectConfig  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.evaluation.rescore import stored_episodes  # noqa: E402
from rollenv.gateway.harness import Door, HarnessPlay  # noqa: E402
from rollenv.gateway.sessions import Sessions  # noqa: E402
from rollenv.inference import ScriptedEngine  # noqa: E402
from rollenv.inference.base import Engine, SamplingParams  # noqa: E402
from rollenv.inference.chat import ChatFormat  # noqa: E402
from rollenv.registration import make  # noqa: E402
from rollenv.rollout.chaos import Chaos  # noqa: E402
from rollenv.rollout.env_pool import EnvPool  # noqa: E402
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest  # noqa: E402
from rollenv.trainers.metrics import read_metrics  # noqa: E402
from rollenv.trajectory import StopReason, Trajectory  # noqa: E402

AGENT = """
import json, os, subprocess, urllib.error, urllib.request

task = open(os.environ["ROLLENV_TASK"]).read()
messages = [{"role": "user", "content": task}]
while True:
    asking = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "temperature": 0.0, "seed": 1}
    body = json.dumps(asking).encode()
    key = os.environ["OPENAI_API_KEY"]
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(asked) as answered:
            said = json.load(answered)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        print("refused:", json.load(error)["error"]["message"])
        break
    if said == "done":
        print("it is done")
        break
    ran = subprocess.run(said, shell=True, capture_output=True, text=True, executable="/bin/bash")
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{ran.stdout}[{ran.returncode}]"}]
"""
"""A small agent in the way of those that are published: commands in, outputs back."""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    return folder


def saying(*texts: str, heard: list[SamplingParams] | None = None) -> ScriptedEngine:
    """An engine that says these, one after another, and keeps how it was asked."""
    chat, left = ChatFormat(toys.tokenizer()), iter(texts)

    def say(prompt: Any, sampling: SamplingParams) -> list[int]:
        if heard is not None:
            heard.append(sampling)
        return [*chat.plain(next(left)), chat.end_of_turn_id]

    return ScriptedEngine(say)


def mend() -> str:
    """A command that solves the task."""
    path, old, new = solution()
    program = f"import pathlib\np = pathlib.Path({path!r})\np.write_text(p.read_text().replace({old!r}, {new!r}))\n"
    return f"cat >/tmp/mend.py <<'END'\n{program}END\npython3 /tmp/mend.py"


def play(
    engine: Engine,
    harness: Harness,
    backend: str,
    limits: EpisodeLimits | None = None,
    inject: InjectConfig | None = None,
    **sampling: Any,
) -> Trajectory:
    """One episode of the task."""

    async def episode() -> Trajectory:
        door = Door()
        pool = EnvPool(
            lambda: make("swe", **harness.environment({"sandbox": backend}, door.port)), "thread", None, None
        )
        chat = ChatFormat(toys.tokenizer())
        params = SamplingParams(**{"max_tokens": 4000, "stop_token_ids": (chat.end_of_turn_id,), **sampling})
        bounds = limits or EpisodeLimits()
        layers = () if inject is None else (Chaos(inject, 0, bounds).layer,)
        try:
            play = HarnessPlay(pool, "SWE-v1", harness, door, engine, chat, params, bounds, "train", layers)
            return await play(EpisodeRequest(TASK, 7, group=2, sample=1))
        finally:
            await door.close()
            pool.close()

    return asyncio.run(episode())


def run_agent(agent: Path, **more: Any) -> Harness:
    return Harness("python3 $ROLLENV_FILES/agent.py", str(agent), **more)


def test_a_program_in_the_sandbox_solves_a_task(containing: str, agent: Path) -> None:
    """What it was answered is the trajectory: exact ids, sampled as the run does it, not as the program wished."""
    heard: list[SamplingParams] = []
    trajectory = play(saying("git log --oneline", mend(), "done", heard=heard), run_agent(agent), containing, top_k=5)
    assert (trajectory.stop, trajectory.success, trajectory.failure) == (StopReason.TERMINATED, True, None)
    assert [turn.completion for turn in trajectory.turns] == ["git log --oneline", mend(), "done"]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 0.0, 1.0]
    assert not any(turn.fork for turn in trajectory.turns)
    (stream,) = trajectory.segments()
    text = toys.tokenizer().decode(stream.ids)
    assert "The repository is in /testbed" in text
    assert sum(stream.mask) == sum(len(turn.completion_ids) for turn in trajectory.turns)
    assert {(asked.temperature, asked.top_k) for asked in heard} == {(1.0, 5)}
    assert len({asked.seed for asked in heard}) == 3
    assert "it is done" in trajectory.info["harness"]
    assert trajectory.info["reward_parts"] == {"fail_to_pass": 1.0, "pass_to_pass": 1.0}


def test_the_same_seed_asks_for_the_same_draws(bubblewrap: str, agent: Path) -> None:
    def seeds() -> list[int]:
        heard: list[SamplingParams] = []
        play(saying("true", "done", heard=heard), run_agent(agent), bubblewrap)
        return [asked.seed for asked in heard]

    assert seeds() == seeds()


def test_a_program_that_never_asks_is_a_fault_and_no_reward(bubblewrap: str) -> None:
    trajectory = play(saying(), Harness("python3 /nowhere/agent.py"), bubblewrap)
    assert (trajectory.stop, trajectory.turns) == (StopReason.FAILED, [])
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.kind) == ("agent", "crash")
    assert "can't open file" in trajectory.failure.message or "exit code 2" in trajectory.failure.message


def test_an_engine_that_fails_is_a_fault_whatever_the_program_makes_of_it(bubblewrap: str, agent: Path) -> None:
    trajectory = play(saying("true"), run_agent(agent), bubblewrap)  # it has nothing more to say
    assert trajectory.stop is StopReason.FAILED
    assert trajectory.failure is not None
    assert (trajectory.failure.where, trajectory.failure.turn) == ("engine", 0)
    assert not trajectory.trainable


def test_bounds_are_those_of_the_conversation(bubblewrap: str, agent: Path) -> None:
    """Nothing is generated beyond them; what was done till then is judged."""
    heard: list[SamplingParams] = []
    engine = saying(mend(), "true", "done", heard=heard)
    trajectory = play(engine, run_agent(agent), bubblewrap, EpisodeLimits(max_turns=2))
    assert (len(trajectory.turns), len(heard), trajectory.success) == (2, 2, True)
    assert "bound of 2 turns" in trajectory.info["harness"]
    trajectory = play(saying(mend()), run_agent(agent), bubblewrap, EpisodeLimits(max_tokens=60))
    assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, False)  # the task alone is longer
    assert not trajectory.trainable
    trajectory = play(saying(mend(), "done"), run_agent(agent), bubblewrap, max_tokens=3)
    assert len(trajectory.turns[0].completion_ids) == 3


def test_time_is_up_for_a_program_that_does_not_end(bubblewrap: str, agent: Path) -> None:
    harness = Harness("python3 $ROLLENV_FILES/agent.py; sleep 600", str(agent), seconds=8.0)
    trajectory = play(saying(mend(), "done"), harness, bubblewrap)
    assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
    assert "ended after 8 s" in trajectory.info["harness"]


def test_an_answer_that_the_program_did_not_wait_for_is_no_turn(bubblewrap: str, agent: Path) -> None:
    """Time is up while the model is at its second answer: the work of the first one is judged, and earns."""
    chat, texts = ChatFormat(toys.tokenizer()), iter([mend(), "x" * 4000])
    answers = ([*chat.plain(text), chat.end_of_turn_id] for text in texts)
    engine = ScriptedEngine(lambda prompt, sampling: next(answers), seconds_per_token=0.02)
    harness = run_agent(agent, seconds=0.02 * len(chat.plain(mend())) + 8.0)
    trajectory = play(engine, harness, bubblewrap, EpisodeLimits(step_seconds=60.0), max_tokens=10_000)
    assert (trajectory.stop, trajectory.success) == (StopReason.TERMINATED, True)
    assert [(turn.completion, turn.reward) for turn in trajectory.turns] == [(mend(), 1.0)]
    assert engine.running == 0


def test_faults_that_were_injected_are_called_so(bubblewrap: str, agent: Path) -> None:
    inject = InjectConfig.model_validate({"engine_error": 1.0})
    trajectory = play(saying("true", "done"), run_agent(agent), bubblewrap, inject=inject)
    assert trajectory.failure is not None
    assert (trajectory.failure.label, trajectory.turns) == ("injected/engine_error", [])


def test_a_program_has_its_time_wherever_environments_live(agent: Path) -> None:
    harness = run_agent(agent, seconds=100.0)
    settings = TrainConfig.model_validate({"env": "swe"}).rollout
    assert harness.patience(settings).step_seconds == 160.0
    changed = run_agent(agent).sha256
    (agent / "agent.py").write_text("print()")
    assert run_agent(agent).sha256 != changed


def test_nobody_else_is_answered() -> None:
    """A program cannot end its own session with a reward, look at others', or come without being expected."""

    async def knock() -> list[int]:
        door, chat = Door(), ChatFormat(toys.tokenizer())
        sessions = door.sessions(saying("hello", "no"), chat)
        sessions.begin("secret", "train/0/0/0", sessions.engine, 1)
        body = {"messages": [{"role": "user", "content": "hi"}]}
        base = f"http://127.0.0.1:{door.port}"
        try:
            async with httpx.AsyncClient() as client:
                answers = [
                    await client.post(f"{base}/sessions/secret/v1/chat/completions", json=body),
                    await client.post(f"{base}/sessions/secret/end", json={"reward": 1.0}),
                    await client.get(f"{base}/sessions/secret"),
                    await client.post(f"{base}/v1/chat/completions", json=body),
                    await client.post(f"{base}/sessions/guess/v1/chat/completions", json=body),
                ]
                sessions.dismiss("secret")
                answers.append(await client.post(f"{base}/sessions/secret/v1/chat/completions", json=body))
                return [answer.status_code for answer in answers]
        finally:
            await door.close()

    assert asyncio.run(knock()) == [200, 404, 404, 404, 404, 404]


def test_what_is_under_way_when_the_episode_ends_is_dropped() -> None:
    async def scene() -> tuple[int, int]:
        chat = ChatFormat(toys.tokenizer())
        slow = ScriptedEngine(lambda prompt, sampling: [5] * 50, seconds_per_token=60.0)
        session = Sessions(slow, chat, invited_only=True).begin("key", "train/0/0/0", slow, 1)
        asked = asyncio.ensure_future(session.chat([{"role": "user", "content": "hi"}], [], SamplingParams()))
        while not slow.running:
            await asyncio.sleep(0)
        await session.leave()
        await asyncio.wait({asked})
        assert asked.exception() is not None
        return slow.running, len(session.trajectory.turns)

    assert asyncio.run(scene()) == (0, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"command": " "}, "agent.command"),
        ({"command": "x", "seconds": 0}, "agent.seconds"),
        ({"command": "x", "files": "/nowhere"}, "there is no '/nowhere'"),
    ],
)
def test_arguments_that_make_no_sense(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RollenvError, match=said):
        Harness(**words)


@pytest.mark.parametrize("given", ["other:80", ["other:80"]])
def test_what_a_program_may_reach_already_stays(given: Any) -> None:
    made = Harness("x").environment({"network": given, "sandbox": "docker"}, 8002)
    assert made["network"] == ["other:80", "localhost:8002"]
    assert made["sandbox"] == "docker"
    assert Harness("x").environment({}, 8002)["network"] == ["localhost:8002"]


def test_bounds_that_would_not_hold_are_refused() -> None:
    with pytest.raises(RollenvError, match=r"max_steps, max_seconds: .*agent\.seconds"):
        Harness("x").environment({"max_seconds": 60, "max_steps": 3, "sandbox": "docker"}, 8002)


def test_files_that_belong_into_an_image(tmp_path: Path) -> None:
    import os

    (tmp_path / "large").write_bytes(os.urandom(FILES_LIMIT + 1))
    with pytest.raises(RollenvError, match="put it into an image"):
        Harness("x", str(tmp_path / "large"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    toys.policy(seed=3, context=4096).save(tmp_path / "model")
    return tmp_path / "model"


def words_of(agent: Path, backend: str) -> list[str]:
    settings = ("agent.command=timeout 60 python3 $ROLLENV_FILES/agent.py", f"agent.files={agent}")
    return [*settings, f"sandbox={backend}", "rollout.max_turns=2", "sampling.max_tokens=4", "threads=1"]


def test_eval_plays_it(bubblewrap: str, agent: Path, model: Path, tmp_path: Path, capsys: Any) -> None:
    """A model that says noise: nothing is solved, everything is recorded."""
    words = ["eval", "--env", "swe", "--agent", "harness", "--model", str(model), "-n", "2", "--out", str(tmp_path)]
    assert main([*words, *words_of(agent, bubblewrap)]) == 0
    assert "harness with" in capsys.readouterr().out
    for line in (tmp_path / "trajectories.jsonl").read_text().splitlines():
        kept = json.loads(line)
        del kept["tasks_sha256"]
        trajectory = Trajectory.from_dict(kept)
        assert (trajectory.success, trajectory.failure, len(trajectory.turns)) == (False, None, 2)
        assert all(len(turn.completion_ids) == len(turn.logprobs) for turn in trajectory.turns)
    with pytest.raises(RollenvError, match="the agent was a program in the sandbox"):
        stored_episodes(tmp_path)


def test_eval_needs_a_model_here(agent: Path, capsys: Any) -> None:
    words = ["eval", "--env", "swe", "--agent", "harness", "agent.command=x", "--base-url", "http://localhost:1/v1"]
    assert main(words) == 2
    assert "leave out --base-url" in capsys.readouterr().err


def test_a_run_trains_on_it(bubblewrap: str, agent: Path, model: Path, tmp_path: Path) -> None:
    """The policy learns from what the program asked and was answered: weights move, and the program then meets the new
    ones."""
    config = runs.config(
        tmp_path / "run",
        env="swe",
        env_args={"sandbox": bubblewrap},
        steps=2,
        rollout={"groups": 1, "group_size": 2, "concurrency": 2, "filter": "keep", "max_turns": 2},
        algo={"advantage": "return", "baseline": 0.5},
        eval={"every": 0, "episodes": 1},
        trajectories=1,
    )
    acting = {"name": "harness", "command": "python3 $ROLLENV_FILES/agent.py", "files": str(agent)}
    runs.train(TrainConfig.model_validate(config.model_dump() | {"agent": acting}), model)
    steps = [line for line in read_metrics(tmp_path / "run") if line["step"]]
    assert [line["episodes"] for line in steps] == [2, 2]
    assert all(line["grad_norm"] > 0 for line in steps)
    files = sorted((tmp_path / "run" / "trajectories").glob("*.jsonl"))
    kept = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    turns = [turn for episode in kept for turn in episode["turns"]]
    assert {version for turn in turns for version in turn["policy_versions"]} == {0, 1}
