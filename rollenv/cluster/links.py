"""Links: weights from one worker to others, from device to device.

A link is a process group of its own, of one who sends and of all who receive: NCCL between GPUs, gloo between hosts'
memories. What goes over it describes itself, so that who receives needs to know nothing of the model.

Invariant: who receives has every tensor of the sender, bit for bit, or an error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rollenv.inference.buckets import BUCKET_BYTES, Bytes, Manifest, bucket_of, fill, layout, unpacked

Medium = Literal["cpu", "cuda"]
"""Whose memory a link joins."""

LINK_SECONDS = 120.0
"""How long the others may take, to meet or to go on."""
LOOK_SECONDS = 0.005
"""How often somebody who waits looks whether the others have come."""
_NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
UNDER_WAY = 2
"""Buckets that are sent at a time: one is filled while the one before it travels."""


class LinkBroken(Exception):
    """A member is gone or did not come: this link carries nothing more."""


class Link:
    """A seat at a link. Whoever makes one waits until all have come.

    Args:
        store: where the members meet.
        seat: 0 sends, all others receive.
        size: how many members there are.
        device: where weights arrive, or come from: GPUs at every seat, or CPUs.

    Raises:
        LinkBroken: not all came within `seconds`.
    """

    def __init__(self, store: Any, seat: int, size: int, device: torch.device, seconds: float = LINK_SECONDS) -> None:
        self._device, self._broken = device, False
        try:
            self._group: Any = _process_group(store, seat, size, device, timedelta(seconds=seconds))
        except RuntimeError as error:
            raise LinkBroken(f"not all of {size} members came: {_first_line(error)}") from error
        self._await(self._begin(torch.zeros(1, device=device)))  # NCCL connects with the first call

    def send(self, tensors: Mapping[str, Tensor], bucket_bytes: int = BUCKET_BYTES) -> tuple[Manifest, list[Bytes]]:
        """Sends tensors of any device to all others; returns a copy of them in this host's memory.

        Raises:
            LinkBroken: a member is gone.
        """
        manifest, sizes = layout(tensors, bucket_bytes)
        self._say((manifest, sizes))
        under_way: deque[Any] = deque()
        kept: list[Bytes] = []
        for i, size in enumerate(sizes):
            flat = torch.empty(size, dtype=torch.uint8, device=self._device)
            fill(bucket_of(manifest, i), [flat], tensors)
            if size:
                under_way.append(self._begin(flat))
            kept.append(flat.cpu().numpy())
            if len(under_way) == UNDER_WAY:
                self._await(under_way.popleft())
        while under_way:
            self._await(under_way.popleft())
        return manifest, kept

    def receive(self) -> dict[str, Tensor]:
        """What the sender sends next, on the device of this seat.

        Raises:
            LinkBroken: a member is gone.
        """
        manifest, sizes = self._hear()
        buffers = [torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes]
        for work in [self._begin(buffer) for buffer in buffers if buffer.numel()]:
            self._await(work)
        return unpacked(manifest, buffers)

    def abort(self) -> None:
        """Gives the seat up at once; who waits in `send` or `receive`, on another thread, gets `LinkBroken`. Others who
        wait are best told to do the same: they hear of it late where this process lives on."""
        self._broken = True
        last, self._group = [self._group], None
        # A group that is deleted joins its threads, which may wait for others as long as these live: not here.
        threading.Thread(target=_end, args=(last,), name="rollenv-link", daemon=True).start()

    def _say(self, words: Any) -> None:
        """Broadcasts a few Python values, their length first."""
        said = torch.frombuffer(bytearray(pickle.dumps(words)), dtype=torch.uint8).to(self._device)
        self._await(self._begin(torch.tensor([said.numel()], device=self._device)))
        self._await(self._begin(said))

    def _hear(self) -> Any:
        length = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._await(self._begin(length))
        heard = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        self._await(self._begin(heard))
        return pickle.loads(heard.cpu().numpy().tobytes())

    def _begin(self, tensor: Tensor) -> Any:
        group = self._group
        if group is None:
            raise LinkBroken("this worker has left the link")
        try:
            return group.broadcast([tensor], dist.BroadcastOptions())  # from seat 0
        except RuntimeError as error:
            raise LinkBroken(f"a member is gone: {_first_line(error)}") from error

    def _await(self, work: Any) -> None:
        # gloo's `abort` does not reach who waits in `wait`; so nobody waits there.
        pause = LOOK_SECONDS / 64
        while not self._broken and not work.is_completed():
            time.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS)
        if self._broken:
            raise LinkBroken("this worker has left the link")
        try:
            # Only with a bound does NCCL say here that work which has ended has failed.
            work.wait(timedelta(seconds=LINK_SECONDS))
        except RuntimeError as error:
            raise LinkBroken(f"a member is gone: {_first_line(error)}") from error


def _end(last: list[Any]) -> None:
    """Ends the process group that is in a list, which has its last reference."""
    with contextlib.suppress(RuntimeError):
        last[0].abort()
    last.clear()


class Seat:
    """A worker's place at one link after the other. `leave` may be called from any thread, everything else from one."""

    def __init__(self) -> None:
        self._store: Any = None
        self._link: Link | None = None
        self._left = threading.Event()

    def offer(self) -> str:
        """Opens a place to meet, and returns its `HOST:PORT`. For the one who will send."""
        self.leave()
        store = self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return f"{own_address()}:{store.port}"

    def take(self, address: str, number: int, size: int, device: torch.device, seconds: float = LINK_SECONDS) -> None:
        """Sits down at the link whose members meet at `address`.

        Raises:
            LinkBroken: see `Link`.
        """
        if number:
            self.leave()
        self._left.clear()
        try:
            store = self._store if number == 0 else _store_at(address, seconds)
            assert store is not None
            self._meet(store, number, size, seconds)
        except RuntimeError as error:
            raise LinkBroken(f"nobody to meet at {address}: {_first_line(error)}") from error
        self._store, self._link = store, Link(store, number, size, device, seconds)

    def _meet(self, store: Any, number: int, size: int, seconds: float) -> None:
        """Waits until all are there; unlike a process group that is made, this can be ended from here."""
        store.set(f"here {number}", "")
        others, until = [f"here {i}" for i in range(size)], time.monotonic() + seconds
        while not store.check(others):
            if self._left.wait(LOOK_SECONDS) or time.monotonic() > until:
                raise LinkBroken(f"not all of {size} members came")

    @property
    def link(self) -> Link:
        """The link that it sits at.

        Raises:
            LinkBroken: there is none.
        """
        if self._link is None:
            raise LinkBroken("this worker has left the link")
        return self._link

    def leave(self) -> None:
        """Gives the seat up (see `Link.abort`)."""
        self._left.set()
        link, self._link, self._store = self._link, None, None
        if link is not None:
            link.abort()


def _store_at(address: str, seconds: float) -> Any:
    host, _, port = address.rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=seconds))


def own_address() -> str:
    """The address by which other machines reach this one; a datagram socket that sends nothing finds it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: never anybody's
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _process_group(store: Any, seat: int, size: int, device: torch.device, timeout: timedelta) -> Any:
    if device.type == "cpu":
        return dist.ProcessGroupGloo(store, seat, size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    # By default whoever's peer is gone is ended as well; a link may break. The group reads this when it is made.
    before = os.environ.get(_NCCL_ERRORS)
    os.environ[_NCCL_ERRORS] = "0"
    try:
        return dist.ProcessGroupNCCL(store, seat, size, options)
    finally:
        os.environ.pop(_NCCL_ERRORS) if before is None else os.environ.__setitem__(_NCCL_ERRORS, before)


def _first_line(error: BaseException) -> str:
    return f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__:.200}"
