"""An episode as it was played before: the same actions, from the same seed, in the environment as it is now."""

from __future__ import annotations

from rollenv.agents.base import Step
from rollenv.trajectory import Trajectory, Turn


class Replayer:
    """Says again what was said, with the tokens that it was made of. For an episode of no more turns than it had."""

    def __init__(self, recorded: Trajectory) -> None:
        self._turns = recorded.turns

    async def act(self, history: list[Step], turn: Turn) -> str:
        said = self._turns[len(history) - 1]
        turn.prompt_ids, turn.completion_ids = list(said.prompt_ids), list(said.completion_ids)
        turn.logprobs, turn.policy_versions = list(said.logprobs), list(said.policy_versions)
        turn.fork, turn.completion = said.fork, said.completion
        return said.action

    async def close(self, aborted: bool) -> None:
        return None


def differs_at(recorded: Trajectory, replayed: Trajectory) -> int | None:
    """The first turn in which the environment said something else than before; None: it said the same, as far as both
    went."""
    pairs = zip(recorded.turns, replayed.turns, strict=False)
    return next((place for place, (old, new) in enumerate(pairs) if old.observation != new.observation), None)
