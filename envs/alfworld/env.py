"""ALFWorld: household tasks in text.

Invariant: observations are the game's feedback strings unchanged, and the native engine gives what TextWorld gives,
byte for byte. An environment holds an episode's state and nothing else; games are shared by all of the process.
"""

from __future__ import annotations

import hashlib
import marshal
import warnings
from os import PathLike, fspath
from typing import Any, Literal, Protocol

from rollenv.core import EpisodeOver, Executor, TextEnv
from rollenv.envs.alfworld.boards import board_of
from rollenv.envs.alfworld.compiler import Foreign, read_game_file
from rollenv.envs.alfworld.engine import NOTHING_HAPPENS
from rollenv.envs.alfworld.library import Library, SingleGame, open_library, task_type
from rollenv.envs.alfworld.order import UpstreamOrder
from rollenv.envs.alfworld.reference import ReferenceSimulator
from rollenv.errors import RollenvError, SnapshotError, did_you_mean
from rollenv.tasks import TaskSet

Engine = Literal["native", "textworld"]
_ENGINES = ("native", "textworld")
_ORDERS = ("random", "upstream")
_MAGIC = b"rollenv-alfworld\x01"


class Simulator(Protocol):
    """An episode on one of the engines."""

    @property
    def won(self) -> bool: ...
    def welcome(self) -> str: ...
    def command(self, command: str) -> str | None: ...
    def update_won(self) -> bool: ...
    def admissible(self) -> list[str]: ...
    def dump(self) -> list[Any]: ...
    def load(self, values: list[Any]) -> None: ...
    def close(self) -> None: ...


