"""How long things take: draws that a seed decides, for whole arrays at once.

Invariant: the i-th draw of a generator depends on its seed and on i only, not on how many are drawn. Every scheduler
that plays an episode meets the same durations in it, so that their times can be compared episode by episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rollenv.config.simulate import LatencyConfig

Floats = npt.NDArray[np.float64]


def draw(model: LatencyConfig, generator: np.random.Generator, size: int) -> Floats:
    """`size` durations.

    One uniform or normal number is used per draw: `lognormal` is exp(N(ln mean - sigma^2/2, sigma)), `pareto` is
    x_m u^(-1/alpha) with x_m = mean (alpha - 1) / alpha, both of which have the mean that was asked for.
    """
    match model.kind:
        case "constant":
            values = np.full(size, model.mean)
        case "normal":
            values = np.maximum(0.0, model.mean + model.sigma * generator.standard_normal(size))
        case "lognormal":
            location = math.log(model.mean) - model.sigma**2 / 2 if model.mean > 0 else -math.inf
            values = np.exp(location + model.sigma * generator.standard_normal(size))
        case "pareto":
            smallest = model.mean * (model.alpha - 1) / model.alpha
            values = smallest * (1.0 - generator.random(size)) ** (-1.0 / model.alpha)
        case "recorded":
            values = np.asarray(model.seconds)[(generator.random(size) * len(model.seconds)).astype(int)]
    return values if model.cap is None else np.minimum(values, model.cap)


def counts(model: LatencyConfig, generator: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
    """`size` whole numbers of at least 1 (turns, tokens)."""
    return np.maximum(1, np.rint(draw(model, generator, size))).astype(np.int64)


def mean_of(samples: Sequence[float] | Floats) -> float:
    """Their mean; 0 of none."""
    return float(np.mean(samples)) if len(samples) else 0.0
