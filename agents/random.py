"""RandomAgent: the floor every other agent has to beat."""

from __future__ import annotations

import random
import re
from typing import Any

from rollenv.errors import RollenvError

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_SEPARATOR = " [SEP] "
_MOST_WORDS = 4


class RandomAgent:
    """Picks uniformly among `info["admissible_actions"]`, in any environment.

    Where WebShop shows a search bar, it searches 1 to 4 random words of the instruction (a button named `search`
    does nothing there, and a page without one never lists a query).
    """

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def reset(self, seed: int) -> None:
        """Starts a new episode whose draws `seed` decides."""
        self._rng = random.Random(f"random agent {seed}")

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """A random action that is possible now.

        Raises:
            RollenvError: the environment does not say which actions are admissible, or there are none.
        """
        if (info.get("available_actions") or {}).get("has_search_bar"):
            return self._search(observation)
        actions = info.get("admissible_actions")
        if not actions:
            raise RollenvError(
                "RandomAgent needs info['admissible_actions'] with at least one action: use it with an environment "
                "that lists them, or choose another agent"
            )
        return str(self._rng.choice(list(actions)))

    def _search(self, observation: str) -> str:
        nodes = observation.split(_SEPARATOR)
        at = next((i + 1 for i, node in enumerate(nodes[:-1]) if node.strip() == "Instruction:"), None)
        found = _WORD.findall(observation if at is None else nodes[at]) or ["search"]
        words = list(dict.fromkeys(word.lower() for word in found))
        return f"search[{' '.join(self._rng.sample(words, self._rng.randint(1, min(_MOST_WORDS, len(words)))))}]"