class AlfworldEnv(TextEnv):
    """A house and a task. Actions are commands such as `go to drawer 1` or `take mug 1 from desk 2`.

    Args:
        data: folder or archive with ALFWorld's games (`json_2.1.1/<split>/<task>/<trial>/game.tw-pddl`, either
            dialect); None for generated games.
        game: one game file instead.
        engine: `native`, or `textworld` for the reference engine (needs the extra `[alfworld]`). Games that the
            native engine does not know are played by the reference engine, with a warning.
        admissible_actions: whether `info` lists the admissible commands; steps without are faster.
        walkthrough: whether `reset` shows the commands that solve the game, as `info["walkthrough"]` (None where the
            file has none). They tell where things are: for replay, not for agents that are to be measured.
        order: which game of the first split a `reset` without a task plays: a `random` one, or the next in `upstream`'s
            order, which begins anew with each seed (1234 at first, as in the original).

    Besides rollenv's own keys, `info` has `won` and `type` (which of the six kinds of task it is). The reward is 1.0
    in the step that solves the task, which ends the episode.

    Raises:
        RollenvError: an argument is not one of its values, or the games are missing or torn.
    """

    executor: Executor = "inline"

    def __init__(
        self,
        data: str | PathLike[str] | None = None,
        game: str | PathLike[str] | None = None,
        engine: Engine = "native",
        admissible_actions: bool = True,
        walkthrough: bool = False,
        order: Literal["random", "upstream"] = "random",
    ) -> None:
        _check_choice("engine", engine, _ENGINES)
        _check_choice("order", order, _ORDERS)
        if data is not None and game is not None:
            raise RollenvError("alfworld: give data (many games) or game (one of them), not both")
        self._data = None if data is None else fspath(data)
        self._game = None if game is None else fspath(game)
        self._engine = engine
        self._lists = bool(admissible_actions)
        self._shows = bool(walkthrough)
        self._attach()
        self._order = UpstreamOrder(self._first_split()) if order == "upstream" else None
        self._task: str | None = None
        self._over = True
        self._observation = ""
        self._simulator: Simulator | None = None

    def _attach(self) -> None:
        """Takes hold of the games."""
        if self._game is not None:
            single = SingleGame(self._game)
            read_game_file(single.read(single.task), self._game)  # a file that is no game is refused at once
            self._library: Library = single
        elif self._data is not None:
            self._library = open_library(self._data)
        else:
            from rollenv.envs.alfworld.generated import generated_library

            self._library = generated_library()

    @property
    def tasks(self) -> TaskSet:
        """The games, in the splits of their folders."""
        return self._library.tasks

    # -- episodes ------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode: of the game that `options={"task": id}` names, or a random one of the first split.

        Raises:
            RollenvError: there is no such game, `options` has other keys, or the game cannot be played.
        """
        super().reset(seed=seed)
        options = self.check_options(options)
        unknown = [key for key in options if key != "task"]
        if unknown:
            raise RollenvError(
                f"alfworld: reset takes the option 'task', not '{unknown[0]}'{did_you_mean(str(unknown[0]), ['task'])}"
            )
        tasks = self.tasks
        task = options.get("task")
        if self._order is not None and seed is not None:
            self._order = UpstreamOrder(self._first_split(), seed % 2**32)
        if task is None:
            task = self._draw()
        tasks.split_of(task)
        self._begin(task)
        self._over = False
        info = self._info()
        if self._shows:
            info["walkthrough"] = self._walkthrough(task)
        return self._observation, info

    def _first_split(self) -> tuple[str, ...]:
        return next(iter(self.tasks.splits.values()))

    def _draw(self) -> str:
        """The game to play when none is named."""
        if self._order is not None:
            return self._order.draw()
        ids = self._first_split()
        return ids[int(self.np_random.integers(len(ids)))]

    def _begin(self, task: str) -> None:
        """Sets up the first state of a game."""
        simulator = self._simulate(task)
        if self._simulator is not None:
            self._simulator.close()
        self._simulator, self._task = simulator, task
        self._observation = simulator.welcome()

    def _simulate(self, task: str) -> Simulator:
        name = f"{self._library.source}: {task}"
        if self._engine == "native":
            try:
                return board_of(self._library, task).episode()
            except Foreign as reason:
                warnings.warn(
                    f"alfworld: '{name}' is played by the slow reference engine: {reason}", RuntimeWarning, stacklevel=4
                )
        data = self._library.read(task)
        read_game_file(data, name)
        return ReferenceSimulator(data, name)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does what a command says; one that is not admissible changes nothing.

        Raises:
            InvalidAction: the action is not text.
            EpisodeOver: there is no episode going on.
        """
        command = self.check_text(action)
        simulator = self._simulator
        if simulator is None or self._over:
            raise EpisodeOver("alfworld: the episode is over or has not begun; call reset() first")
        feedback = simulator.command(command)
        valid = feedback is not None
        won = simulator.update_won() if valid else simulator.won
        self._observation = feedback if feedback is not None else NOTHING_HAPPENS
        info = self._info()
        info["valid_action"] = valid
        if won:
            self._over = True
            info["success"] = True
        return self._observation, float(won), won, False, info

    def _info(self) -> dict[str, Any]:
        simulator, task = self._simulator, self._task
        assert simulator is not None
        assert task is not None
        info: dict[str, Any] = {"task": task, "type": task_type(task), "won": simulator.won}
        if self._lists:
            info["admissible_actions"] = simulator.admissible()
        return info

    def _walkthrough(self, task: str) -> list[str] | None:
        found = read_game_file(self._library.read(task), task).walkthrough
        return None if found is None else list(found)

    def close(self) -> None:
        """Frees what the reference engine holds."""
        if self._simulator is not None:
            self._simulator.close()
            self._simulator, self._over = None, True
        super().close()

    # -- snapshots -----------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The episode and the generator's state: `restore` continues to the very same future."""
        body = marshal.dumps(self._freeze(), 2)
        return _MAGIC + hashlib.sha256(body).digest()[:8] + body

    def _freeze(self) -> list[Any]:
        simulator, task = self._simulator, self._task
        return [
            None if task is None else [task, self._library.sha256(task), self._engine_of(task)],
            self._over,
            self._observation,
            None if simulator is None else simulator.dump(),
            self.np_random.bit_generator.state,
            None if self._order is None else [self._order.seed, self._order.drawn],
        ]

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        """Continues from `snapshot`, and returns the observation and the info that a step there would give.

        Raises:
            SnapshotError: the bytes are no snapshot, or one of other games or another engine; nothing is changed.
        """
        what, over, observation, values, generator, order = _unpack(snapshot)
        if what is not None:
            self._check_same(*what)
            self._begin(what[0])
            assert self._simulator is not None
            self._simulator.load(values)
        self._over, self._observation = over, observation
        self.np_random.bit_generator.state = generator
        if self._order is not None and order is not None:
            self._order = UpstreamOrder(self._first_split(), *order)
        return (observation, self._info()) if what is not None else ("", {})

    def _check_same(self, task: str, sha256: str, engine: str) -> None:
        if task not in self.tasks or self._library.sha256(task) != sha256:
            raise SnapshotError(
                f"alfworld: the snapshot is of the game '{task}', which '{self._library.source}' does not have in that "
                "form; restore it in an environment made with the same arguments"
            )
        if engine != self._engine_of(task):
            raise SnapshotError(
                f"alfworld: the snapshot of '{task}' is of another engine; restore it with the engine that made it"
            )

    def _engine_of(self, task: str) -> Engine:
        """The engine that plays a game here."""
        if self._engine == "native":
            try:
                board_of(self._library, task)
            except Foreign:
                return "textworld"
        return self._engine

    # -- copies to other processes -------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        shared = ("_library", "_simulator", "_thread")
        state = {key: value for key, value in self.__dict__.items() if key not in shared}
        return state | {"_values": None if self._simulator is None else self._simulator.dump()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        values = state.pop("_values")
        self.__dict__.update(state)
        self._simulator = None
        self._attach()
        if values is not None and self._task is not None:
            self._simulator = self._simulate(self._task)
            self._simulator.load(values)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise RollenvError(
            f"alfworld: {name} must be one of {', '.join(choices)}, not {value!r}{did_you_mean(str(value), choices)}"
        )


def _unpack(snapshot: bytes) -> list[Any]:
    size = len(_MAGIC) + 8
    if not isinstance(snapshot, bytes) or not snapshot.startswith(_MAGIC):
        raise SnapshotError("alfworld: these bytes are not a snapshot of an ALFWorld environment of this version")
    body = snapshot[size:]
    if hashlib.sha256(body).digest()[:8] != snapshot[len(_MAGIC) : size]:
        raise SnapshotError("alfworld: the snapshot is damaged; take a new one")
    state: list[Any] = marshal.loads(body)
    return state
