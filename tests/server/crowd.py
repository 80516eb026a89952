"""A crowd of clients for tests that kill them: plays many sessions at the same time and checks every answer.

python crowd.py ADDRESS TOKEN SEED SESSIONS EPISODES [SECONDS BETWEEN STEPS]

Says `playing` when all sessions have begun an episode. Told to finish, by a line, each session ends after that many
episodes; `done BROKEN` says in the end how often a connection broke.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from toys import COLOURS, Colours
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException


class Crowd:
    """Sessions that play, each a stream of episodes that nobody else plays."""

    def __init__(self, address: str, token: str, seed: int, sessions: int, episodes: int, pause: float) -> None:
        self._address = f"{address.replace('http', 'ws', 1)}/ws?token={token}"
        self._seed, self._sessions, self._episodes, self._pause = seed, sessions, episodes, pause
        self._begun: set[int] = set()
        self._broken = 0
        self._told = False

    async def play(self) -> None:
        """All of them, to the end."""
        told = asyncio.ensure_future(self._listen())
        await asyncio.gather(told, *(self._session(n) for n in range(self._sessions)))
        print("done", self._broken, flush=True)

    async def _listen(self) -> None:
        await asyncio.to_thread(sys.stdin.readline)
        self._told = True

    async def _session(self, n: int) -> None:
        played, owed = 0, self._episodes
        while not (self._told and played >= owed):
            try:
                async with connect(self._address, open_timeout=120, ping_interval=None) as socket:
                    while not (self._told and played >= owed):
                        await self._episode(socket, n, f"{self._seed}-{n}-{played}")
                        played += 1
            except (OSError, WebSocketException, TimeoutError):
                self._broken += 1
                owed = max(owed, played + 1)  # what broke is played again, though it was enough otherwise
                await asyncio.sleep(0.2)

    async def _episode(self, socket: ClientConnection, n: int, name: str) -> None:
        """Plays what a local environment plays, step by step."""
        draw, here = random.Random(name), Colours()
        task = draw.choice(here.tasks.ids("train"))
        text, info = here.reset(seed=1, options={"task": task})
        answer = await self._say(socket, "reset", seed=1, task=task)
        self._same(name, answer["observation"], {"text": text, "info": info})
        self._begin(n)
        done = False
        while not done:
            if self._pause:
                await asyncio.sleep(self._pause * draw.random())
            action = draw.choice(COLOURS)
            text, reward, done, _, info = here.step(action)
            answer = await self._say(socket, "step", action=action)
            self._same(name, answer, {"reward": reward, "done": done})
            self._same(name, answer["observation"], {"text": text, "info": info})

    async def _say(self, socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
        await socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(await asyncio.wait_for(socket.recv(), 120))
        assert answer["type"] == "observation", answer
        return dict(answer["data"])

    def _same(self, name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        assert {key: ours[key] for key in theirs} == theirs, f"session {name} got what is not its own: {ours}"

    def _begin(self, n: int) -> None:
        self._begun.add(n)
        if len(self._begun) == self._sessions:
            self._begun.add(-1)
            print("playing", flush=True)


if __name__ == "__main__":
    _, address, token, *numbers = sys.argv
    seed, sessions, episodes = (int(number) for number in numbers[:3])
    asyncio.run(Crowd(address, token, seed, sessions, episodes, float(numbers[3]) if numbers[3:] else 0.0).play())
