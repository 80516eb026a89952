"""Proposed splits: what the model says, over all splits; written so that it can be read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.cluster.devices import device_map, parse_devices
from rollenv.cluster.proposal import Measured, measured, proposals, written
from rollenv.config.cluster import DevicesConfig
from rollenv.config.load import parse_override
from rollenv.errors import RollenvError

seconds = st.floats(0.0, 1e4)


@given(st.sets(st.integers(0, 40), min_size=1))
def test_devices_are_written_as_they_are_read(devices: set[int]) -> None:
    assert parse_devices(written(tuple(sorted(devices))), "key") == tuple(sorted(devices))


@given(seconds, seconds, seconds, st.integers(1, 16), st.floats(0, 4))
def test_the_first_split_is_the_fastest_and_all_can_be_run(
    generate: float, train: float, longest: float, n: int, eta: float
) -> None:
    found = proposals(Measured(generate, train, longest), n, eta)
    assert sorted(one.train for one in found) == list(range(n))
    assert found[0].seconds == min(one.seconds for one in found)
    for one in found:
        words = dict(parse_override(word) for word in one.settings)
        devices = {key.removeprefix("devices."): v for key, v in words.items() if key.startswith("devices.")}
        laid = device_map(DevicesConfig.model_validate(devices), n)
        assert laid.layout == ("disjoint" if one.train else "colocated")
        assert one.seconds >= max(generate, train) / n * (1 - 1e-9), "no split does better than every device at work"


def test_without_a_tail_devices_are_split_as_the_work_is() -> None:
    found = proposals(Measured(generate=60.0, train=20.0, longest=0.0), 8)
    assert [(one.train, one.seconds) for one in found[:2]] == [(0, 10.0), (2, 10.0)], "by turns is as fast then"


def test_when_long_episodes_rule_a_single_device_generates() -> None:
    best = proposals(Measured(generate=4.0, train=70.0, longest=20.0), 8, eta=1.0)[0]
    assert (best.train, best.seconds) == (7, 10.0)


def lines(*steps: tuple[float, float, float, float]) -> str:
    keys = ("seconds", "rollout_seconds", "train_seconds", "episode_seconds_p99")
    return "\n".join(json.dumps(dict(zip(keys, step, strict=True))) for step in steps)


@pytest.mark.parametrize(("eta", "generate"), [(0.0, 3 * 2), (1.0, 9 * 2)])
def test_what_a_run_has_measured(tmp_path: Path, eta: float, generate: float) -> None:
    (tmp_path / "metrics.jsonl").write_text(lines((90, 80, 10, 5), (9, 3, 6, 5), (8, 2, 5, 4), (10, 4, 7, 6)))
    state = tmp_path / "checkpoints" / "step-000004"
    state.mkdir(parents=True)
    config = {"devices": {"policy": "0-2", "rollout": "3-4"}, "rollout": {"eta": eta}}
    (state / "state.json").write_text(json.dumps({"config": config}))
    assert measured(tmp_path) == Measured(generate, 6 * 3, 5)


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match="is not the folder of a training run"):
        measured(tmp_path)
