"""TextWorld games as environments.

Invariant: observations are the game's feedback unchanged, and an episode is decided by the commands that were given:
a snapshot holds these, and is restored by giving them again.
"""

from __future__ import annotations

import hashlib
import json
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from rollenv.core import EpisodeOver, Executor, TextEnv
from rollenv.envs.textworld.package import undisturbed
from rollenv.errors import RollenvError, SnapshotError
from rollenv.tasks import TaskSet

_FORMS = (".z1", ".z2", ".z3", ".z4", ".z5", ".z6", ".z7", ".z8", ".ulx", ".tw-pddl")
_MAGIC = b"rollenv-textworld\x01"


class TextWorldEnv(TextEnv):
    """One game, played by the `textworld` package.

    Args:
        game: the game file. What TextWorld made itself has a .json file beside it, from which come the admissible
            commands, and whether an episode is won or lost; without it `info` lists no actions, and every action
            counts as valid. A command that is not listed is given to the game all the same: its parser may know it
            as another word for one that is.

    The reward of a step is the share of the game's highest score that it brings (1.0 for winning where the game keeps
    no score). Besides rollenv's own keys, `info` has `won`, `lost`, `score` and `max_score` (None where unknown).

    Raises:
        RollenvError: there is no such game, or the package is not installed.
    """

    executor: Executor = "thread"
    reward_range = (-1.0, 1.0)

    def __init__(self, game: str | PathLike[str] | None = None) -> None:
        if game is None:
            raise RollenvError("textworld: which game? Give game=PATH, a .z8, .ulx or .tw-pddl file")
        self._path = Path(fspath(game)).expanduser()
        if self._path.suffix not in _FORMS:
            raise RollenvError(
                f"textworld: game='{game}' is of no form that TextWorld plays; give a {', '.join(_FORMS[-3:])} file"
            )
        try:
            data = self._path.read_bytes()
        except OSError as error:
            raise RollenvError(f"textworld: cannot read game='{game}' ({error.strerror}); give a game file") from error
        _check_story(data, self._path)
        self._sha256 = hashlib.sha256(data).hexdigest()
        self._task = self._path.name
        self._env: Any = None
        self._state: Any = None
        self._commands: list[str] = []
        self._observation = ""
        self._over = True

    @property
    def tasks(self) -> TaskSet:
        """The one game, in the split `game`."""
        return TaskSet("textworld", {"game": [self._task]}, lambda task: {"sha256": self._sha256})

    # -- episodes ------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts the game.

        Raises:
            RollenvError: another task than the game's, other options, or TextWorld cannot load the game.
        """
        super().reset(seed=seed)
        options = self.check_options(options)
        unknown = [key for key in options if key != "task"]
        if unknown:
            raise RollenvError(f"textworld: reset takes the option 'task', not '{unknown[0]}'")
        self.tasks.split_of(options.get("task", self._task))
        self._start()
        return self._observation, self._info()

    def _start(self) -> None:
        if self._env is None:
            self._env = _load(self._path)
        with undisturbed():
            self._state = self._env.reset()
        self._commands, self._observation, self._over = [], str(self._state.feedback), False

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Gives the game a command.

        Raises:
            InvalidAction: the action is not text.
            EpisodeOver: there is no episode going on.
        """
        command = self.check_text(action)
        if self._over:
            raise EpisodeOver("textworld: the episode is over or has not begun; call reset() first")
        listed, before = self._state.get("admissible_commands"), self._share()
        done = self._give(command)
        info = self._info()
        info["valid_action"] = listed is None or command.strip() in listed
        self._over = done
        if done:
            info["success"] = bool(self._state.get("won"))
        return self._observation, self._share() - before, done, False, info

    def _give(self, command: str) -> bool:
        """Hands a command on; whether the game is over then."""
        # One line of input: a line break would be a second command.
        with undisturbed():
            self._state, _, done = self._env.step(" ".join(command.split()))
        self._commands.append(command)
        self._observation = str(self._state.feedback)
        return bool(done)

    def _share(self) -> float:
        """The share of the highest score that is reached, in [0, 1]."""
        score, highest = self._state.get("score"), self._state.get("max_score")
        if not highest:
            return float(bool(self._state.get("won")))
        return min(max(float(score or 0) / float(highest), 0.0), 1.0)

    def _info(self) -> dict[str, Any]:
        state = self._state
        info = {"task": self._task, **{key: state.get(key) for key in ("won", "lost", "score", "max_score")}}
        if state.get("admissible_commands") is not None:
            info["admissible_actions"] = list(state["admissible_commands"])
        return info

    def close(self) -> None:
        """Ends the game's interpreter."""
        if self._env is not None:
            self._env.close()
            self._env, self._over = None, True
        super().close()

    # -- snapshots and copies ------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The commands of the episode and the generator's state."""
        state = [self._sha256, self._state is not None, self._over, self._observation, self._commands]
        body = json.dumps([*state, self.np_random.bit_generator.state]).encode()
        return _MAGIC + hashlib.sha256(body).digest()[:8] + body

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        """Plays the commands of `snapshot` again, and returns the observation and the info that it ends with.

        Raises:
            SnapshotError: the bytes are no snapshot of this game, or the game went another way this time.
        """
        sha256, begun, over, observation, commands, generator = _unpack(snapshot)
        if sha256 != self._sha256:
            raise SnapshotError(f"textworld: the snapshot is of another game than '{self._path}'; restore it there")
        if begun:
            self._replay(commands, observation)
        self._over = over
        self.np_random.bit_generator.state = generator
        return (self._observation, self._info()) if begun else ("", {})

    def _replay(self, commands: list[str], observation: str) -> None:
        self._start()
        for command in commands:
            self._give(command)
        if self._observation != observation:
            raise SnapshotError(
                f"textworld: '{self._path}' went another way after the same commands: it has chance in it"
            )

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_env", "_state", "_thread")}
        return state | {"_begun": self._state is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        begun = state.pop("_begun")
        self.__dict__.update(state)
        self._env = self._state = None
        if begun:
            over = self._over
            self._replay(self._commands, self._observation)
            self._over = over


def _check_story(data: bytes, path: Path) -> None:
    """Refuses what is no whole story file: the interpreters would end this process over it.

    A story file of the Z-machine says its version in byte 0, its length (in units of 2, 4 or 8 bytes, by version) at
    26, and the sum of its bytes from 64 on at 28 (The Z-Machine Standards Document 1.1, section 11).
    """
    if path.suffix == ".ulx":
        whole = data[:4] == b"Glul" and len(data) >= 256
    elif path.suffix == ".tw-pddl":
        return  # JSON: a torn one raises an error when it is loaded
    else:
        version = data[0] if data else 0
        length = int.from_bytes(data[26:28], "big") * (2 if version <= 3 else 4 if version <= 5 else 8)
        whole = 1 <= version <= 8 and len(data) >= max(length, 64)
        if whole and length:
            whole = sum(data[64:length]) & 0xFFFF == int.from_bytes(data[28:30], "big")
    if not whole:
        raise RollenvError(f"textworld: '{path}' is torn or no {path.suffix} story file; copy or download it again")


def _load(path: Path) -> Any:
    with undisturbed():
        try:
            import textworld
        except ImportError as error:
            raise RollenvError(
                f"textworld: the package is not installed ({error}); pip install 'rollenv[alfworld]'"
            ) from error
        infos = textworld.EnvInfos(admissible_commands=True, won=True, lost=True, score=True, max_score=True)
        try:
            return textworld.start(str(path), request_infos=infos)
        except Exception as error:  # whatever its interpreters raise at a file that is no game
            raise RollenvError(
                f"textworld: cannot load '{path}' ({type(error).__name__}: {error}); is it a whole game?"
            ) from error


def _unpack(snapshot: bytes) -> list[Any]:
    size = len(_MAGIC) + 8
    if not isinstance(snapshot, bytes) or not snapshot.startswith(_MAGIC):
        raise SnapshotError("textworld: these bytes are not a snapshot of a TextWorld environment of this version")
    body = snapshot[size:]
    if hashlib.sha256(body).digest()[:8] != snapshot[len(_MAGIC) : size]:
        raise SnapshotError("textworld: the snapshot is damaged; take a new one")
    state: list[Any] = json.loads(body)
    return state
