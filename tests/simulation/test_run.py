"""Simulated runs against closed forms, and what may not change them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.config.simulate import ScenarioConfig
from rollenv.errors import RollenvError
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import GroupRequest
from rollenv.seeding import TaskOrder, derive_seed
from rollenv.simulation.bounds import (
    best_share,
    independent_seconds,
    lock_step_seconds,
    sample_seconds_bound,
    step_seconds_bound,
)
from rollenv.simulation.plans import World
from rollenv.simulation.run import Outcome, simulate
from rollenv.simulation.split import best, candidates, sweep

PATIENT = settings(max_examples=25)
LONG = {"step_seconds": 1e6, "generate_seconds": 1e6, "episode_seconds": 1e9, "reset_seconds": 1e6}


def scenario(**sections: Any) -> ScenarioConfig:
    rollout = {"groups": 4, "group_size": 3, "concurrency": 64, "filter": "keep", **LONG, **sections.pop("rollout", {})}
    return ScenarioConfig.model_validate({"steps": 1, "rollout": rollout, **sections})


def normal(mean: float = 10.0, sigma: float = 10.0) -> dict[str, Any]:
    return {"kind": "normal", "mean": mean, "sigma": sigma}


def matrix(config: ScenarioConfig) -> Any:
    """The seconds of the first batch's turns, episode by turn."""
    tasks = [f"task-{i}" for i in range(config.env.tasks)]
    order, world = TaskOrder(tasks, derive_seed(config.seed, "tasks")), World(config)
    requests = [GroupRequest(i, order[i], config.rollout.group_size, config.seed) for i in range(config.rollout.groups)]
    return np.array([world.plan(e).steps for r in requests for e in r.episodes()])


# -- closed forms ----------------------------------------------------------------------------------------------


@PATIENT
@given(seed=st.integers(0, 10**6), turns=st.integers(1, 8), sigma=st.sampled_from([0.0, 1.0, 10.0]))
def test_lock_step_costs_the_slowest_of_each_turn_and_episodes_apart_the_longest_of_all(
    seed: int, turns: int, sigma: float
) -> None:
    config = scenario(seed=seed, env={"turns": {"mean": turns}, "step": normal(sigma=sigma)})
    seconds = matrix(config)
    apart = simulate(config)
    together = simulate(config.model_copy(update={"loop": "lock_step"}))
    assert together.mean_step == pytest.approx(lock_step_seconds(seconds))
    assert apart.mean_step == pytest.approx(independent_seconds(seconds))
    assert apart.mean_step <= together.mean_step + 1e-9


