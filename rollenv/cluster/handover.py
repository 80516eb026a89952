"""Each version of the weights, from the ranks that made it to engines, directly.

Engines on GPUs of their own (or all, where ranks are on CPUs) are at a link with the first rank, over which a version
goes once for all of them. An engine on the first rank's GPU reads that rank's memory. Engines that come later, and
those that were not reached, get the same bits from what the rank keeps in its host's memory.

Invariant: an engine has a version when it says so, whichever way it came.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rollenv.cluster.links import LinkBroken, Medium, Seat
from rollenv.cluster.runtime import Handle
from rollenv.cluster.weights import Manifest, packed, unpacked
from rollenv.cluster.worker_group import WorkerGroup
from rollenv.inference.base import InvalidRequest, LastingWeights
from rollenv.inference.handles import Handles, gpu_of, handles_of

log = logging.getLogger(__name__)

Kept: TypeAlias = tuple[Manifest, Sequence[Any]]
"""Weights, packed, in a host's memory."""
ABORT_SECONDS = 10.0
"""How long a worker may take to leave a broken link."""


class Giver(ABC):
    """The ranks' side: a worker that is one of them. All have to be asked for weights together, as each may have a
    part of them; only the first one has anything to do.

    Args:
        rank: 0 gives.
    """

    def __init__(self, rank: int) -> None:
        self._first = rank == 0
        self._seat = Seat()
        self._kept: tuple[int, Kept] | None = None  # an issue of the weights
        self._lent: Mapping[str, Tensor] = {}  # what engines on this GPU read

    @abstractmethod
    def present_weights(self) -> Mapping[str, Tensor]:
        """The weights as they are now, on any device; empty on all ranks but the first."""

    @abstractmethod
    def device(self) -> torch.device:
        """Where this rank computes."""

    def gpu(self) -> str:
        """See `gpu_of`."""
        return gpu_of(self.device())

    def offer_link(self) -> str:
        """See `Seat.offer`."""
        return self._seat.offer()

    def sit_down(self, address: str, number: int, size: int, medium: Medium) -> None:
        """See `Seat.take`."""
        self._seat.take(address, number, size, medium)

    async def leave_link(self) -> None:
        """See `Seat.leave`. A coroutine: this rank may be waiting at the link."""
        self._seat.leave()

    def hand_over(self, issue: int, link: bool, handles: bool) -> Handles | None:
        """Sends the weights over the link, or makes handles of them, or both, and keeps a copy in the host's memory."""
        tensors = self.present_weights()
        try:
            self._kept = issue, self._seat.link.send(tensors) if link and self._first else packed(tensors)
        except LinkBroken:
            self._kept = issue, packed(tensors)
            raise
        if not handles or not self._first:
            return None
        self._lent = {name: tensor.to(self.device()) for name, tensor in tensors.items()}
        return handles_of(self._lent)

    def let_go(self) -> None:
        """Nobody reads this rank's memory any more."""
        self._lent = {}

    def kept_weights(self, issue: int) -> Kept:
        """What `hand_over` kept; if it did not come to that, the weights as they are."""
        if self._kept is None or self._kept[0] != issue:
            self._kept = issue, packed(self.present_weights())
        return self._kept[1]

    def close(self) -> None:
        """Leaves the link."""
        self._seat.leave()


@dataclass(frozen=True, slots=True)
class Receiver:
    """An engine's worker, with what it says of itself: its GPU's name, or nothing."""

    handle: Handle
    gpu: str


