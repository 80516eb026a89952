"""The environment on real sandboxes: tools, limits, and a judgement that cannot be talked round."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollenv
from rollenv.agents.swe import GoldPatch, NoOp, RandomEdit
from rollenv.core import TextEnv
from rollenv.envs.swe.canaries import Canaries
from rollenv.envs.swe.grading import Grade
from rollenv.envs.swe.probes import PROBES, SUBMIT
from rollenv.errors import RollenvError
from rollenv.evaluation.audit import Finding, audit, probe_names

TASK = "romans-01-operator"


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.fixture
def env(containing: str) -> Iterator[TextEnv]:
    env = rollenv.make("swe", sandbox=containing)
    yield env
    env.close()


def play(env: TextEnv, agent: Any, task: str = TASK) -> tuple[float, dict[str, Any]]:
    agent.reset(0)
    observation, info = env.reset(options={"task": task})
    while True:
        observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
        if terminated or truncated:
            return reward, info


def test_the_solution_solves_and_nothing_else_does(env: TextEnv) -> None:
    reward, info = play(env, GoldPatch())
    assert (reward, info["success"], info["outcome"]) == (1.0, True, "FULL")
    assert "diff --git a/romans/numerals.py" in info["patch"]
    for agent in (NoOp(), RandomEdit()):
        reward, info = play(env, agent)
        assert (reward, info["success"]) == (0.0, False)


def test_the_tools(env: TextEnv) -> None:
    observation, info = env.reset(options={"task": TASK})
    assert "/testbed" in observation
    assert [tool["function"]["name"] for tool in info["tools"]][-1] == "submit"

    def answer(name: str, **arguments: Any) -> str:
        said, _, _, _, info = env.step(call(name, **arguments))
        assert info["valid_action"]
        return said

    assert answer("bash", command="pwd; git status --short") == "/testbed"
    answer("bash", command="cd romans && export X=5")
    assert answer("bash", command="echo $X; pwd") == "5\n/testbed/romans"
    assert answer("bash", command="false") == "[exit code 1]"
    assert "./romans/numerals.py" in answer("view", path=".")
    assert answer("view", path="romans/__init__.py", start=1, end=1) == '     1\t"""Roman numerals."""'
    assert "no line is between" in answer("view", path="romans/__init__.py", start=100)
    assert answer("search", pattern="^LARGEST =") == "./romans/numerals.py:3:LARGEST = 3999"
    assert "12 times, not once" in answer("edit", path="romans/numerals.py", old="number", new="x")
    assert "is empty" in answer("edit", path="romans/numerals.py", old="", new="x")
    assert "     3\tLARGEST = 4999" in answer("edit", path="romans/numerals.py", old="= 3999", new="= 4999")
    assert "wrote 2 lines" in answer("create", path="new/a.py", content="x = 1\ny = 2\n")
    assert answer("bash", command="cd /testbed && cat new/a.py") == "x = 1\ny = 2"
    assert answer("view", path="nowhere").startswith("error: ")
    assert answer("bash", command="exit 3") == "[exit code 3]"
    assert answer("bash", command="echo again") == "again"


def test_a_text_that_is_no_call_changes_nothing(env: TextEnv) -> None:
    env.reset(options={"task": TASK})
    observation, reward, terminated, truncated, info = env.step("I would rather not")
    assert "no call of a tool" in observation
    assert (reward, terminated, truncated, info["valid_action"]) == (0.0, False, False, False)


def test_changed_tests_do_not_count(env: TextEnv) -> None:
    env.reset(options={"task": TASK})
    env.step(
        call("bash", command="echo 'def test_x(): pass' >tests/test_numerals.py; touch conftest.py; echo >>README.md")
    )
    *_, info = env.step(SUBMIT)
    assert info["patch"].count("diff --git") == 1
    assert "README.md" in info["patch"]
    assert info["outcome"] == "NO"


def test_long_output_is_cut_and_endless_commands_end(bubblewrap: str) -> None:
    env = rollenv.make("swe", sandbox=bubblewrap, observation_limit=200, command_timeout=1.0)
    env.reset(options={"task": TASK})
    said = env.step(call("bash", command="seq 1000"))[0]
    assert len(said) < 300
    assert said.startswith("1\n2\n")
    assert said.endswith("1000")
    assert "characters left out" in said
    assert "ended after 1 s" in env.step(call("bash", command="sleep 100"))[0]
    assert env.step(call("bash", command="echo there"))[0] == "there"
    env.close()


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        ({"max_steps": 1}, "last of 1 steps"),
        ({"max_tokens": 100}, "100 tokens"),
        ({"max_seconds": 0.001}, "0.001 seconds"),
    ],
)
def test_a_bound_ends_the_episode_and_the_work_is_judged(bubblewrap: str, bound: dict[str, Any], says: str) -> None:
    env = rollenv.make("swe", sandbox=bubblewrap, **bound)
    agent = GoldPatch()
    observation, info = env.reset(options={"task": TASK})
    observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
    assert says in observation
    assert (reward, terminated, truncated, info["success"]) == (1.0, False, True, True)
    with pytest.raises(RollenvError, match="over"):
        env.step(SUBMIT)
    env.close()


def test_partial_credit_is_the_share_that_was_mended(bubblewrap: str, tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    for path, text in {
        "task.toml": "issue='x'\nfail_to_pass=['tests/test_a.py::test_a', 'tests/test_a.py::test_b']\n"
        "pass_to_pass=['tests/test_a.py::test_c']\n",
        "repo/pair.py": "a = b = 0\nc = 1\n",
        "tests/tests/test_a.py": "import pair\n" + "".join(f"def test_{x}(): assert pair.{x}\n" for x in "abc"),
        "gold.patch": "",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)

    def reward(partial: bool, program: str) -> tuple[float, str]:
        env = rollenv.make("swe", sandbox=bubblewrap, tasks=folder, partial_credit=partial)
        env.reset(options={"task": "pair"})
        env.step(call("create", path="pair.py", content=program))
        _, reward, *_, info = env.step(SUBMIT)
        env.close()
        return reward, info["outcome"]

    assert reward(True, "a = c = 1\nb = 0\n") == (0.5, "PARTIAL")
    assert reward(False, "a = c = 1\nb = 0\n") == (0.0, "PARTIAL")
    assert reward(True, "a = 1\nb = c = 0\n") == (0.0, "NO")
    assert reward(True, "a = b = c = 1\n") == (1.0, "FULL")


def test_a_patch_that_does_not_apply_is_told_in_a_sentence(bubblewrap: str, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    for path, text in {
        "task.toml": "issue='x'\nfail_to_pass=['tests/test_a.py::test_a']\n",
        "repo/one.py": "a = 0\n",
        "tests/tests/test_a.py": "def test_a(): pass\n",
        "gold.patch": "diff --git a/one.py b/one.py\n--- a/one.py\n+++ b/one.py\n@@ -1 +1 @@\n-b = 0\n+b = 1\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    env = rollenv.make("swe", sandbox=bubblewrap, tasks=folder)
    with pytest.raises(RollenvError, match="task 'one': its gold patch does not apply"):
        play(env, GoldPatch(), "one")
    env.close()


def test_every_probe_comes_as_it_has_to(containing: str) -> None:
    """The one that never ends has less time than the others, which have to end however busy the machine is."""

    def findings_of(probes: list[str], seconds: float) -> list[Finding]:
        return list(
            audit(
                lambda: rollenv.make("swe", sandbox=containing, grading_timeout=seconds), [TASK], probes, concurrency=2
            )
        )

    env = rollenv.make("swe", sandbox=containing)
    assert probe_names(env) == list(PROBES)
    env.close()
    findings = findings_of([name for name in PROBES if name != "infinite-loop"], 120.0)
    findings += findings_of(["infinite-loop"], 8.0)
    assert sorted(found.probe for found in findings) == sorted(PROBES)
    assert [found for found in findings if not found.right] == []
    notes = {found.probe: found.note for found in findings}
    assert "longer than 8 s" in notes["infinite-loop"]
    assert "not what pytest would have written" in notes["conftest-hijack"]


def test_without_canaries_tested_code_could_report_success(bubblewrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Canaries, "sing", lambda self, results: True)
    findings = list(audit(lambda: rollenv.make("swe", sandbox=bubblewrap), [TASK], ["conftest-hijack"]))
    assert findings[0].solved


def test_episodes_are_judged_few_at_a_time(bubblewrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests have so many seconds: side by side with those of all other episodes, the solution would run out of them."""
    inside, most = 0, 0

    async def slow(*args: Any) -> Grade:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.05)
        inside -= 1
        return Grade(True, "FULL", {}, "stand-in")

    async def episode(env: TextEnv) -> bool:
        agent = GoldPatch()
        observation, info = await env.areset(options={"task": TASK})
        while True:
            observation, _, terminated, _, info = await env.astep(agent.act(observation, info))
            if terminated:
                return bool(info["success"])

    async def all_of(envs: list[TextEnv]) -> list[bool]:
        return await asyncio.gather(*map(episode, envs))

    monkeypatch.setattr("rollenv.envs.swe.env.grade", slow)
    envs = [rollenv.make("swe", sandbox=bubblewrap, max_judged=2) for _ in range(6)]
    assert asyncio.run(all_of(envs)) == [True] * 6
    for env in envs:
        env.close()
    assert most == 2


def test_it_keeps_the_contract_of_an_environment(bubblewrap: str) -> None:
    rollenv.check_env(rollenv.make("swe", sandbox=bubblewrap))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sandbox": "subprocess"}, "contains nothing"),
        ({"sandbox": "dokcer"}, "did you mean 'docker'"),
        ({"max_steps": 0}, "max_steps must be a positive number"),
        ({"max_judged": 0}, "max_judged must be a positive number"),
        ({"max_judged": 1.5}, "max_judged must be a whole number"),
        ({"network": "nowhere"}, "not 'host:port'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(RollenvError, match=says):
        rollenv.make("swe", **arguments)


def test_an_image_that_is_not_there_is_a_sentence(containing: str, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    (folder / "repo").mkdir(parents=True)
    (folder / "task.toml").write_text("issue='x'\nimage='no/such'\nfail_to_pass=['a.py::b']\n")
    env = rollenv.make("swe", sandbox=containing, tasks=folder)
    with pytest.raises(RollenvError, match="no/such"):
        env.reset(options={"task": "one"})
    env.close()
