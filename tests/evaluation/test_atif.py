"""ATIF files: what the format asks for, and the very tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollenv.evaluation.atif import as_atif
from rollenv.evaluation.export import export
from rollenv.trajectory import StopReason, Trajectory, Turn

CALL = '{"name": "bash", "arguments": {"command": "ls"}}'
ids = st.lists(st.integers(0, 500), max_size=5)


@st.composite
def trajectories(draw: Any) -> Trajectory:
    turns = []
    for number in range(draw(st.integers(1, 6))):
        read, wrote = draw(ids), draw(ids)
        fork, action = number > 0 and draw(st.booleans()), draw(st.sampled_from([CALL, "go", '{"name": 1}', "[]"]))
        turn = Turn(f"seen {number}", read, wrote, [-0.5] * len(wrote), [3] * len(wrote), fork=fork, action=action)
        turns.append(turn)
    return Trajectory("Toy-v0", "t", 7, turns=turns, stop=StopReason.TERMINATED, success=True)


@given(trajectories())
def test_steps_are_in_order_and_belong_to_who_took_them(trajectory: Trajectory) -> None:
    made = as_atif(trajectory, "llm", "m")
    steps = made["steps"]
    assert made["schema_version"] == "ATIF-v1.4"
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
    assert [step["source"] for step in steps] == ["user"] + ["agent"] * len(trajectory.turns)
    assert made["final_metrics"]["total_steps"] == len(steps)
    seen = [steps[0]["message"], *(step["observation"]["results"][0]["content"] for step in steps[1:-1])]
    assert seen == [turn.observation for turn in trajectory.turns]
    for step, turn in zip(steps[1:], trajectory.turns, strict=True):
        calls = [call["tool_call_id"] for call in step.get("tool_calls", [])]
        assert bool(calls) == (turn.action == CALL)
        for result in step.get("observation", {}).get("results", []):
            assert result["source_call_id"] in (calls or [None])
    json.dumps(made)


@given(trajectories())
def test_the_tokens_are_those_of_the_segments(trajectory: Trajectory) -> None:
    """The last prompt of a segment that was answered, with its answer, is the segment as far as that."""
    steps = {step["step_id"] - 2: step["metrics"] for step in as_atif(trajectory)["steps"] if "metrics" in step}
    sampled = 0
    for segment in trajectory.segments():
        answered = [turn for turn in sorted(set(segment.turns)) if turn in steps]
        for turn in answered:
            whole = steps[turn]["prompt_token_ids"] + steps[turn]["completion_token_ids"]
            assert whole == segment.ids[: len(whole)]
            assert steps[turn]["cached_tokens"] + len(trajectory.turns[turn].prompt_ids) == steps[turn]["prompt_tokens"]
            sampled += steps[turn]["completion_tokens"]
    assert sampled == trajectory.n_completion_tokens


def test_an_evaluation_becomes_a_folder_of_files_that_name_its_agent(tmp_path: Path) -> None:
    lines = [Trajectory("Toy-v0", f"t{i}", i, turns=[Turn("o", action="a")]).to_dict() for i in range(3)]
    (tmp_path / "trajectories.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "summary.json").write_text('{"agent": "llm", "model": "small"}')
    assert export(tmp_path, "atif", tmp_path / "out") == 3
    read = [json.loads(file.read_text()) for file in sorted((tmp_path / "out").iterdir())]
    assert [each["extra"]["task"] for each in read] == ["t0", "t1", "t2"]
    assert (read[0]["agent"]["name"], read[0]["agent"]["model_name"]) == ("llm", "small")
