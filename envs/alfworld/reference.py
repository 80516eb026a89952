"""The reference engine: the same games on Microsoft's TextWorld, hundreds of times slower.

It plays what the native engine does not know, and is what the native engine is checked against. Needs the extra
`[alfworld]`.
"""

from __future__ import annotations

import json
from typing import Any

from rollenv.envs.alfworld.naming import names_of
from rollenv.envs.textworld.package import undisturbed
from rollenv.errors import RollenvError


class ReferenceSimulator:
    """One episode of a game on TextWorld, with the calls of `engine.Simulator`.

    Args:
        data: the bytes of a game file.
        name: what messages call it.

    Raises:
        RollenvError: TextWorld is not installed, or cannot load the game.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name = data, name
        self._env = _load(data, name)
        self._start()

    def _start(self) -> None:
        with undisturbed():
            self._state = self._env.reset()
        self._welcome = self._state.feedback
        self.won = bool(self._state["won"])
        self.commands: list[str] = []

    def welcome(self) -> str:
        """The first observation."""
        return str(self._welcome)

    def command(self, command: str) -> str | None:
        """Does what `command` says and returns the feedback; None, with nothing changed, when it is not admissible."""
        command = command.strip()
        if command not in self._state["admissible_commands"]:
            return None
        self._state, _, _ = self._env.step(command)
        self.commands.append(command)
        return str(self._state.feedback)

    def update_won(self) -> bool:
        """Looks at the goal anew; to be called after a command that was done."""
        self.won = bool(self._state["won"])
        return self.won

    def admissible(self) -> list[str]:
        """Every admissible command, sorted."""
        return list(self._state["admissible_commands"])

    def dump(self) -> list[Any]:
        """What was done so far: the engine's own state stays inside it."""
        return list(self.commands)

    def load(self, commands: list[Any]) -> None:
        """Does what was done in the episode of `dump`, from the start."""
        self._start()
        for command in commands:
            self.command(command)
        self.update_won()

    def close(self) -> None:
        """Frees the engine's library."""
        import fast_downward

        if self._env is not None:
            fast_downward.close_lib(self._env.downward_lib)
            self._env = None


def _load(data: bytes, name: str) -> Any:
    try:
        with undisturbed():
            from textworld.core import EnvInfos
            from textworld.envs.pddl.pddl import PddlEnv

            env = PddlEnv(EnvInfos(won=True, admissible_commands=True))
    except ImportError as error:
        raise RollenvError(
            f"alfworld: '{name}' needs the reference engine, and it is not installed ({error}); "
            "pip install 'rollenv[alfworld]'"
        ) from error
    try:
        with undisturbed():
            env.load(json.loads(data))
    except Exception as error:  # whatever its parsers and its planner raise at a game that is not sound
        raise RollenvError(
            f"alfworld: the reference engine cannot load '{name}' ({type(error).__name__}: {error}); is it sound?"
        ) from error
    names = names_of(info.id for info in env._entity_infos.values())
    for info in env._entity_infos.values():
        info.name = names[info.id]
    return env
