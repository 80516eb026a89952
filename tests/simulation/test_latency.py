"""Draws: the means and bounds that were asked for, from the seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollenv.config.simulate import LatencyConfig
from rollenv.simulation.latency import counts, draw

MODELS = {
    "constant": {"mean": 3.0},
    "normal": {"mean": 10.0, "sigma": 2.0},
    "lognormal": {"mean": 5.0, "sigma": 0.8},
    "pareto": {"mean": 5.0, "alpha": 3.5},
    "recorded": {"seconds": [1.0, 2.0, 6.0]},
}


def model(kind: str, **more: Any) -> LatencyConfig:
    return LatencyConfig.model_validate({"kind": kind, **MODELS[kind], **more})


@pytest.mark.parametrize("kind", MODELS)
def test_the_mean_is_the_one_that_was_asked_for(kind: str) -> None:
    values = draw(model(kind), np.random.default_rng(0), 200_000)
    expected = {"recorded": 3.0}.get(kind, MODELS[kind].get("mean"))
    assert values.mean() == pytest.approx(expected, rel=0.02)
    assert values.min() >= 0


@given(kind=st.sampled_from(sorted(MODELS)), seed=st.integers(0, 2**62), n=st.integers(0, 40), more=st.integers(0, 40))
def test_a_draw_depends_on_its_place_not_on_how_many_follow(kind: str, seed: int, n: int, more: int) -> None:
    few = draw(model(kind), np.random.default_rng(seed), n)
    many = draw(model(kind), np.random.default_rng(seed), n + more)
    assert few.tolist() == many[:n].tolist()


def test_a_normal_is_clipped_at_zero_and_any_at_its_cap() -> None:
    values = draw(model("normal", mean=0.0, cap=1.0), np.random.default_rng(0), 1000)
    assert values.min() == 0.0
    assert values.max() == 1.0


def test_the_tail_of_a_pareto_has_its_exponent() -> None:
    values = draw(model("pareto", mean=2.0, alpha=2.0), np.random.default_rng(0), 400_000)
    assert values.min() >= 1.0  # x_m = mean (alpha - 1) / alpha
    for x in (2.0, 4.0, 8.0):
        assert np.mean(values > x) == pytest.approx(x**-2.0, rel=0.05)


def test_counts_are_whole_and_at_least_one() -> None:
    values = counts(model("normal", mean=1.0, sigma=3.0), np.random.default_rng(0), 1000)
    assert values.min() == 1
    assert values.dtype == np.int64


def test_a_recording_must_hold_something_possible() -> None:
    for seconds in ([], [-1.0]):
        with pytest.raises(ValidationError):
            LatencyConfig.model_validate({"kind": "recorded", "seconds": seconds})
