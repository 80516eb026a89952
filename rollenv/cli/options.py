"""Options that several verbs share, and people's own code, imported before a verb begins."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from rollenv.errors import RollenvError, did_you_mean

EnvOption = Annotated[str | None, typer.Option("--env", metavar="NAME", help="Environment; 'rollenv envs' lists them.")]
EnvUrlOption = Annotated[
    str | None,
    typer.Option("--env-url", metavar="URL", help="Play the environment on this server (http://HOST:PORT/NAME)."),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings to start from.")]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", help="Decides everything random.")]
ImportOption = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE.py|MODULE", help="Import this first (it may register environments)."),
]
InjectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--inject",
        metavar="FAULT=P ...",
        help="Break things on purpose: env_crash, env_hang, slow_env, engine_error, engine_hang, each with its "
        "probability per call.",
    ),
]
TimelineOption = Annotated[
    bool, typer.Option("--timeline", help="Draw the run into timeline.json, for ui.perfetto.dev.")
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings, such as optim.lr=1e-4 or data=DIR; 'rollenv train --env NAME --dry-run' shows them all.",
        show_default=False,
    ),
]


def env_of(env: str | None, url: str | None) -> str | None:
    """The environment to play: that of the server at `url`, which then stands in for the one that is installed here.

    Raises:
        RollenvError: nobody answers there, or it is another one than `env`.
    """
    if url is None:
        return env
    from rollenv.server.remote import play_remotely

    return play_remotely(url, env).id


def import_user_code(names: Iterable[str] | None) -> None:
    """Imports each file (under its stem) or module, with its folder on the path.

    Raises:
        RollenvError: it is not there, or it fails; the message has the line.
    """
    for name in names or ():
        try:
            if name.endswith(".py"):
                _import_file(Path(name))
            else:
                _put_on_path(Path.cwd())
                importlib.import_module(name)
        except RollenvError:
            raise
        except Exception as error:
            raise RollenvError(f"--import {name}: {type(error).__name__}: {error}{_line_of(error)}") from error


def inject_words(faults: Iterable[str] | None) -> list[str]:
    """`--inject env_crash=0.02` as words of the settings. (What follows it, `env_hang=0.01`, is one already.)

    Raises:
        RollenvError: there is no such fault.

    >>> inject_words(["env_crash=0.02,slow_env=0.1"])
    ['inject.env_crash=0.02', 'inject.slow_env=0.1']
    """
    from rollenv.config import InjectConfig

    words = [word for group in faults or () for word in group.split(",")]
    for name in (word.partition("=")[0] for word in words):
        if name not in InjectConfig.model_fields:
            known = ", ".join(InjectConfig.model_fields)
            near = did_you_mean(name, InjectConfig.model_fields)
            raise RollenvError(f"--inject: there is no fault '{name}'{near} (there are {known})")
    return [f"inject.{word}" for word in words]


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise RollenvError(f"--import {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    _put_on_path(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # by this name its classes are pickled and its agents found ("file:Agent")
    spec.loader.exec_module(module)


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _line_of(error: Exception) -> str:
    """Where in the user's file it failed."""
    trace = error.__traceback__
    last = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and file != __file__:
            last = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return last


def as_words(options: dict[str, Any]) -> list[str]:
    """Options that were given, as `key=value` words (those that are None were not).

    >>> as_words({"steps": 5, "out": "runs/a", "seed": None})
    ['steps=5', 'out="runs/a"']
    """
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in options.items() if value is not None]
