"""`rollenv view`: what happened in a run, in a browser."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from rollenv.cli.show import Bar
from rollenv.errors import RollenvError

EPISODES = 500
"""What an exported file holds, unless told otherwise."""


def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a training run, of 'rollenv eval --out', or of several.")
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8001,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE.html", help="Write the page there, data and all, instead of serving it."
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", min=1, help="With --export: the most episodes that the file holds.")
    ] = EPISODES,
) -> None:
    """Look at a run in a browser: its episodes turn by turn, the samples of a task side by side, its curves."""
    from rollenv.viewer.library import Library

    library = Library(run, _find_model)
    try:
        if export is not None:
            _export(library, export, episodes)
        else:
            _serve(library, host, port)
    finally:
        library.close()


def _serve(library: Any, host: str, port: int) -> None:
    from rollenv.server.serve import listen
    from rollenv.viewer.app import make_server

    with listen(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        known = ["*"] if host in ("0.0.0.0", "::") else ["127.0.0.1", "localhost", "[::1]", name]
        print(f"viewer at http://{name}:{listening.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # which is how a viewer ends
            make_server(library, known).run([listening])


def _export(library: Any, out: Path, episodes: int) -> None:
    from rollenv.files import write_atomically
    from rollenv.viewer.export import gathered
    from rollenv.viewer.page import page

    if out.suffix not in (".html", ".htm"):
        raise RollenvError(f"--export {out}: give the name of an HTML file, such as {out.with_suffix('.html').name}")
    with Bar("MB") as bar:
        data = gathered(library, episodes, lambda done, total: bar.update("reading", done, total))
    write_atomically(out, [page(data)])
    print(f"wrote {out}: {data['note'] or 'everything is in it'}")


def _find_model(config: dict[str, Any]) -> Path | None:
    """The model that a training run started from: its tokenizer is the run's."""
    return _model(str(config.get("env", "")), str(config.get("model", "")))


@functools.cache
def _model(env: str, model: str) -> Path | None:
    from rollenv.cli.models import model_folder, seed_policy
    from rollenv.registration import spec

    try:
        return seed_policy(spec(env)) if model == "seed" else Path(model_folder(model))
    except RollenvError:  # an environment or a model that is not here: texts without tokens
        return None
