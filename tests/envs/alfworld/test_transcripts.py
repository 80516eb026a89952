"""The native engine gives what the original engine gave, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rollenv

Transcripts = list[tuple[Path, dict[str, Any]]]


def test_every_transcript_of_the_original_is_replayed_exactly(transcripts: Transcripts) -> None:
    assert len(transcripts) == 51
    for path, record in transcripts:
        env = rollenv.make("alfworld", game=path)
        observation, info = env.reset(seed=0)
        expected = record["reset"]
        where = f"{record['id']}: {path}"
        assert observation == expected["feedback"], where
        assert info["admissible_actions"] == expected["admissible_commands"], where
        assert info["won"] == expected["won"], where
        for number, step in enumerate(record["steps"], 1):
            observation, reward, terminated, truncated, info = env.step(step["action"])
            where = f"{record['id']}: {path}, step {number}, {step['action']!r}"
            assert observation == step["feedback"], where
            assert info["admissible_actions"] == step["admissible_commands"], where
            assert (info["won"], reward, terminated) == (step["won"], step["score"], step["done"]), where
            assert not truncated
            assert info["valid_action"] == (step["feedback"] != "Nothing happens."), where
            assert info.get("success") == (True if step["done"] else None), where


def test_both_dialects_are_among_them(transcripts: Transcripts) -> None:
    firsts = {record["dialect"]: record["steps"] for _, record in transcripts}
    assert set(firsts) == {"2.1.1", "2.1.2"}
    commands = [step["action"] for _, record in transcripts for step in record["steps"]]
    assert any(command.startswith("put ") for command in commands)
    assert any(command.startswith("move ") for command in commands)


def test_a_transcript_continues_from_a_snapshot_of_each_of_its_steps(transcripts: Transcripts) -> None:
    for path, record in transcripts[::10]:
        env, other = (rollenv.make("alfworld", game=path) for _ in range(2))
        env.reset(seed=0)
        for step, following in zip(record["steps"], record["steps"][1:], strict=False):
            env.step(step["action"])
            observation, info = other.restore(env.snapshot())
            assert observation == step["feedback"]
            assert info["admissible_actions"] == step["admissible_commands"]
            assert other.step(following["action"])[0] == following["feedback"]


@pytest.mark.slow
def test_the_reference_engine_replays_transcripts_too(transcripts: Transcripts) -> None:
    pytest.importorskip("textworld.envs.pddl.pddl", reason="needs the extra [alfworld]")
    pytest.importorskip("fast_downward", reason="needs the extra [alfworld]")
    for path, record in transcripts[:2]:
        env = rollenv.make("alfworld", game=path, engine="textworld")
        observation, info = env.reset(seed=0)
        assert observation == record["reset"]["feedback"]
        assert info["admissible_actions"] == record["reset"]["admissible_commands"]
        for step in record["steps"][:4]:
            observation, reward, _, _, info = env.step(step["action"])
            assert (observation, reward) == (step["feedback"], step["score"])
            assert info["admissible_actions"] == step["admissible_commands"]
        env.close()
