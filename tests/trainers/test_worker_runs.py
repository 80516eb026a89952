"""The parts of a run in workers, without a cluster: what travels between them changes no bit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("colours"), pytest.mark.timeout(1800)]

import runs  # noqa: E402

from rollenv.cluster.runtime import LocalRuntime  # noqa: E402
from rollenv.config import TrainConfig  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.learner import TrainJob  # noqa: E402
from rollenv.trainers.metrics import read_metrics  # noqa: E402
from rollenv.trainers.parts import cluster_parts, planned  # noqa: E402
from rollenv.trainers.run import TrainRun  # noqa: E402
from rollenv.trainers.world import algorithms  # noqa: E402


def train(c: TrainConfig, model: Path, resume: Any = None) -> None:
    async def main() -> None:
        runtime = LocalRuntime()
        parts = await cluster_parts(TrainJob(c, str(model), resume, algorithms(c)), runtime, planned(c, 4))
        try:
            await TrainRun(c, model, resume, parts=parts).train()
        finally:
            await runtime.close()

    asyncio.run(main())


BY_TURNS = {"policy": "1", "rollout": "1", "share": True, "offload": "disk"}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_rank_and_an_engine_that_take_turns_do_what_one_process_does(
    strategy: str, model: Path, tmp_path: Path
) -> None:
    """In shards (of one rank) by adapters, too; the engine sleeps while the policy trains, and optimizer state and
    gradients are away while it generates."""
    lora = {"rank": 4} if strategy == "fsdp2" else {}
    runs.train(runs.config(tmp_path / "here", steps=3, lora=lora), model)
    settings = {"runtime": "ray", "devices": BY_TURNS, "strategy": strategy, "lora": lora}
    c = runs.config(tmp_path / "there", steps=2, **settings)
    train(c, model)
    train(runs.config(tmp_path / "there", steps=3, **settings), model, checkpoint.newest(tmp_path / "there"))
    ours, theirs = runs.weights(tmp_path / "here"), runs.weights(tmp_path / "there")
    if strategy == "ddp":
        runs.assert_equal_runs(tmp_path / "here", tmp_path / "there")
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-5, atol=1e-5)
    freed = [line["offloaded_mib"] for line in read_metrics(tmp_path / "there")[1:]]
    assert len(freed) == 3
    if not lora:
        weights = sum(tensor.nbytes for tensor in ours.values())
        assert all(mib * 2**20 > 2 * weights for mib in freed)
    assert min(freed) > 0
