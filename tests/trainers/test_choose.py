"""A strategy that does not fit its ranks is refused before any of them starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from runs import config

from rollenv.errors import RollenvError
from rollenv.trainers.parts import planned
from rollenv.trainers.strategies.choose import make_strategy
from rollenv.trainers.strategies.replicated import Replicated


def on_ray(out: Path, **settings: Any) -> Any:
    return config(out, runtime="ray", **settings)


@pytest.mark.parametrize("devices", [{"ranks": 2}, {"policy": "0-1", "rollout": "2"}])
def test_a_single_rank_cannot_be_two(devices: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match=r"strategy=single trains in one process.*2 ranks: say strategy=ddp"):
        planned(on_ray(tmp_path, devices=devices, strategy="single"), 3)
    for strategy in ("auto", "ddp", "fsdp2"):
        assert len(planned(on_ray(tmp_path, devices=devices, strategy=strategy), 3).policy) == 2


def test_adapters_without_peft_are_refused_with_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RollenvError, match=r"lora\.rank=4 needs peft"):
        planned(on_ray(tmp_path, lora={"rank": 4}), None)


def test_there_is_nothing_to_offload_from_a_cpu(tmp_path: Path) -> None:
    c = on_ray(tmp_path, device="auto", strategy={"kind": "fsdp2", "cpu_offload": True})
    with pytest.raises(RollenvError, match=r"strategy\.cpu_offload=true keeps weights in the host's memory"):
        make_strategy(c, "cpu")


def test_without_a_group_of_ranks_there_is_one(tmp_path: Path) -> None:
    strategy = make_strategy(on_ray(tmp_path, strategy={"kind": "ddp", "recompute": True}), "cpu")
    assert isinstance(strategy, Replicated)
    assert (strategy.ranks.size, strategy.recompute) == (1, True)
