"""`rollenv report`: what runs came to, as a page to send around."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollenv.cli.show import Bar
from rollenv.errors import RollenvError


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of 'rollenv eval --out', of training runs, or of several."),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.html", help="The page; beside it goes the same as Markdown (.md).")
    ] = Path("report.html"),
) -> None:
    """Write a report, as one HTML file and as Markdown: leaderboards, comparisons, success by type, curves."""
    from rollenv.files import write_atomically
    from rollenv.viewer.document import as_html, as_markdown
    from rollenv.viewer.report import report as blocks_of

    if out.suffix != ".html":
        raise RollenvError(f"--out {out}: give the name of an HTML file, such as {out.with_suffix('.html').name}")
    with Bar("runs") as bar:
        blocks = blocks_of(folders, lambda done, total: bar.update("reading", done, total))
    write_atomically(out.with_suffix(".md"), [as_markdown(blocks)])
    write_atomically(out, [as_html(blocks)])
    print(f"wrote {out} and {out.with_suffix('.md')}")
