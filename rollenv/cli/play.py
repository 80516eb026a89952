"""`rollenv play`: a person acts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from rollenv.cli.options import ConfigOption, EnvOption, ImportOption, SeedOption, Settings, import_user_code
from rollenv.errors import InvalidAction

if TYPE_CHECKING:
    from rollenv.core import TextEnv

SHOWN = 40
"""Admissible actions listed after each observation; `:actions` lists them all."""

HELP = """An action is a line of text, or the number of a listed one.
:actions  list every admissible action
:help     this
:quit     leave (so does the end of the input)"""


def play(
    env: EnvOption = None,
    settings: Settings = None,
    task: Annotated[str | None, typer.Option("--task", metavar="ID", help="Which task (default: any).")] = None,
    seed: SeedOption = None,
    config: ConfigOption = None,
    imports: ImportOption = None,
) -> None:
    """Play an episode yourself: read the observation, type an action or its number."""
    import_user_code(imports)
    from rollenv.config import TrainConfig, load_config
    from rollenv.registration import make, spec

    run = load_config(TrainConfig, env, config, settings or [])
    world = make(spec(run.env), **run.env_args)
    try:
        _Game(world, Console(highlight=False, soft_wrap=not sys.stdout.isatty())).play(task, seed)
    finally:
        world.close()


@dataclass(slots=True)
class _Game:
    """One episode at the terminal."""

    env: TextEnv
    console: Console
    turns: int = 0
    total: float = 0.0

    def play(self, task: str | None, seed: int | None) -> None:
        """Plays until the episode ends, or the player leaves."""
        observation, info = self.env.reset(seed=seed, options={"task": task} if task is not None else None)
        self.console.print(f"[bold]task {escape(str(info.get('task', '?')))}[/bold]   (:help for help)")
        over = False
        self._show(observation, info)
        while not over and (action := self._ask(info)) is not None:
            try:
                observation, reward, terminated, truncated, info = self.env.step(action)
            except InvalidAction as error:
                self.console.print(f"[red]{escape(str(error))}[/red]")
                continue
            over = terminated or truncated
            self.turns, self.total = self.turns + 1, self.total + float(reward)
            if info.get("valid_action") is False:
                self.console.print(f"[red]that action is not possible:[/red] {escape(action)}")
            self.console.print(f"turn {self.turns}   reward {float(reward):g}")
            self._show(observation, info if not over else {})
        self._end(info, over)

    def _ask(self, info: dict[str, Any]) -> str | None:
        """The next action; None when the player leaves."""
        actions = list(info.get("admissible_actions") or ())
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                return None
            if line in (":quit", ":q"):
                return None
            if line == ":help":
                self.console.print(HELP, markup=False)
            elif line == ":actions":
                self._list(actions, len(actions))
            elif line.startswith(":"):
                self.console.print(f"no command '{line}'; :help lists them", markup=False)
            elif line.isdecimal() and line not in actions and 1 <= int(line) <= len(actions):
                return str(actions[int(line) - 1])
            elif line:
                return line

    def _show(self, observation: str, info: dict[str, Any]) -> None:
        # WebShop's text mode separates what stands on a page by this word.
        text = observation.replace(" [SEP] ", "\n")
        self.console.print(Panel(escape(text)) if self.console.is_terminal else text, markup=self.console.is_terminal)
        self._list(list(info.get("admissible_actions") or ()), SHOWN)

    def _list(self, actions: list[str], most: int) -> None:
        for number, action in enumerate(actions[:most], 1):
            self.console.print(f"{number:3d}  {action}", markup=False)
        if len(actions) > most:
            self.console.print(f"     ... {len(actions) - most} more: :actions", markup=False)

    def _end(self, info: dict[str, Any], over: bool) -> None:
        success = {True: "solved", False: "not solved"}.get(info.get("success"), "ended") if over else "left"  # type: ignore[arg-type]
        self.console.print(f"[bold]{success}[/bold] after {self.turns} turns, reward {self.total:g}")
