"""The head of a cluster: whether it is there, and what becomes of those who wait for workers when it is not.

Ray waits for ever for the answers of a cluster that is gone as a whole. (Where the node goes that this process is on,
Ray ends this process: a run goes on with `--resume`.)
"""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

from rollenv.cluster.runtime import WorkerDied

KNOCK_SECONDS = 10.0
"""How long the head may take to take a connection, and the most time between two such looks."""


def knock(address: str | None) -> None:
    """Raises OSError when nobody answers at `HOST:PORT`: Ray itself tries for minutes before it says so."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), KNOCK_SECONDS).close()


class Replies:
    """What workers have been asked and have not answered yet.

    Attributes:
        silent: whether the head did not answer when it was last tried.
        lost: why no worker will ever answer again; empty while they may.
    """

    def __init__(self) -> None:
        self.silent, self.lost = False, ""
        self._waiting: set[asyncio.Future[Any]] = set()

    async def wait(self, reply: asyncio.Future[Any]) -> Any:
        """Raises WorkerDied, too, when the cluster is lost meanwhile."""
        self.ensure_possible()
        self._waiting.add(reply)
        try:
            return await reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not (task and task.cancelling()):
                self.ensure_possible()
            raise
        finally:
            self._waiting.discard(reply)

    def ensure_possible(self) -> None:
        """Raises WorkerDied when the cluster is lost."""
        if self.lost:
            raise WorkerDied(self.lost)

    def lose(self, why: str) -> None:
        """Ends all waiting."""
        self.lost = why
        for reply in self._waiting:
            reply.cancel()


async def watch_head(address: str, replies: Replies, patience: float) -> None:
    """Looks for the head now and then, and gives the cluster up when it was away for `patience` seconds."""
    loop = asyncio.get_running_loop()
    seen = math.inf  # where it has never answered, it can be reached only by Ray's own ways
    while not replies.lost:
        await asyncio.sleep(min(KNOCK_SECONDS, patience / 3))
        try:
            await asyncio.to_thread(knock, address)
        except OSError as error:
            replies.silent = True
            if (away := loop.time() - seen) >= patience:
                replies.lose(f"the Ray cluster at {address} has been away for {away:.0f} s ({error})")
        else:
            seen, replies.silent = loop.time(), False
