"""Links carry tensors from one worker to others, bit for bit, and break for all who sit at them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rollenv.cluster.links import Link, LinkBroken, Seat  # noqa: E402
from rollenv.inference.buckets import unpacked  # noqa: E402

SECONDS = 60.0
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
SHAPES = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3)), max_size=6)


def beside(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """A call on a thread of its own; whoever asks gets its result or its error."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def seated(n: int) -> list[Seat]:
    """So many seats at one link, the sender's first."""
    seats = [Seat() for _ in range(n)]
    address = seats[0].offer()
    for taken in [beside(seat.take, address, i, n, CPU, SECONDS) for i, seat in enumerate(seats)]:
        taken.result(SECONDS)
    return seats


def bits(tensors: Any) -> dict[str, Any]:
    return {n: (t.dtype, t.shape, t.contiguous().flatten().view(torch.uint8).tolist()) for n, t in tensors.items()}


@pytest.fixture(scope="module")
def trio() -> Any:
    seats = seated(3)
    yield seats
    for seat in seats:
        seat.leave()


@settings(max_examples=30, deadline=None)
@given(shapes=SHAPES, bucket=st.integers(64, 2048))
def test_all_who_receive_get_the_senders_bits_and_so_does_who_keeps_them(
    trio: list[Seat], shapes: list[Any], bucket: int
) -> None:
    draw = torch.Generator().manual_seed(1)
    tensors = {
        f"w{i}": torch.randint(-99, 99, shape, generator=draw).to(dtype) for i, (dtype, shape) in enumerate(shapes)
    }
    heard = [beside(seat.link.receive) for seat in trio[1:]]
    kept = unpacked(*trio[0].link.send(tensors, bucket))
    assert bits(kept) == bits(tensors)
    assert [bits(one.result(SECONDS)) for one in heard] == [bits(tensors)] * 2


def test_who_leaves_waits_no_longer_and_who_sends_no_more_breaks_it_for_all() -> None:
    seats = seated(3)
    waiting = [beside(seat.link.receive) for seat in seats[1:]]
    time.sleep(0.2)
    seats[1].leave()
    seats[0].leave()
    for one in waiting:
        with pytest.raises(LinkBroken):
            one.result(SECONDS)
    with pytest.raises(LinkBroken, match="left"):
        seats[0].link  # noqa: B018
    seats[2].leave()


def send_often(link: Link, times: int) -> None:
    for _ in range(times):
        link.send({"w": torch.ones(1 << 20)})


DIES = """
import sys
import torch
from rollenv.cluster.links import Seat
seat = Seat()
seat.take(sys.argv[1], 1, 3, torch.device("cpu"), 60.0)
print("here", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_is_killed_breaks_it_and_the_others_meet_again() -> None:
    seats = [Seat(), Seat()]
    address = seats[0].offer()
    taken = [beside(seats[0].take, address, 0, 3, CPU, SECONDS), beside(seats[1].take, address, 2, 3, CPU, SECONDS)]
    other = subprocess.Popen([sys.executable, "-c", DIES, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"here\n"
    for one in taken:
        one.result(SECONDS)
    other.kill()
    other.wait()
    waiting = beside(seats[1].link.receive)
    with pytest.raises(LinkBroken):
        send_often(seats[0].link, 100)  # what its socket still takes is sent
    seats[0].leave()
    seats[1].leave()
    assert waiting.exception(SECONDS) is None or isinstance(waiting.exception(), LinkBroken)
    address = seats[0].offer()
    for one in [beside(seat.take, address, i, 2, CPU, SECONDS) for i, seat in enumerate(seats)]:
        one.result(SECONDS)
    heard = beside(seats[1].link.receive)
    seats[0].link.send({"w": torch.arange(5)})
    assert heard.result(SECONDS)["w"].tolist() == [0, 1, 2, 3, 4]


def test_nobody_waits_for_ever_for_those_who_do_not_come() -> None:
    seat = Seat()
    address = seat.offer()
    with pytest.raises(LinkBroken, match="not all of 2 members came"):
        seat.take(address, 0, 2, CPU, 0.1)
    address = seat.offer()
    alone = beside(seat.take, address, 0, 2, CPU, SECONDS)
    time.sleep(0.1)
    seat.leave()
    with pytest.raises(LinkBroken):
        alone.result(SECONDS)
    with pytest.raises(LinkBroken, match="nobody to meet"):
        Seat().take("127.0.0.1:1", 1, 2, CPU, 0.5)


def test_work_that_has_ended_with_an_error_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's way: work whose peer is gone counts as completed, and only a `wait` with a bound raises what happened."""

    class Work:
        def is_completed(self) -> bool:
            return True

        def wait(self, timeout: Any = None) -> None:
            if timeout is not None:
                raise RuntimeError("NCCL communicator was aborted")

    class Group:
        def broadcast(self, tensors: Any, options: Any) -> Work:
            return Work()

    monkeypatch.setattr("rollenv.cluster.links._process_group", lambda *_: Group())
    with pytest.raises(LinkBroken, match="a member is gone: NCCL communicator was aborted"):
        Link(None, 1, 2, CPU)


def words(tensors: Any) -> Any:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_are_linked_by_nccl() -> None:
    seats = [Seat(), Seat()]
    address = seats[0].offer()

    for one in [beside(seats[i].take, address, i, 2, torch.device(f"cuda:{i}"), SECONDS) for i in range(2)]:
        one.result(SECONDS)
    tensors = {"w": torch.randn(1 << 22, device="cuda:0"), "v": torch.ones(3, dtype=torch.bfloat16)}
    heard = beside(seats[1].link.receive)
    kept = unpacked(*seats[0].link.send(tensors))
    assert words(heard.result(SECONDS)) == words(tensors) == words(kept)
