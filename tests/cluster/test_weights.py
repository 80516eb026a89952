"""Packed weights: the same bits, in as few copies as can be."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rollenv.cluster.weights import ALIGNMENT, Publisher, layout, packed, unpacked  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    shapes = draw(st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=8))
    made = {}
    for i, shape in enumerate(shapes):
        dtype = draw(st.sampled_from(DTYPES))
        tensor = torch.randint(0, 2, shape).to(dtype) if not dtype.is_floating_point else torch.randn(shape).to(dtype)
        made[f"layer.{i}"] = tensor.T if tensor.dim() == 2 and draw(st.booleans()) else tensor
    return made


@settings(deadline=None)
@given(tensors(), st.integers(1, 4096))
def test_what_arrives_is_what_was_sent(sent: Mapping[str, Any], bucket: int) -> None:
    manifest, buffers = packed(sent, bucket)
    for buffer in buffers:
        buffer.flags.writeable = False  # as an object store hands them out
    arrived = unpacked(manifest, buffers)
    assert list(arrived) == list(sent)
    for name, tensor in sent.items():
        assert arrived[name].dtype == tensor.dtype
        assert torch.equal(arrived[name], tensor)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.integers(64, 4096))
def test_buckets_are_aligned_full_and_bounded(sizes: list[int], bucket: int) -> None:
    manifest, bytes_of = layout({str(i): torch.empty(n, dtype=torch.uint8) for i, n in enumerate(sizes)}, bucket)
    assert sum(bytes_of) >= sum(sizes)
    assert all(place.start % ALIGNMENT == 0 for place in manifest)
    for i, size in enumerate(bytes_of):
        inside = [place for place in manifest if place.bucket == i]
        assert size <= bucket or len(inside) == 1, "only a tensor too large for any bucket is in a larger one"
        assert inside
        for a, b in pairwise(inside):
            assert a.start + a.nbytes <= b.start


def test_a_version_is_put_once_however_many_ask() -> None:
    put: list[Any] = []
    publisher = Publisher(lambda buffer: put.append(buffer) or len(put))
    weights = {"w": torch.ones(4)}
    assert publisher.publish(1, weights)[1] == publisher.publish(1, weights)[1] == [1]
    weights = {"w": torch.zeros(4)}
    assert publisher.publish(1, weights)[1] == [2], "the same version of another run of updates"
    assert publisher.publish(2, weights)[1] == [3]
    assert np.array_equal(put[0][:16].view(np.float32), np.ones(4))
