"""WebShop on OpenEnv's own server: what `serving.py` compares with. Needs `pip install openenv-core`."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

import rollenv


class ShopAction(Action):
    """What to do, as WebShop has it."""

    action: str


class ShopObservation(Observation):
    """What rollenv's servers say, too."""

    text: str
    info: dict[str, Any]
    terminated: bool = False
    truncated: bool = False


class Shop(Environment[ShopAction, ShopObservation, State]):
    """An environment of rollenv's as OpenEnv wants one."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._env = rollenv.make("webshop")
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> ShopObservation:
        text, info = self._env.reset(seed=seed)
        self._state = State(episode_id=episode_id, step_count=0)
        return ShopObservation(text=text, info=info, reward=0.0, done=False)

    def step(self, action: ShopAction, timeout_s: float | None = None, **_: Any) -> ShopObservation:
        text, reward, terminated, truncated, info = self._env.step(action.action)
        self._state.step_count += 1
        over = terminated or truncated
        return ShopObservation(
            text=text, info=info, terminated=terminated, truncated=truncated, reward=reward, done=over
        )

    @property
    def state(self) -> State:
        return self._state


def serve() -> None:
    """Prints its address and serves until it is told to stop."""
    rollenv.make("webshop").close()  # loads the catalogue, which all share
    app = create_fastapi_app(Shop, ShopAction, ShopObservation, max_concurrent_envs=10_000)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        print(f"WebShop at http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])
