"""ALFWorldWalkthrough: does what the game's own walkthrough says, which an environment shows when it is asked to."""

from __future__ import annotations

from typing import Any

from rollenv.errors import RollenvError


class ALFWorldWalkthrough:
    """Replays `info["walkthrough"]`: the shortest way, from knowing where everything is. Not a fair expert."""

    def __init__(self) -> None:
        self._left: list[str] | None = None

    def reset(self, seed: int) -> None:
        """Starts again from the first command."""
        self._left = None

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The next command.

        Raises:
            RollenvError: the environment shows no walkthrough, or it is at its end and has not solved the task.
        """
        if self._left is None:
            self._left = list(info.get("walkthrough") or ())
            if not self._left:
                raise RollenvError(
                    "ALFWorldWalkthrough needs info['walkthrough']: make the environment with walkthrough=True, and "
                    "choose games that have one"
                )
        if not self._left:
            raise RollenvError(f"the walkthrough of '{info.get('task')}' does not solve it; choose the agent 'oracle'")
        return self._left.pop(0)
