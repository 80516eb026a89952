"""Any game that Microsoft's TextWorld plays: .z8, .ulx, .tw-pddl.

>>> import rollenv
>>> env = rollenv.make("textworld", game="path/to/game.z8")  # doctest: +SKIP
"""

from __future__ import annotations


def register() -> None:
    """Registers the environment with rollenv (and so with gymnasium)."""
    from rollenv.registration import register as add

    add(
        "TextWorld-v1",
        "rollenv.envs.textworld.env:TextWorldEnv",
        max_turns=100,
        eval_split="game",
        description="Any TextWorld game (game=PATH: .z8, .ulx, .tw-pddl); needs the extra [alfworld].",
    )
