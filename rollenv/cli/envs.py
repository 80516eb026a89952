"""`rollenv envs`: which environments there are."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollenv.cli.options import ImportOption, import_user_code


def envs(
    tasks: Annotated[bool, typer.Option("--tasks", help="Make each one and count its tasks by split.")] = False,
    imports: ImportOption = None,
) -> None:
    """List the registered environments."""
    import_user_code(imports)
    from rollenv.agents import agent_names
    from rollenv.registration import EnvSpec, load_plugins, registry

    load_plugins()
    table = Table(box=None, pad_edge=False)
    for title in ("name", "id", "agents", "max turns", *(["tasks"] if tasks else []), "description"):
        table.add_column(title, overflow="fold")

    def row(spec: EnvSpec) -> list[str]:
        cells = [spec.name, spec.id, ", ".join(agent_names(spec)), str(spec.max_turns or "-")]
        return [*cells, *([split_sizes(spec)] if tasks else []), escape(spec.description)]

    for spec in sorted(registry.values(), key=lambda spec: spec.id):
        table.add_row(*row(spec))
    # A file or a pipe gets whole lines, however long.
    console = Console()
    (console if console.is_terminal else Console(width=240)).print(table)


def split_sizes(spec: object) -> str:
    """`train 500, test 500` of an environment with its default arguments; `-` when these are not enough."""
    from rollenv.errors import RollenvError
    from rollenv.registration import EnvSpec, make

    assert isinstance(spec, EnvSpec)
    try:
        env = make(spec)
    except RollenvError:
        return "-"
    try:
        return ", ".join(f"{split} {len(ids)}" for split, ids in env.tasks.splits.items())
    finally:
        env.close()
