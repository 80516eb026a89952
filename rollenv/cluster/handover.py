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

from rollenv.cluster.links import Medium, Seat
from rollenv.cluster.runtime import Handle
from rollenv.cluster.weights import Manifest, packed, unpacked
from rollenv.cluster.worker_group import WorkerGroup
from rollenv.inference.base import InvalidRequest, LastingWeights, WeightsGone
from rollenv.inference.buckets import fill, layout
from rollenv.inference.handles import Handles, gpu_of, handles_of

log = logging.getLogger(__name__)

Kept: TypeAlias = tuple[Manifest, Sequence[Any]]
"""Weights, packed, in a host's memory."""
Lent: TypeAlias = tuple[Manifest, Handles]
"""The same, in a GPU's memory."""
Answer: TypeAlias = "asyncio.Future[int | None]"
"""An engine's: its version; None: it was not reached."""
PART_SECONDS = 30.0
"""How long workers may take to leave a broken link, and to end what they were doing there."""


class Giver(ABC):
    """The ranks' side: a worker that is one of them. All have to be asked for weights together, as each may have a
    part of them; only the first one has anything to do with what follows."""

    def __init__(self) -> None:
        self._seat = Seat()
        self._gathered: tuple[int, Mapping[str, Tensor]] | None = None  # an issue of the weights, as they are now
        self._kept: tuple[int, Kept] | None = None  # an issue that may be asked for until the next one
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
        self._seat.take(address, number, size, self.device() if medium == "cuda" else torch.device("cpu"))

    async def leave_link(self) -> None:
        """See `Seat.leave`. A coroutine: this rank may be waiting at the link."""
        self._seat.leave()

    def gather_weights(self, issue: int) -> None:
        """Puts the weights together, where ranks have shards: all of them have to. What follows the first one does."""
        self._gathered = issue, self.present_weights()

    def hand_over(self, issue: int, link: bool, handles: bool) -> Lent | None:
        """Sends an issue over the link, or makes handles of it, or both, and keeps a copy in the host's memory."""
        tensors = self._weights_of(issue)
        try:
            self._kept = issue, self._seat.link.send(tensors) if link else packed(tensors)
        except BaseException:
            self._kept = issue, packed(tensors)
            raise
        finally:
            self._gathered = None
        if not handles:
            return None
        # A copy: memory that is lent can be given back to the device, as a parameter's cannot while it is trained.
        manifest, sizes = layout(tensors)
        self._lent = {str(i): torch.empty(n, dtype=torch.uint8, device=self.device()) for i, n in enumerate(sizes)}
        fill(manifest, list(self._lent.values()), tensors)
        return manifest, handles_of(self._lent)

    def let_go(self) -> None:
        """Nobody reads what was lent any more."""
        self._lent = {}
        if self.device().type == "cuda":
            torch.cuda.empty_cache()

    def kept_weights(self, issue: int) -> Kept:
        """What `hand_over` kept; if it did not come to that, the weights as they are."""
        if self._kept is None or self._kept[0] != issue:
            self._kept, self._gathered = (issue, packed(self._weights_of(issue))), None
        return self._kept[1]

    def _weights_of(self, issue: int) -> Mapping[str, Tensor]:
        if self._gathered is None or self._gathered[0] != issue:
            raise ValueError(f"issue {issue} of the weights was not put together")
        return self._gathered[1]

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
        self._gathering: tuple[int, asyncio.Future[Any]] | None = None
        self._members: list[Receiver] = []  # of the present link, but for the first rank

    def issue(self) -> HeldWeights:
        """The ranks' present weights. They have to be handed over, or asked for, before the ranks change them."""
        return HeldWeights(self, next(self._numbers))

    def reaches(self, receiver: Receiver) -> bool:
        """Whether there is a direct way: from a GPU only to others."""
        return bool(receiver.gpu) or not self._gpu

    async def deliver(self, number: int, version: int, answers: Mapping[Receiver, Answer]) -> None:
        """Hands an issue over to some engines. Each answer comes as soon as its engine has said it: the version that it
        has, or its refusal; None for those that were not reached."""
        near = [one for one in answers if one.gpu and one.gpu == self._gpu]
        far = [one for one in answers if one not in near]
        try:
            await self._gathered(number)
            if far == self._members:
                far = self._members  # the link of these: `_part` knows it by its list
            else:
                await self._meet(far)
            updates = (self._updated(one, answers[one], "update_over_link", version) for one in far)
            near_answers = {one: answers[one] for one in near}
            await self._together(far, self._give(number, version, bool(far), near_answers), *updates)
        except Exception as error:
            log.warning("weights go through hosts' memory this time: %s: %s", type(error).__name__, error)
            await self._part(far)
        finally:
            for answer in answers.values():
                if not answer.done():
                    answer.set_result(None)

    async def kept(self, number: int) -> Kept:
        """An issue as the first rank keeps it, for those that are not reached directly."""
        await self._gathered(number)
        kept: Kept = await self._ranks.rank_zero("kept_weights", number)
        return kept

    async def _gathered(self, number: int) -> None:
        """Lets the ranks put an issue together, once."""
        if self._gathering is None or self._gathering[0] != number:
            self._gathering = number, asyncio.ensure_future(self._ranks.broadcast("gather_weights", number))
        await asyncio.shield(self._gathering[1])

    async def _meet(self, far: list[Receiver]) -> None:
        """Makes the link anew, for these engines."""
        self._members = far
        if not far:
            return
        address = await self._ranks.rank_zero("offer_link")
        where = len(far) + 1, "cuda" if self._gpu else "cpu"
        await self._together(
            far,
            self._ranks.rank_zero("sit_down", address, 0, *where),
            *(one.handle.call("sit_down", address, i, *where) for i, one in enumerate(far, 1)),
        )

    async def _give(self, number: int, version: int, link: bool, near: Mapping[Receiver, Answer]) -> None:
        """The first rank's part of a delivery, and that of engines on its own GPU."""
        handles = await self._ranks.rank_zero("hand_over", number, link, bool(near))
        if near:
            try:
                updates = (
                    self._updated(one, said, "update_by_handles", version, handles) for one, said in near.items()
                )
                await asyncio.gather(*updates)
            finally:
                await self._ranks.rank_zero("let_go")

    async def _updated(self, receiver: Receiver, answer: Answer, method: str, *args: Any) -> None:
        try:
            version = await receiver.handle.call(method, *args)
        except InvalidRequest as refusal:  # it heard all of it
            if not answer.done():
                answer.set_exception(refusal)
        else:
            if not answer.done():
                answer.set_result(version)

    async def _together(self, far: list[Receiver], *calls: Awaitable[Any]) -> None:
        """Awaits calls that wait for each other, and raises the first error. When one fails the link is left by all, so
        that none waits for ever."""
        tasks = [asyncio.ensure_future(call) for call in calls]
        _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            await self._part(far)
            await asyncio.wait(waiting, timeout=PART_SECONDS)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _part(self, far: list[Receiver]) -> None:
        """Lets all leave their link, unless there is another one by now; those that are gone have."""
        if self._members is not far:
            return
        self._members = []
        calls = [handle.call("leave_link") for handle in (self._ranks.handles[0], *(one.handle for one in far))]
        await asyncio.gather(*(asyncio.wait_for(call, PART_SECONDS) for call in calls), return_exceptions=True)