@PATIENT
@given(seed=st.integers(0, 10**6), concurrency=st.integers(1, 20), eta=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_a_step_is_never_longer_than_the_bounds(seed: int, concurrency: int, eta: float) -> None:
    """N / K mu + L is Graham's bound of list scheduling, which a queue of single samples cannot exceed."""
    config = scenario(
        seed=seed,
        steps=5,
        env={"turns": {"mean": 4}, "step": {"kind": "lognormal", "mean": 5.0, "sigma": 1.0}},
        rollout={"concurrency": concurrency, "eta": eta},
    )
    outcome = simulate(config)
    samples = 12
    assert max(outcome.staleness) <= math.ceil(eta)
    assert outcome.seconds <= 5 * outcome.longest + outcome.slots * outcome.seconds + 1e-6
    if eta == 0:
        work = outcome.slots * outcome.seconds * concurrency / 5
        assert outcome.mean_step <= work / concurrency + outcome.longest + 1e-6
        assert outcome.episodes == 5 * samples


def test_the_bounds_are_those_of_the_publication() -> None:
    assert sample_seconds_bound(10.0, 60.0, slots=4, samples=20, alpha=1.0) == pytest.approx(10 / 4 + 60 / 40)
    step = step_seconds_bound(10.0, 60.0, slots=4, samples=20, alpha=1.0, train=2.0, epochs=3)
    assert step == pytest.approx(20 / 4 * (10 + 3 * 2) + 60 / 2)
    share = best_share(10.0, 60.0, slots=4, samples=20, alpha=1.0, train=2.0, epochs=3)
    assert share == pytest.approx(3 * 20 * 2 / (20 * 10 + 4 * 60 / 2 + 3 * 20 * 2))
    # At the best share both sides take equally long: generating on the rest, training on the share.
    assert 3 * 20 * 2.0 / (share * 4) == pytest.approx((20 * 10 + 4 * 60 / 2) / ((1 - share) * 4))
    assert best_share(10.0, 60.0, 4, 20, 1.0, train=0.0) == 0.0


def test_devices_that_take_turns_add_their_times_and_devices_apart_overlap_them() -> None:
    env = {"turns": {"mean": 1}, "step": {"mean": 10.0}}
    trainer = {"seconds_per_sample": 10.0, "overhead_seconds": 1.0}
    turns = simulate(scenario(steps=4, env=env, trainer=trainer, devices={"total": 4}))
    assert turns.mean_step == pytest.approx(10 + 12 * 10 / 4 + 1)
    apart = {"total": 4, "train": 3}
    overlapped = simulate(scenario(steps=4, env=env, trainer=trainer, devices=apart, rollout={"eta": 1.0}))
    assert overlapped.step_seconds == pytest.approx((10 + 41, 41, 41, 41))
    assert overlapped.trainer == pytest.approx(4 * 41 / (10 + 4 * 41))


def test_a_prompts_episodes_on_one_device_wait_for_their_longest() -> None:
    engine = {"slots": 3, "tokens": normal(100.0, 30.0), "tokens_per_second": 1.0}
    config = scenario(seed=3, engine=engine, loop="batch", devices={"total": 2})
    order, world = TaskOrder([f"task-{i}" for i in range(1000)], derive_seed(3, "tasks")), World(config)
    longest = [max(world.plan(e).seconds for e in GroupRequest(i, order[i], 3, 3).episodes()) for i in range(4)]
    assert simulate(config).mean_step == pytest.approx(max(longest[0] + longest[2], longest[1] + longest[3]))


# -- the real scheduler's rules ----------------------------------------------------------------------------------


def test_redundant_rollouts_leave_the_slow_ones_behind() -> None:
    env = {"turns": {"mean": 4}, "step": normal(10, 2), "slow_probability": 0.05, "slow_factor": 20.0}
    plain = simulate(scenario(steps=10, env=env))
    spare = simulate(scenario(steps=10, env=env, rollout={"extra_groups": 2, "extra_samples": 1}))
    assert spare.mean_step < plain.mean_step / 3
    assert spare.cancelled > 0
    assert 0 < spare.waste < 1
    assert plain.waste == 0


def test_groups_without_signal_are_replaced_in_every_loop() -> None:
    env = {"step": {"mean": 1.0}, "mean_success": 0.5, "difficulty_spread": 0.5}
    for loop in ("controller", "batch", "lock_step"):
        outcome = simulate(scenario(steps=5, env=env, loop=loop, rollout={"filter": "refill", "max_refills": 10**6}))
        assert sum(outcome.staleness.values()) == 5 * 4  # every batch is full
        assert outcome.unused > 0


def test_success_follows_the_tasks_difficulty() -> None:
    config = scenario(env={"mean_success": 0.3, "difficulty_spread": 0.4})
    world = World(config)
    rates = [world.success_rate(f"task-{i}") for i in range(4000)]
    assert np.mean(rates) == pytest.approx(0.3, abs=0.02)
    assert np.var(rates) == pytest.approx(0.4 * 0.3 * 0.7, rel=0.1)  # spread is the share of the largest variance
    requests = [EpisodeRequest("task-1", derive_seed(i)) for i in range(4000)]
    assert np.mean([world.plan(r).success for r in requests]) == pytest.approx(rates[1], abs=0.03)


# -- determinism -------------------------------------------------------------------------------------------------

LIVELY = {
    "steps": 4,
    "env": {"turns": normal(4, 2), "step": normal(), "reset": normal(2, 1), "slow_probability": 0.05},
    "engine": {"tokens": normal(50, 20), "tokens_per_second": 20.0, "device_tokens_per_second": 60.0},
    "trainer": {"seconds_per_sample": 0.5},
    "devices": {"total": 3, "train": 1},
    "rollout": {"eta": 1.0, "extra_groups": 1, "extra_samples": 1},
}


def test_a_seed_decides_everything() -> None:
    one, again, other = (asdict(simulate(scenario(seed=seed, **LIVELY))) for seed in (5, 5, 6))
    assert one == again
    assert one != other


@pytest.mark.parametrize("replayed", ["redrawn", "same"])
def test_an_episode_is_the_same_whoever_plays_it_and_after_it_was_cancelled_what_the_scenario_says(
    replayed: str,
) -> None:
    world = World(scenario(**LIVELY, replayed=replayed))
    request = EpisodeRequest("task-1", 99)
    assert world.plan(request) == world.plan(EpisodeRequest("task-1", 99, attempt=2))
    assert (world.plan(request) == world.plan(EpisodeRequest("task-1", 99, life=1))) == (replayed == "same")


# -- recorded runs -----------------------------------------------------------------------------------------------


def turn(env: float, generate: float) -> dict[str, Any]:
    return {"seconds": {"env": env, "generate": generate}, "completion_ids": [1, 2]}


def record(file: Path, *episodes: list[tuple[float, float]]) -> str:
    lines = [json.dumps({"turns": [turn(*times) for times in episode], "success": True}) for episode in episodes]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_a_recorded_run_is_replayed_episode_by_episode(tmp_path: Path) -> None:
    file = record(tmp_path / "run.jsonl", [(1.0, 0.5), (2.0, 0.5)], [(5.0, 0.0)], [(0.25, 0.25)])
    rollout = {"groups": 1, "group_size": 3}
    apart = simulate(scenario(replay=file, replay_exactly=True, rollout=rollout))
    assert apart.mean_step == pytest.approx(5.0)
    one_by_one = simulate(scenario(replay=file, replay_exactly=True, rollout={**rollout, "concurrency": 1}))
    assert one_by_one.mean_step == pytest.approx(4.0 + 5.0 + 0.5)
    drawn = simulate(scenario(replay=file, rollout={"concurrency": 1}))
    assert 12 * 0.5 <= drawn.mean_step <= 12 * 5.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no episode with turns"),
        ("{]", "line 1 is torn or no episode"),
        ('{"turns": [{"seconds": {}}], "success": true}', "line 1 is no episode with timed turns: no 'env'"),
        ('{"turns": [], "success": true}', "no episode with turns"),
        ('{"turns": [{"seconds": {"env": -1, "generate": 0}, "completion_ids": []}], "success": 1}', "negative"),
    ],
)
def test_a_file_that_is_no_recorded_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(text)
    with pytest.raises(RollenvError, match=message):
        simulate(scenario(replay=str(file)))
    with pytest.raises(RollenvError, match="cannot read the recorded run"):
        simulate(scenario(replay=str(tmp_path / "none.jsonl")))


# -- splits ------------------------------------------------------------------------------------------------------


def test_the_best_split_gives_each_side_what_it_needs() -> None:
    config = scenario(
        steps=6,
        engine={"slots": 6, "tokens": {"mean": 60.0}, "tokens_per_second": 1.0},
        trainer={"seconds_per_sample": 30.0},
        rollout={"eta": 1.0, "concurrency": 48},
    )
    splits = sweep(config, 6)
    assert [split.train for split in splits] == candidates(6) == [0, 1, 2, 3, 4, 5]
    chosen = best(splits)
    assert chosen.outcome.mean_step == min(split.outcome.mean_step for split in splits)

    def beside(split: Any) -> Outcome:
        found: Outcome = split.outcome
        return found

    apart = min(splits[1:], key=lambda split: beside(split).mean_step)
    assert apart.train in (3, 4, 5)  # 360 device seconds of training beside 120 of generation


def test_candidates_are_few_and_hold_both_ends() -> None:
    for devices in (2, 5, 64, 5000):
        numbers = candidates(devices)
        assert len(numbers) <= 13
        assert numbers[:2] == [0, 1]
        assert numbers[-1] == devices - 1
    assert candidates(1) == [0]
