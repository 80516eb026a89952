"""An agent that knows the way: it says what is possible, and the first policy learns from it."""

import random
from typing import Any


class Oracle:
    """Walks to the parcel, takes it, walks to its goal and drops it.

    Args:
        noise: share of actions that are drawn at random. A teacher that errs shows how to go on from there, and leaves
            something to learn.
    """

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def reset(self, seed: int) -> None:
        """Begins an episode."""
        self.random = random.Random(seed)

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The next action."""
        if self.random.random() < self.noise:
            return self.random.choice(info["admissible_actions"])
        way = observation.rpartition(" is ")[2].removesuffix(".").split(" and ")[0]
        if way != "here":
            return way
        return "drop" if "carry" in observation else "take"
