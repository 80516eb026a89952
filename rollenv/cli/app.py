"""The verbs, put together. Importing this loads no torch: each verb imports what it needs when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

import rollenv
from rollenv.cli.audit import audit
from rollenv.cli.compare import compare
from rollenv.cli.doctor import doctor
from rollenv.cli.envs import envs
from rollenv.cli.evaluate import evaluate
from rollenv.cli.export import export
from rollenv.cli.gateway import gateway
from rollenv.cli.gc import gc
from rollenv.cli.images import images
from rollenv.cli.imitate import imitate
from rollenv.cli.new import new
from rollenv.cli.play import play
from rollenv.cli.report import report
from rollenv.cli.rescore import rescore
from rollenv.cli.serve import serve
from rollenv.cli.simulate import simulate
from rollenv.cli.train import name_bare_resume, train
from rollenv.cli.view import view
from rollenv.errors import RollenvError

app = typer.Typer(
    name="rollenv",
    help="A gym for LLM agents: play, evaluate, imitate and train in multi-turn text environments.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command("eval")(evaluate)
app.command()(compare)
app.command()(rescore)
app.command()(report)
app.command()(audit)
app.command()(play)
app.command()(imitate)
app.command()(simulate)
app.command()(serve)
app.command()(gateway)
app.command()(view)
app.command()(envs)
app.command()(new)
app.command()(export)
app.add_typer(images, name="images")
app.command()(gc)
app.command()(doctor)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(rollenv.__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise RollenvError("say what to do: 'rollenv --help' lists it")


def run(args: list[str]) -> int:
    """Runs one verb and returns its exit code.

    Raises:
        RollenvError: a user's mistake, a wrong option among them.
    """
    try:
        code = typer.main.get_command(app).main(name_bare_resume(args), prog_name="rollenv", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # Usage errors: their class is click's or typer's own, by typer's version; both tell themselves in one line.
        if not hasattr(error, "format_message"):
            raise
        sentence = str(error.format_message()).rstrip(".")
        hint = "" if sentence.endswith("?") else "; 'rollenv --help' lists what there is"
        raise RollenvError(sentence + hint) from error
    return code if isinstance(code, int) else 0
