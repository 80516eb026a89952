"""`rollenv export`: the trajectories of a run for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rollenv.cli.show import Bar
from rollenv.errors import RollenvError


class To(StrEnum):
    """What trajectories can become."""

    parquet = "parquet"
    jsonl = "jsonl"
    datasets = "datasets"
    atif = "atif"


_NAMES = {To.parquet: "trajectories.parquet", To.jsonl: "trajectories.jsonl", To.datasets: "dataset", To.atif: "atif"}


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run, or of 'rollenv eval --out'.")],
    to: Annotated[
        To,
        typer.Option(
            "--to", help="A Parquet file, JSON lines, a folder for datasets.load_from_disk, or one of ATIF files."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PATH", help="Where to; else a name in RUN/export/.")
    ] = None,
) -> None:
    """Write the trajectories of a run as Parquet, JSON lines, a Hugging Face dataset or ATIF."""
    from rollenv.evaluation.export import export as write
    from rollenv.evaluation.export import files_of

    if not run.is_dir():
        raise RollenvError(f"there is no folder '{run}': give that of a training run, or of 'rollenv eval --out'")
    target = out if out is not None else run / "export" / _NAMES[to]
    total = sum(file.open("rb").read().count(b"\n") for file in files_of(run))
    with Bar("episodes") as bar:
        n = write(run, to.value, target, lambda done: bar.update("exporting", done, total))
    print(f"exported {n} episodes to {target}")