class HeldWeights(LastingWeights):
    """One issue of a `Handover`: what `Engine.update_weights` gets. Engines that ask in the same turn of the event loop
    are served together. Looking into it fetches it, which waits for that loop: from other threads only."""

    def __init__(self, handover: Handover, number: int) -> None:
        self._handover, self._number = handover, number
        self._loop = asyncio.get_running_loop()
        self._asked: dict[Receiver, Answer] = {}
        self._delivery: asyncio.Task[None] | None = None
        self._begun = False
        self._fetched: dict[str, Tensor] | None = None

    async def deliver(self, version: int, receiver: Receiver) -> int | None:
        """Has it handed over to an engine. The version that the engine then has; None: there was no direct way.

        Raises:
            InvalidRequest: the engine refuses it.
        """
        if self._begun or not self._handover.reaches(receiver):
            return None
        answer: Answer = self._loop.create_future()
        self._asked[receiver] = answer
        if self._delivery is None:
            self._delivery = asyncio.ensure_future(self._deliver(version))
        return await asyncio.shield(answer)

    async def _deliver(self, version: int) -> None:
        await asyncio.sleep(0)  # the others ask now
        self._begun = True
        await self._handover.deliver(self._number, version, self._asked)

    def _tensors(self) -> dict[str, Tensor]:
        if self._fetched is None:
            future = asyncio.run_coroutine_threadsafe(self._handover.kept(self._number), self._loop)
            try:
                self._fetched = unpacked(*future.result())
            except Exception as error:
                raise WeightsGone(f"the trainer does not give them: {type(error).__name__}: {error}") from error
        return self._fetched

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())
