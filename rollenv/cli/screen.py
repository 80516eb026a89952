"""What a training run shows: a live table on a terminal, one line a step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from rollenv.cli.show import duration, percent, rate, with_interval

if TYPE_CHECKING:
    from rollenv.config import TrainConfig

RECENT = 8
"""Steps in the live table."""


class TrainScreen:
    """Shows the figures of a run as they come.

    Args:
        config: the run's settings.
        start: the step that the run begins at (0, or that of the checkpoint it continues from).
    """

    def __init__(self, config: TrainConfig, start: int) -> None:
        self._config, self._start = config, start
        self._console = Console(highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[eta]}"),
        )
        self._task = self._progress.add_task("preparing", total=config.steps, completed=start, eta="")
        self._steps: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> TrainScreen:
        if self._console.is_terminal:
            self._live = Live(self._view(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the terminal as it was. Safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, what: str) -> None:
        """Everything is ready and the run begins."""
        self._began = time.monotonic()
        self.say(what)
        if self._start == 0:
            self._doing("evaluating")
        else:
            self.say(f"continuing from step {self._start}")
            self._doing("training")

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(line, markup=False, soft_wrap=True)

    def on_figures(self, kind: str, figures: dict[str, Any]) -> None:
        """Takes what a `TrainRun` reports."""
        if kind == "step":
            self._step(figures)
        elif kind == "eval":
            success = with_interval(figures["eval_success"], figures["eval_ci95"])
            self.say(f"step {figures['step']:>4}  eval success {success}  score {figures['eval_reward']:.3f}")
            self._doing("training")

    def _step(self, figures: dict[str, Any]) -> None:
        self._steps = [*self._steps, figures][-RECENT:]
        step, every = int(figures["step"]), self._config.eval.every
        if self._live is None:
            self._console.print(line_of(figures, self._config.steps, self._eta(step)), soft_wrap=True)
        self._progress.update(self._task, completed=step, eta=f"eta {self._eta(step)}")
        due = step == self._config.steps or (every > 0 and step % every == 0)
        self._doing("evaluating" if due else "training")

    def _eta(self, step: int) -> str:
        done = step - self._start
        return duration((time.monotonic() - self._began) / done * (self._config.steps - step)) if done else "?"

    def _doing(self, what: str) -> None:
        self._progress.update(self._task, description=what)
        if self._live is not None:
            self._live.update(self._view())

    def _view(self) -> Group:
        return Group(table_of(self._steps), self._progress) if self._steps else Group(self._progress)


def line_of(figures: dict[str, Any], steps: int, eta: str) -> str:
    """A step as one line."""
    return (
        f"step {int(figures['step']):>4}/{steps}  success {percent(figures['success']):>6}  "
        f"reward {figures['reward']:.3f}  {rate(figures['tokens_per_second'])} tokens/s  "
        f"{figures['seconds']:.1f} s  eta {eta}"
    )


def table_of(steps: Sequence[dict[str, Any]]) -> Table:
    """The last steps as a table."""
    table = Table(box=None, pad_edge=False)
    for title in ("step", "success", "reward", "turns", "tokens/s", "rollout", "train"):
        table.add_column(title, justify="right", min_width=8)
    for figures in steps:
        table.add_row(
            str(int(figures["step"])),
            percent(figures["success"]),
            f"{figures['reward']:.3f}",
            f"{figures['turns']:.1f}",
            rate(figures["tokens_per_second"]),
            f"{figures['rollout_seconds']:.1f} s",
            f"{figures['train_seconds']:.1f} s",
        )
    return table
