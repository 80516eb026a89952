"""Plays a game on both engines side by side, command by command.

The reference engine is made faster in two ways that cannot change what it says: the text of an action's command, which
depends on facts that never change, is derived once; and the problem's second translation, which only its planner
uses, is left out.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rollenv.envs.alfworld.boards import board_of
from rollenv.envs.alfworld.engine import Simulator
from rollenv.envs.alfworld.library import Library
from rollenv.envs.alfworld.reference import ReferenceSimulator


@dataclass(frozen=True)
class View:
    """What an engine shows after a command (None when it was not admissible)."""

    feedback: str | None
    won: bool
    admissible: list[str]


def play(engine: Simulator | ReferenceSimulator, command: str) -> View:
    """Does `command`."""
    feedback = engine.command(command)
    return View(feedback, engine.update_won(), engine.admissible())


def difference(library: Library, task: str, steps: int, seed: int) -> str | None:
    """The first difference between the engines over `steps` commands of an episode; None when there is none.

    One command in ten is nonsense or not possible; the others follow the walkthrough at times, and are otherwise
    drawn from the admissible ones, every verb as often as any other.
    """
    rng = random.Random(f"{task} {seed}")
    native = board_of(library, task).episode()
    with faster_reference():
        reference = ReferenceSimulator(library.read(task), task)
        try:
            if native.welcome() != reference.welcome() or native.admissible() != reference.admissible():
                return f"{task}: the start differs"
            walkthrough = list(native.board.game.walkthrough or ())
            expert = rng.choice((0.0, 0.3, 0.6))
            for number in range(steps):
                command = _draw(native, walkthrough, expert, rng)
                ours, theirs = play(native, command), play(reference, command)
                if ours != theirs:
                    return f"{task}, step {number + 1}, {command!r}:\n  native    {ours}\n  reference {theirs}"
        finally:
            reference.close()
    return None


def replay(library: Library, task: str, commands: list[str]) -> list[tuple[View, View]]:
    """What both engines show after each of `commands`."""
    native = board_of(library, task).episode()
    with faster_reference():
        reference = ReferenceSimulator(library.read(task), task)
        try:
            start = [View(engine.welcome(), engine.won, engine.admissible()) for engine in (native, reference)]
            return [(start[0], start[1]), *((play(native, c), play(reference, c)) for c in commands)]
        finally:
            reference.close()


def _draw(native: Simulator, walkthrough: list[str], expert: float, rng: random.Random) -> str:
    admissible = native.admissible()
    if rng.random() < 0.1:
        return _impossible(native, rng)
    if walkthrough and rng.random() < expert and walkthrough[0] in admissible:
        return walkthrough.pop(0)
    verb = rng.choice(sorted({command.split()[0] for command in admissible}))
    return rng.choice([command for command in admissible if command.split()[0] == verb])


def _impossible(native: Simulator, rng: random.Random) -> str:
    game = native.board.game
    one, other = rng.choice(game.objects + game.receptacles), rng.choice(game.objects + game.receptacles)
    pattern = rng.choice(
        (
            "", "foo", "Look", " look ", "help", "go to nowhere 1", "go to {0}", "open {0}", "close {0}", "use {0}",
            "examine {0}", "take {0} from {1}", "move {0} to {1}", "put {0} in/on {1}", "heat {0} with {1}",
            "clean {0} with {1}", "cool {0} with {1}", "slice {0} with {1}", "look around", "take {0}",
        )
    )  # fmt: skip
    return pattern.format(one, other)


@contextlib.contextmanager
def faster_reference() -> Iterator[None]:
    """Within the block, new reference engines are some times faster."""
    import fast_downward
    from textworld.envs.pddl import textgen

    translate, derive = fast_downward.pddl2sas, textgen.ContextSensitiveGrammar.derive
    done: dict[str, Any] = {}

    def translate_once(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        if optimize:
            return None, ""
        if problem not in done:
            done.clear()
            done[problem] = translate(domain, problem, verbose=verbose)
        return done[problem]

    texts: dict[Any, str] = {}

    def derive_once(grammar: Any, start: str, context: Any = None) -> str:
        mapping = (context or {}).get("mapping") or {}
        if start.startswith("#") or not mapping:
            return derive(grammar, start, context or {})
        key = (id(grammar), start, tuple((place.name, thing.name) for place, thing in mapping.items()))
        if key not in texts:
            texts[key] = derive(grammar, start, context)
        return texts[key]

    fast_downward.pddl2sas = translate_once
    textgen.ContextSensitiveGrammar.derive = derive_once
    try:
        yield
    finally:
        fast_downward.pddl2sas, textgen.ContextSensitiveGrammar.derive = translate, derive
