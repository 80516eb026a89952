"""WebShop: a shop of products, an instruction, and a buyer.

>>> import rollenv
>>> env = rollenv.make("webshop")  # the generated store; data="folder" reads WebShop's own files
>>> observation, info = env.reset(options={"task": "synthetic-0"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.envs.webshop.catalogue import Catalogue
    from rollenv.envs.webshop.catalogue import load_catalogue as load_catalogue
    from rollenv.envs.webshop.env import WebShopEnv as WebShopEnv
    from rollenv.envs.webshop.goals import load_goals as load_goals
    from rollenv.envs.webshop.reward import normalize_color as normalize_color
    from rollenv.envs.webshop.reward import reward_parts as reward_parts

__all__ = [
    "WebShopEnv",
    "load_catalogue",
    "load_goals",
    "normalize_color",
    "register",
    "reward_parts",
    "search",
]

_HOMES = {
    "WebShopEnv": "env",
    "load_catalogue": "catalogue",
    "load_goals": "goals",
    "normalize_color": "reward",
    "reward_parts": "reward",
}


def register() -> None:
    """Registers the environment with rollenv (and so with gymnasium)."""
    from rollenv.registration import register as add

    add(
        "WebShop-v1",
        "rollenv.envs.webshop.env:WebShopEnv",
        max_turns=15,
        placement="inline",
        description="Find and buy the product that an instruction asks for (generated store, or WebShop's data).",
        train_config="rollenv.envs.webshop:train.toml",
        imitate_config="rollenv.envs.webshop:imitate.toml",
        agents={
            "llm": "rollenv.agents.webshop:WebShopAgent",
            "oracle": "rollenv.agents.webshop_oracle:WebShopOracle",
        },
    )


def search(catalogue: Catalogue, query: str, k: int = 50) -> list[tuple[str, float]]:
    """The best `k` products of a catalogue for a query, best first, as (asin, BM25 score)."""
    return catalogue.search(query, k)


def __getattr__(name: str) -> Any:
    # Importing this package costs nothing: numpy and the rest are loaded when something of them is asked for.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