class Handover:
    """Hands versions over. For one event loop.

    Args:
        ranks: workers that are `Giver`s. The worker of each engine answers `sit_down`, `update_over_link`,
            `update_by_handles` and `leave_link`.
        gpu: name of the first rank's GPU; empty: it is on a CPU.
    """

    def __init__(self, ranks: WorkerGroup, gpu: str) -> None:
        self._ranks, self._gpu = ranks, gpu
        self._numbers = itertools.count(1)
        self._members: list[Handle] = []  # of the present link, but for the first rank

    def issue(self) -> HeldWeights:
        """The ranks' present weights. They have to be handed over, or asked for, before the ranks change them."""
        return HeldWeights(self, next(self._numbers))

    def reaches(self, receiver: Receiver) -> bool:
        """Whether there is a direct way: from a GPU only to others."""
        return bool(receiver.gpu) or not self._gpu

    async def deliver(self, number: int, version: int, receivers: Sequence[Receiver]) -> dict[Handle, int | Exception]:
        """Hands an issue over to some engines. What each then says: the version that it has, or its refusal; those that
        were not reached are not in it."""
        near = [one.handle for one in receivers if one.gpu and one.gpu == self._gpu]
        far = [one.handle for one in receivers if one.handle not in near]
        said: dict[Handle, int | Exception] = {}
        try:
            if far != self._members:
                await self._meet(far)
            handing = self._ranks.broadcast("hand_over", number, bool(far), bool(near))
            updates = [self._updated(one, said, "update_over_link", version) for one in far]
            handles = (await self._together(far, handing, *updates))[0][0]
            if near:
                await asyncio.gather(*(self._updated(one, said, "update_by_handles", version, handles) for one in near))
                await self._ranks.rank_zero("let_go")
        except Exception as error:
            log.warning("weights go through hosts' memory this time: %s: %s", type(error).__name__, error)
            await self._part(far)
        return said

    async def kept(self, number: int) -> Kept:
        """An issue as the first rank keeps it, for those that are not reached directly."""
        kept: Kept = (await self._ranks.broadcast("kept_weights", number))[0]
        return kept

    async def _meet(self, far: Sequence[Handle]) -> None:
        """Makes the link anew, for these engines."""
        self._members = []
        if not far:
            return
        address = await self._ranks.rank_zero("offer_link")
        size, medium = len(far) + 1, self._medium
        await self._together(
            far,
            self._ranks.rank_zero("sit_down", address, 0, size, medium),
            *(one.call("sit_down", address, i, size, medium) for i, one in enumerate(far, 1)),
        )
        self._members = list(far)

    @property
    def _medium(self) -> Medium:
        return "cuda" if self._gpu else "cpu"

    async def _updated(self, handle: Handle, said: dict[Handle, Any], method: str, *args: Any) -> None:
        try:
            said[handle] = await handle.call(method, *args)
        except InvalidRequest as refusal:  # it heard all of it
            said[handle] = refusal

    async def _together(self, far: Sequence[Handle], *calls: Awaitable[Any]) -> list[Any]:
        """Awaits calls that wait for each other, and raises the first error. When one fails the link is left by all, so
        that none waits for ever."""
        tasks = [asyncio.ensure_future(call) for call in calls]
        _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            await self._part(far)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for one in ended:
            if isinstance(one, BaseException):
                raise one
        return ended

    async def _part(self, far: Sequence[Handle]) -> None:
        """Lets all leave the link; those that are gone have."""
        self._members = []
        calls = [handle.call("leave_link") for handle in (self._ranks.handles[0], *far)]
        await asyncio.gather(*(asyncio.wait_for(call, ABORT_SECONDS) for call in calls), return_exceptions=True)


class HeldWeights(LastingWeights):
    """One issue of a `Handover`: what `Engine.update_weights` gets. Engines that ask in the same turn of the event loop
    are served together. Looking into it fetches it, which waits for that loop: from other threads only."""

    def __init__(self, handover: Handover, number: int) -> None:
        self._handover, self._number = handover, number
        self._loop = asyncio.get_running_loop()
        self._asked: list[Receiver] = []
        self._delivery: asyncio.Future[dict[Handle, int | Exception]] | None = None
        self._begun = False
        self._fetched: dict[str, Tensor] | None = None

    async def deliver(self, version: int, receiver: Receiver) -> int | None:
        """Has it handed over to an engine. The version that the engine then has; None: there was no direct way.

        Raises:
            InvalidRequest: the engine refuses it.
        """
        if self._begun or not self._handover.reaches(receiver):
            return None
        self._asked.append(receiver)
        if self._delivery is None:
            self._delivery = asyncio.ensure_future(self._deliver(version))
        said = (await asyncio.shield(self._delivery)).get(receiver.handle)
        if isinstance(said, Exception):
            raise said
        return said

    async def _deliver(self, version: int) -> dict[Handle, int | Exception]:
        await asyncio.sleep(0)  # the others ask now
        self._begun = True
        return await self._handover.deliver(self._number, version, self._asked)

    def _tensors(self) -> dict[str, Tensor]:
        if self._fetched is None:
            future = asyncio.run_coroutine_threadsafe(self._handover.kept(self._number), self._loop)
            self._fetched = unpacked(*future.result())
        return self._fetched

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())
