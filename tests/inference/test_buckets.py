"""Packed tensors: the same bits, in as few copies as can be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rollenv.inference.buckets import (  # noqa: E402
    ALIGNMENT,
    SharedBuffer,
    SharedReader,
    bucket_of,
    fill,
    first_names,
    layout,
    packed,
    unpacked,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    shapes = draw(st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=8))
    made = {}
    for i, shape in enumerate(shapes):
        dtype = draw(st.sampled_from(DTYPES))
        tensor = torch.randint(0, 2, shape).to(dtype) if not dtype.is_floating_point else torch.randn(shape).to(dtype)
        made[f"layer.{i}"] = tensor.T if tensor.dim() == 2 and draw(st.booleans()) else tensor
    for i, name in enumerate(draw(st.lists(st.sampled_from(sorted(made)), max_size=3))):
        made[f"tied.{i}"] = made[name].detach()
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
    assert first_names(arrived) == first_names(sent), "what was one tensor is one again"


@given(tensors())
def test_tied_weights_travel_once(sent: Mapping[str, Any]) -> None:
    _, sizes = layout(sent)
    assert sum(sizes) <= sum(sent[name].nbytes + ALIGNMENT for name in set(first_names(sent).values()))


def test_parts_of_one_tensor_are_not_taken_for_each_other() -> None:
    whole = torch.arange(16.0).view(4, 4)
    sent = {"whole": whole, "head": whole[:2], "turned": whole.T, "bits": whole.view(torch.int32), "none": whole[:0]}
    assert first_names(sent) == {name: name for name in sent}
    arrived = unpacked(*packed(sent))
    assert all(torch.equal(arrived[name], sent[name]) for name in sent)


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


def test_the_parts_of_a_manifest_are_manifests_of_one_buffer() -> None:
    sent = {str(i): torch.randn(5, 7) for i in range(9)}
    manifest, sizes = layout(sent, 512)
    assert len(sizes) > 2
    arrived = {}
    for i, size in enumerate(sizes):
        part, buffer = bucket_of(manifest, i), np.empty(size, dtype=np.uint8)
        fill(part, [buffer], sent)
        arrived |= unpacked(part, [buffer])
    assert list(arrived) == list(sent)
    assert all(torch.equal(arrived[name], sent[name]) for name in sent)


READER = """
import sys
from rollenv.inference.buckets import SharedReader
seen, = SharedReader().read([(sys.argv[1], 1000)])
print(int(seen[:1000].sum()), flush=True)
sys.stdin.readline()
print(int(seen[:1000].sum()), seen.flags.writeable, flush=True)
"""


def test_another_process_sees_what_is_written_into_a_shared_buffer_and_cannot_write_it() -> None:
    shared = SharedBuffer()
    shared.sized(1000)[:] = 1
    command = [sys.executable, "-c", READER, shared.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "1000\n"
        shared.sized(10)[:] = 2
        assert reader.communicate("go on\n", timeout=60)[0] == "2000 False\n"


def test_a_shared_buffer_grows_and_leaves_nothing_behind() -> None:
    shared = SharedBuffer()
    assert len(shared.sized(64)) == 64
    shared.sized(64)[:] = 3
    assert shared.sized(4096)[:64].tolist() == [3] * 64
    assert len(shared.sized(64)) == 4096
    reader = SharedReader()
    (seen,) = reader.read([(shared.path, 64)])
    shared.close()
    with pytest.raises(OSError, match="No such file"):
        reader.read([(shared.path, 64)])
    assert seen[:64].tolist() == [3] * 64


def test_a_reader_maps_again_only_what_has_grown_or_is_another_buffer() -> None:
    reader, first = SharedReader(), SharedBuffer()
    path = first.path
    first.sized(8)[:] = 1
    (seen,) = reader.read([(path, 8)])
    assert reader.read([(path, 8)])[0] is seen
    first.sized(100)[:] = 2
    (grown,) = reader.read([(path, 100)])
    assert (len(grown), set(grown.tolist())) == (100, {2})
    first.close()
    second = SharedBuffer()
    assert second.path == path, "the number of a closed file is given to the next one"
    second.sized(8)[:] = 5
    assert reader.read([(path, 8)])[0].tolist() == [5] * 8
