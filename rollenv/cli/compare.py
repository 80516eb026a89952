"""`rollenv compare`: whether one evaluation is better than another, or only luckier."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollenv.cli.show import percent

if TYPE_CHECKING:
    from rollenv.evaluation.comparison import Difference


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A folder that 'rollenv eval --out' wrote.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one, of the same tasks.")],
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures there.")] = None,
) -> None:
    """Compare two evaluations of the same tasks, task by task: paired bootstrap, McNemar's test, a verdict in words."""
    from rollenv.evaluation.comparison import compare as compared
    from rollenv.evaluation.results import read_results
    from rollenv.files import write_atomically

    ours, theirs = read_results(a), read_results(b)
    found = compared(ours, theirs)
    print(f"A  {a}: {ours.who}")
    print(f"B  {b}: {theirs.who}")
    print(f"success  A {percent(found.success.a)}  B {percent(found.success.b)}  {_gap(found.success, 100)} points")
    print(f"score    A {found.reward.a:.4f}  B {found.reward.b:.4f}  {_gap(found.reward, 1, 4)}")
    print(f"turns    A {found.turns.a:.2f}  B {found.turns.b:.2f}  {_gap(found.turns, 1, 2)}")
    print(f"tasks    {found.tasks}: A alone better in {found.only_a}, B in {found.only_b}")
    print(found.verdict)
    if out is not None:
        write_atomically(out, [json.dumps(asdict(found) | {"verdict": found.verdict}, indent=2) + "\n"])


def _gap(found: Difference, scale: float, digits: int = 1) -> str:
    low, high = found.ci95
    return (
        f"B - A {scale * found.difference:+.{digits}f} (95% CI {scale * low:+.{digits}f} to {scale * high:+.{digits}f})"
    )
