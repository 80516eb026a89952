"""Weights for workers: put once for each version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rollenv.cluster.weights import Publisher, this_machine, unpacked  # noqa: E402
from rollenv.inference.buckets import SharedReader  # noqa: E402


def test_a_version_is_put_once_however_many_ask() -> None:
    put: list[Any] = []
    publisher = Publisher(lambda buffer: put.append(buffer) or len(put))
    weights = {"w": torch.ones(4)}
    assert publisher.publish(1, weights)[1] == publisher.publish(1, weights)[1] == [1]
    weights = {"w": torch.zeros(4)}
    assert publisher.publish(1, weights)[1] == [2], "the same version of another run of updates"
    assert publisher.publish(2, weights)[1] == [3]
    assert np.array_equal(put[0][:16].view(np.float32), np.ones(4))


def test_shared_weights_are_written_once_into_the_same_memory() -> None:
    publisher, reader = Publisher(lambda buffer: buffer), SharedReader()
    places = []
    for version in range(3):
        weights = {"w": torch.full((9,), float(version)), "v": torch.arange(3)}
        with publisher.shared(version, weights) as one, publisher.shared(version, weights) as other:
            assert one is other or one == other
            manifest, buffers = one
            arrived = unpacked(manifest, reader.read(buffers))
            assert all(torch.equal(arrived[name], weights[name]) for name in weights)
        places.append(buffers)
    assert places[0] == places[1] == places[2]
    assert this_machine() == this_machine() != ""


@pytest.mark.parametrize("weights", [{}, {"w": torch.empty(0, 3)}])
def test_nothing_can_be_shared(weights: dict[str, Any]) -> None:
    with Publisher(lambda buffer: buffer).shared(1, weights) as (manifest, buffers):
        arrived = unpacked(manifest, SharedReader().read(buffers))
    assert {name: tensor.shape for name, tensor in arrived.items()} == {n: t.shape for n, t in weights.items()}


def test_what_is_being_read_is_not_written_to() -> None:
    publisher, slow, quick = Publisher(lambda buffer: buffer), SharedReader(), SharedReader()
    old, new = {"w": torch.zeros(9)}, {"w": torch.ones(9)}
    with publisher.shared(1, old) as (manifest, buffers):
        (memory,) = slow.read(buffers)
        with publisher.shared(2, new) as (_, others):
            assert others != buffers
            assert torch.equal(unpacked(manifest, quick.read(others))["w"], new["w"])
            assert torch.equal(unpacked(manifest, [memory])["w"], old["w"])
            assert torch.equal(unpacked(manifest, slow.read(buffers))["w"], old["w"])
