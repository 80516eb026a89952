"""Weights for workers: put once for each version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rollenv.cluster.weights import Publisher  # noqa: E402


def test_a_version_is_put_once_however_many_ask() -> None:
    put: list[Any] = []
    publisher = Publisher(lambda buffer: put.append(buffer) or len(put))
    weights = {"w": torch.ones(4)}
    assert publisher.publish(1, weights)[1] == publisher.publish(1, weights)[1] == [1]
    weights = {"w": torch.zeros(4)}
    assert publisher.publish(1, weights)[1] == [2], "the same version of another run of updates"
    assert publisher.publish(2, weights)[1] == [3]
    assert np.array_equal(put[0][:16].view(np.float32), np.ones(4))
