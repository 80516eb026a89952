"""Evaluation: summaries that count failures, result files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rollenv.errors import RollenvError
from rollenv.evaluation.evaluate import Part, Summary, parts_of, play_panel, summarize, task_values, write_results
from rollenv.evaluation.statistics import wilson
from rollenv.rollout.episode import EpisodeRequest
from rollenv.seeding import derive_seed
from rollenv.tasks import Panel, TaskSet
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn

TASKS = TaskSet("toy", {"test": [f"t{i}" for i in range(6)]}, str)
PANEL = TASKS.panel("test")


# -- playing and summing up ------------------------------------------------------------------------------------


def trajectory(request: EpisodeRequest, stop: StopReason, success: bool | None, reward: float) -> Trajectory:
    turns = [Turn("o", reward=reward), Turn("o")]
    made = Trajectory("Toy-v0", request.task, request.seed, request.group, request.sample, request.attempt, turns, stop)
    made.success = success
    if stop is StopReason.FAILED:
        made.failure = Failure("env", "crash", "broken")
    return made


async def luck(request: EpisodeRequest) -> Trajectory:
    """t0 and t1 succeed, t2 fails for good, t3 at its second try, t4 runs out of turns, t5 is half right."""
    for _ in range((7 * request.group) % 5):
        await asyncio.sleep(0)
    match request.task:
        case "t2":
            return trajectory(request, StopReason.FAILED, None, 0.9)
        case "t3" if request.attempt == 0:
            return trajectory(request, StopReason.FAILED, None, 0.0)
        case "t4":
            return trajectory(request, StopReason.MAX_TURNS, None, 0.0)
        case "t5":
            return trajectory(request, StopReason.TERMINATED, False, 0.5)
    return trajectory(request, StopReason.TERMINATED, True, 1.0)


def play(**options: Any) -> list[Trajectory]:
    return asyncio.run(play_panel(luck, PANEL, seed=5, concurrency=3, **options))


def test_trajectories_come_in_the_panels_order_with_seeds_of_their_place() -> None:
    seen: list[int] = []
    played = play(samples=2, progress=seen.append)
    assert [t.task for t in played] == [task for task in PANEL.ids for _ in range(2)]
    assert [t.seed for t in played] == [derive_seed(5, "episode", i, s) for i in range(6) for s in range(2)]
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_summary_counts_a_failure_as_no_success_and_as_no_reward() -> None:
    summary = summarize("Toy-v0", PANEL, play())
    assert summary == Summary(
        env="Toy-v0",
        split="test",
        tasks_sha256=PANEL.sha256,
        episodes=6,
        failed=1,
        success_rate=3 / 6,
        ci95=wilson(3, 6),
        mean_reward=(1 + 1 + 1 + 0 + 0.5) / 5,
        mean_turns=2.0,
        pass_at_k={1: 3 / 6},
        pass_hat_k={1: 3 / 6},
    )


def test_several_samples_say_how_often_one_of_them_and_all_of_them_succeed() -> None:
    played = [trajectory(EpisodeRequest(task, 0), StopReason.TERMINATED, won, 0.0) for task, won in SAMPLES]
    summary = summarize("Toy-v0", PANEL, played)
    assert summary.pass_at_k == pytest.approx({1: 4 / 6, 2: (1 + 1) / 2, 3: 1.0})
    assert summary.pass_hat_k == pytest.approx({1: 4 / 6, 2: (1 / 3 + 1 / 3) / 2, 3: 0.0})


SAMPLES = [("t0", True), ("t0", True), ("t0", False), ("t1", True), ("t1", False), ("t1", True)]


def test_tokens_that_servers_counted_are_summed_up() -> None:
    played = play()
    played[0].info["usage"] = {"prompt_tokens": 7, "completion_tokens": 2}
    played[3].info["usage"] = {"prompt_tokens": 1, "completion_tokens": 1}
    summary = summarize("Toy-v0", PANEL, played)
    assert (summary.prompt_tokens, summary.completion_tokens) == (8, 3)


def test_when_everything_fails_nothing_is_claimed() -> None:
    failed = [trajectory(EpisodeRequest("t0", 0), StopReason.FAILED, None, 1.0)] * 3
    summary = summarize("Toy-v0", PANEL, failed)
    assert (summary.success_rate, summary.mean_reward, summary.failed, summary.episodes) == (0, 0, 3, 3)


# -- by what tasks have in common ------------------------------------------------------------------------------

SHAPED = TaskSet("toy", {"test": PANEL.ids}, lambda task: {"shape": "round" if task < "t3" else "square", "n": task[1]})


def test_an_evaluation_by_a_key_counts_as_the_whole_does() -> None:
    played = play()
    parts = parts_of(played, task_values(SHAPED, PANEL.ids, "shape"))
    assert parts == [Part("round", 3, 2 / 3, wilson(2, 3)), Part("square", 3, 1 / 3, wilson(1, 3))]
    whole = summarize("Toy-v0", PANEL, played)
    assert sum(part.success_rate * part.episodes for part in parts) == whole.success_rate * whole.episodes


def test_a_key_that_tasks_do_not_have_is_refused_with_those_they_have() -> None:
    with pytest.raises(RollenvError, match=r"--by shap: task 't0' of 'toy' has no 'shap'; did you mean 'shape'\?"):
        task_values(SHAPED, PANEL.ids, "shap")
    with pytest.raises(RollenvError, match="it has: nothing to go by"):
        task_values(TASKS, PANEL.ids, "shape")


# -- files -----------------------------------------------------------------------------------------------------


def test_result_files(tmp_path: Path) -> None:
    played = play()
    summary = summarize("Toy-v0", PANEL, played)
    write_results(tmp_path / "out", summary, played, {"agent": "oracle", "seed": 5})
    read = json.loads((tmp_path / "out" / "summary.json").read_text())
    for key in ("success_rate", "mean_reward", "episodes", "tasks_sha256", "failed"):
        assert read[key] == getattr(summary, key)
    assert read["ci95"] == list(summary.ci95)
    assert (read["agent"], read["seed"]) == ("oracle", 5)
    lines = [json.loads(line) for line in (tmp_path / "out" / "trajectories.jsonl").read_text().splitlines()]
    assert {line.pop("tasks_sha256") for line in lines} == {PANEL.sha256}
    assert [Trajectory.from_dict(line) for line in lines] == played


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RollenvError, match="cannot write"):
        write_results(tmp_path / "out", summarize("Toy-v0", PANEL, play()), [])


def test_panels_of_other_content_have_another_hash() -> None:
    other = TaskSet("toy", {"test": [f"t{i}" for i in range(6)]}, lambda task: task + "!").panel("test")
    assert isinstance(other, Panel)
    assert other.ids == PANEL.ids
    assert other.sha256 != PANEL.sha256
