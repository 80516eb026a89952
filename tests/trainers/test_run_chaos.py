"""A run amid injected faults, and the timeline that draws it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("colours")

from rollout import trace  # noqa: E402
from runs import StopAt, assert_equal_runs, config, figures, interrupted, train, weights  # noqa: E402

from rollenv.conformance.resources import Holdings, left_since  # noqa: E402
from rollenv.rollout.timeline import Timeline  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.run import Interrupted, TrainRun  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trajectory import StopReason  # noqa: E402

CHAOS: dict[str, Any] = {
    "steps": 6,
    "rollout": {"reset_seconds": 1.0, "step_seconds": 1.0, "generate_seconds": 5.0},
    "inject": {"env_crash": 0.05, "env_hang": 0.01, "slow_env": 0.02, "slow_seconds": 0.01, "engine_error": 0.03},
    "eval": {"every": 3},
}
INJECTED = {f"injected/{name}" for name in CHAOS["inject"]}


class TrainedOn:
    """Remembers every group that reaches the trainer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[Any] = []
        original = PolicyTrainer.step

        def step(trainer: Any, groups: Any) -> Any:
            self.groups.extend(groups)
            return original(trainer, groups)

        monkeypatch.setattr(PolicyTrainer, "step", step)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_run_amid_chaos_completes_and_trains_nothing_that_failed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eta: float
) -> None:
    settings = CHAOS | {"rollout": CHAOS["rollout"] | {"eta": eta, "filter": "keep"}}
    train(config(tmp_path / "first", steps=1), model)  # what torch and its libraries keep for good is there now
    before = Holdings()
    seen = TrainedOn(monkeypatch)
    run = train(config(tmp_path / "run", **settings), model)
    assert not left_since(before)
    ledger = run.scheduler.ledger
    assert ledger.balanced
    assert ledger.in_flight == 0
    assert ledger.failed > 5
    assert set(ledger.failures) <= INJECTED
    assert len(seen.groups) == 6 * 4
    for group in seen.groups:
        assert all(t.failure is None and t.stop is not StopReason.FAILED for t in group.trainable)
        assert all(segment.mask for sample in group.trainable for segment in sample.segments())
    lines = figures(tmp_path / "run")[1:]
    for label, count in ledger.failures.items():  # those of rollouts beyond the last step are in no step
        assert sum(line.get(f"failed/{label}", 0) for line in lines) <= count
    assert sum(line["failed"] for line in lines) > 5
    assert sum(line["retried"] for line in lines) <= ledger.retried
    assert all(sum(line[name] for name in line if name.startswith("failed/")) == line["failed"] for line in lines)
    ages = {int(name.rpartition("/")[2]) for line in lines for name in line if name.startswith("stale_tokens/")}
    assert ages <= set(range(int(eta) + 1))


def test_an_interrupted_run_amid_chaos_equals_an_uninterrupted_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults are drawn by place and attempt, so that a resumed run meets the same ones."""
    train(config(tmp_path / "whole", **CHAOS), model)
    c = config(tmp_path / "broken", **CHAOS)
    assert interrupted(c, model, monkeypatch, 120) is not None
    train(c, model, checkpoint.newest(tmp_path / "broken"))
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")


def test_chaos_and_a_timeline_change_nothing_of_what_is_learned(model: Path, tmp_path: Path) -> None:
    """Every attempt that fails is tried again with the same randomness: weights come out as without faults. What is
    drawn is what the figures say."""
    faults = {"inject": {"env_crash": 0.03, "engine_error": 0.02}, "rollout": {"max_attempts": 12}}
    train(config(tmp_path / "plain"), model)

    async def main() -> TrainRun:
        timeline = Timeline(tmp_path / "drawn" / "timeline.json")
        run = TrainRun(config(tmp_path / "drawn", **faults), model, timeline=timeline)
        await run.train()
        timeline.close()
        return run

    run = asyncio.run(main())
    assert run.scheduler.ledger.failed > 0
    plain, drawn = weights(tmp_path / "plain"), weights(tmp_path / "drawn")
    assert all(torch.equal(plain[name], drawn[name]) for name in plain)
    picture = trace.read(tmp_path / "drawn" / "timeline.json")
    steps = [one for one in picture.of("trainer") if one.name.startswith("step")]
    assert [one.tree() for one in steps] == [
        (f"step {i}", ["rollout wait", "train", "weight sync"]) for i in range(1, 5)
    ]
    assert [one.name for one in picture.of("trainer") if one not in steps] == [
        *("evaluation", "evaluation", "checkpoint", "evaluation", "checkpoint")
    ]
    assert [one.args["version"] for one in picture.of("engines")] == list(range(5))
    episodes = [one for one in picture.of("episodes") if one.args["stop"] == "failed"]
    ledger = run.scheduler.ledger
    assert sum("injected" in one.args["failure"] for one in episodes) == len(episodes) >= ledger.failed
    assert [values for _, values in picture.counters["trainer", "staleness"]] == [{"mean": 0, "max": 0}] * 4
    assert picture.counters["episodes", "queue depth"][-1][1] == {"episodes": 0}


def test_every_replica_has_a_track(model: Path, tmp_path: Path) -> None:
    async def main() -> None:
        settings = config(tmp_path, steps=2, rollout={"replicas": 2})
        timeline = Timeline(tmp_path / "timeline.json")
        await TrainRun(settings, model, timeline=timeline).train()
        timeline.close()

    asyncio.run(main())
    picture = trace.read(tmp_path / "timeline.json")
    for i in range(2):
        assert [one.args["version"] for one in picture.tracks["engines", f"replica-{i}"]] == [0, 1, 2]
        assert picture.counters["engines", f"replica-{i}: completions in flight"][-1][1] == {"completions": 0}


def test_a_run_that_is_stopped_has_drawn_its_end(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = StopAt(monkeypatch, 100)

    async def main() -> None:
        timeline = Timeline(tmp_path / "timeline.json")
        stop.run = TrainRun(config(tmp_path), model, timeline=timeline)
        with pytest.raises(Interrupted):
            await stop.run.train()
        timeline.close()

    asyncio.run(main())
    picture = trace.read(tmp_path / "timeline.json")
    assert picture.counters["episodes", "episodes in flight"][-1][1] == {"episodes": 0}
    last = picture.of("trainer")[-1]
    assert "checkpoint" in str(last.tree()), "it was written while something else was waited for"
