"""A run on a cluster is the run in one process: the same figures where nothing is summed in another order, and the same
number of steps whatever dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

import runs  # noqa: E402

from rollenv.cluster.runtime import WorkerDied  # noqa: E402
from rollenv.config import TrainConfig  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.learner import LearnerDied, TrainJob  # noqa: E402
from rollenv.trainers.metrics import read_metrics  # noqa: E402
from rollenv.trainers.parts import _engine_worker, cluster_parts, planned  # noqa: E402
from rollenv.trainers.ranked import RankedLearner  # noqa: E402
from rollenv.trainers.run import TrainRun  # noqa: E402
from rollenv.trainers.world import algorithms  # noqa: E402

pytestmark = [pytest.mark.usefixtures("colours"), pytest.mark.timeout(1800)]


def on_ray(out: Path, **settings: Any) -> TrainConfig:
    return runs.config(out, **({"runtime": "ray"} | settings))


def train(
    c: TrainConfig,
    model: Path,
    cluster: Any,
    resume: Any = None,
    prepare: Callable[[TrainRun], None] = lambda run: None,
) -> TrainRun:
    """A whole run on the cluster of the tests, which it leaves as it was."""

    async def main() -> TrainRun:
        laid = planned(c, cluster.n_devices)
        cluster.reserve(laid.devices)
        parts = await cluster_parts(TrainJob(c, str(model), resume, algorithms(c)), cluster, laid)
        run = TrainRun(c, model, resume, parts=parts)
        prepare(run)
        try:
            await run.train()
        finally:
            cluster.give_back()
        return run

    return asyncio.run(main())


MAPS = {
    "CPU": {},
    "linked": {"devices": {"weights": "direct"}},
    "disjoint": {"devices": {"policy": "0", "rollout": "2-3"}},
    "colocated": {"devices": {"policy": "1", "rollout": "1", "share": True, "offload": "disk"}},
    "sharded": {"devices": {"policy": "1", "rollout": "1", "share": True, "offload": "disk"}, "strategy": "fsdp2"},
}


@pytest.mark.parametrize("name", MAPS)
def test_with_one_rank_the_figures_and_weights_are_the_same(
    name: str, model: Path, tmp_path: Path, ray_cluster: Any
) -> None:
    runs.train(runs.config(tmp_path / "here"), model)
    train(on_ray(tmp_path / "there", **MAPS[name]), model, ray_cluster)
    runs.assert_equal_runs(tmp_path / "here", tmp_path / "there")
    freed = [line.get("offloaded_mib", 0) for line in read_metrics(tmp_path / "there")[1:]]
    weights = sum(tensor.nbytes for tensor in runs.weights(tmp_path / "there").values())
    assert all((mib * 2**20 > 2 * weights) is ("share" in MAPS[name].get("devices", {})) for mib in freed)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_and_two_engines_train_the_same_up_to_the_order_of_sums(
    strategy: str, model: Path, tmp_path: Path, ray_cluster: Any
) -> None:
    """With `fsdp2` also by adapters, which the engines merge themselves."""
    devices, lora = {"policy": "0-1", "rollout": "2-3"}, {"rank": 8} if strategy == "fsdp2" else {}
    runs.train(runs.config(tmp_path / "here", steps=2, lora=lora), model)
    c = on_ray(tmp_path / "there", steps=2, devices=devices, strategy=strategy, lora=lora)
    train(c, model, ray_cluster)
    ours, theirs = runs.weights(tmp_path / "here"), runs.weights(tmp_path / "there")
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5) for name in ours)


def test_a_run_goes_on_with_other_ranks_and_engines(model: Path, tmp_path: Path, ray_cluster: Any) -> None:
    """The checkpoint of one rank here, continued by two with three engines, and that one here again: the same next
    batches."""
    runs.train(runs.config(tmp_path / "whole", steps=6, checkpoint={"every": 2, "keep": 9}), model)
    out = tmp_path / "moved"
    runs.train(runs.config(out, steps=2, checkpoint={"every": 2, "keep": 9}), model)
    moved = {"checkpoint": {"every": 2, "keep": 9}, "rollout": {"replicas": 3}, "devices": {"ranks": 2}}
    train(on_ray(out, steps=4, **moved), model, ray_cluster, checkpoint.newest(out))
    runs.train(runs.config(out, steps=6, checkpoint={"every": 2, "keep": 9}), model, checkpoint.newest(out))
    tasks = [
        [(line["step"], line["index"], line["task"]) for line in _groups(tmp_path / name)]
        for name in ("whole", "moved")
    ]
    assert tasks[0] == tasks[1]
    assert [line["step"] for line in read_metrics(out)] == list(range(7))


def _groups(folder: Path) -> list[dict[str, Any]]:
    return runs.read_groups(folder)


@pytest.mark.parametrize("weights", ["host", "direct"])
def test_an_engine_that_is_killed_costs_no_step(weights: str, model: Path, tmp_path: Path, ray_cluster: Any) -> None:
    def kill_later(run: TrainRun) -> None:
        async def kill() -> None:
            while run.step < 1:
                await asyncio.sleep(0.01)
            victim = next(iter(run.engine._replicas.values()))  # type: ignore[attr-defined]
            ray.kill(victim.engine.handle._actor)

        run.killer = asyncio.ensure_future(kill())  # type: ignore[attr-defined]

    settings = {"rollout": {"replicas": 2}, "devices": {"weights": weights}, "eval": {"every": 0}}
    c = on_ray(tmp_path, steps=6, **settings)
    run = train(c, model, ray_cluster, prepare=kill_later)
    assert [line["step"] for line in read_metrics(tmp_path)] == list(range(7))
    assert run.scheduler.ledger.balanced
    assert run.killer.done()  # type: ignore[attr-defined]


def test_a_rank_that_is_killed_ends_the_run_with_a_sentence_and_its_checkpoint_goes_on(
    model: Path, tmp_path: Path, ray_cluster: Any
) -> None:
    runs.train(runs.config(tmp_path / "whole", checkpoint={"every": 1}), model)

    def kill_later(run: TrainRun) -> None:
        learner: Any = run.learner
        step = learner.step

        async def killed(groups: Any) -> Any:
            if run.step == 2:
                await run._writer.settled()  # else the checkpoint that is being written dies with it
                ray.kill(learner._group.handles[1]._actor)
            return await step(groups)

        learner.step = killed

    c = on_ray(tmp_path / "broken", devices={"ranks": 2}, checkpoint={"every": 1})
    with pytest.raises(LearnerDied, match=r"a training rank is gone: worker 'rank-1' died.*--resume"):
        train(c, model, ray_cluster, prepare=kill_later)
    last = checkpoint.newest(tmp_path / "broken")
    assert last is not None
    assert last.step == 2
    train(c, model, ray_cluster, last)
    ours, theirs = runs.weights(tmp_path / "whole"), runs.weights(tmp_path / "broken")
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4) for name in ours)


def test_a_rank_that_dies_in_a_collective_is_known_for_dead_whatever_the_others_say(
    model: Path, tmp_path: Path, ray_cluster: Any
) -> None:
    """Its peers hear from the broken connection before anybody hears of the death."""

    def kill_later(run: TrainRun) -> None:
        learner: Any = run.learner
        scatter = learner._group.scatter

        async def killed(method: str, *args: Any) -> Any:
            calls = asyncio.ensure_future(scatter(method, *args))
            if run.step == 1:
                await asyncio.sleep(0.05)
                ray.kill(learner._group.handles[1]._actor)
            return await calls

        learner._group.scatter = killed

    c = on_ray(tmp_path, devices={"ranks": 2}, eval={"every": 0})
    with pytest.raises(LearnerDied, match=r"a training rank is gone: worker 'rank-1' died"):
        train(c, model, ray_cluster, prepare=kill_later)


class Peers:
    """Ranks of whom one is gone, or not; those who are there say that a connection broke."""

    def __init__(self, gone: bool) -> None:
        self.gone = gone

    async def rank_zero(self, method: str) -> Any:
        raise RuntimeError("connection closed by peer")

    async def broadcast(self, method: str) -> Any:
        if self.gone:
            raise WorkerDied("worker 'rank-1' died")


@pytest.mark.parametrize("gone", [True, False])
def test_what_a_rank_raises_is_its_own_when_no_other_is_gone(gone: bool) -> None:
    peers: Any = Peers(gone)
    learner = RankedLearner(peers, *[cast(Any, None)] * 3, shares=1)
    with pytest.raises(LearnerDied if gone else RuntimeError, match="'rank-1' died" if gone else "closed by peer"):
        asyncio.run(learner.advantages())


def test_a_successor_begins_although_the_checkpoint_that_was_resumed_is_gone(model: Path, tmp_path: Path) -> None:
    c = on_ray(tmp_path)
    gone = checkpoint.Checkpoint(tmp_path / "checkpoints" / "step-000001", 1)
    worker = _engine_worker(TrainJob(c, str(model), gone, {}))
    assert worker.facts().version == 0
    asyncio.run(worker.close())


def test_a_rank_that_dies_while_engines_wait_for_its_weights_is_not_taken_for_dead_engines(
    model: Path, tmp_path: Path, ray_cluster: Any
) -> None:
    def kill_later(run: TrainRun) -> None:
        learner: Any = run.learner
        weights = learner.weights

        async def killed() -> Any:
            if run.step == 1:
                ray.kill(learner._group.handles[0]._actor)
            return await weights()

        learner.weights = killed

    c = on_ray(tmp_path, devices={"weights": "direct"}, rollout={"replicas": 2}, eval={"every": 0})
    with pytest.raises(LearnerDied, match=r"a training rank is gone: worker 'rank-0' died"):
        train(c, model, ray_cluster, prepare=kill_later)
