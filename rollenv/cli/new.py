"""`rollenv new`: the beginning of an environment of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case words with hyphens, such as my-env.")],
    parent: Annotated[Path, typer.Option("--in", metavar="FOLDER", help="Where its folder comes to lie.")] = Path(),
) -> None:
    """Begin an environment of your own: a package with a small world, an oracle, tests, settings and a Dockerfile."""
    from rollenv.scaffold import module_of, new_project

    folder = new_project(name, parent)
    env = module_of(name)
    print(f"{folder}/ is ready: a world that works, to be replaced by yours")
    print(f"  cd {folder}")
    print("  pip install -e . && pytest")
    print(f"  rollenv play --env {env}")
    print(f"  rollenv train --env {env} --model scratch --out run")
