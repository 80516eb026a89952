"""Checkpoints: the whole state of a run in a folder that is either whole or not there.

`checkpoints/step-000020/` holds `model/` (a `transformers` folder), `trainer.pt` (optimizer and generators),
`rollouts.json` (the sample buffer: what was queued, running and finished) and `state.json` (config, step, ledger).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rollenv.errors import RollenvError
from rollenv.files import new_folder, sweep_folders

FORMAT = 2
"""Of what a checkpoint holds; another one is refused."""
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint on disk."""

    folder: Path
    step: int

    @property
    def model(self) -> Path:
        """Its `transformers` folder."""
        return self.folder / "model"

    def state(self) -> dict[str, Any]:
        """Content of `state.json`. Raises RollenvError when it is missing, torn or of another version of rollenv."""
        state = self._json("state.json")
        if state.get("format") != FORMAT:
            raise RollenvError(
                f"checkpoint '{self.folder}' is of format {state.get('format', 1)}, this version of rollenv reads "
                f"format {FORMAT}: start the run anew from its model, --model {self.model}"
            )
        return state

    def rollouts(self) -> dict[str, Any]:
        """Content of `rollouts.json`. Raises RollenvError when it is missing or torn."""
        return self._json("rollouts.json")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self.folder / name).read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise RollenvError(f"checkpoint '{self.folder}' has no whole {name}: {error}; use another") from error
        return content

    def tensors(self) -> dict[str, Any]:
        """Content of `trainer.pt`. Raises RollenvError when it is missing or torn."""
        try:
            tensors: dict[str, Any] = torch.load(self.folder / "trainer.pt", map_location="cpu", weights_only=True)
        except Exception as error:
            raise RollenvError(f"checkpoint '{self.folder}' has no whole trainer.pt: {error!s:.200}") from error
        return tensors


async def write(
    run: Path,
    step: int,
    save: Callable[[Path], Awaitable[None]],
    state: dict[str, Any],
    rollouts: dict[str, Any],
    keep: int,
) -> Checkpoint:
    """Writes the checkpoint of `step` and removes all but the newest `keep`.

    Args:
        save: writes `model/` and `trainer.pt` into a folder (see `Learner.save`).

    Raises:
        RollenvError: it cannot be written (a full disk, say); the older ones are untouched.
    """
    folder = run / "checkpoints" / f"step-{step:06d}"
    try:
        with new_folder(folder) as temporary:
            await save(temporary)
            (temporary / "rollouts.json").write_text(json.dumps(rollouts))
            (temporary / "state.json").write_text(json.dumps({"format": FORMAT} | state, indent=1))
    except Exception as error:  # each library has its own class for a full disk
        last = newest(run)
        whole = f"the last whole one is '{last.folder}'" if last else "there is none yet"
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), type(error).__name__)
        raise RollenvError(
            f"cannot write checkpoint '{folder}': {reason:.200}; {whole}: make room, then continue with --resume"
        ) from error
    # What is newer than this step is of a future that the run has turned away from (it continued from before).
    others = [other for other in found(run) if other.step != step]
    stale = [other for other in others if other.step > step]
    for old in stale + [other for other in others if other.step < step][: -keep + 1 or None]:
        shutil.rmtree(old.folder, ignore_errors=True)
    return Checkpoint(folder, step)


def sweep(run: Path) -> None:
    """Clears away checkpoints that a killed process left half written; to be called when a run begins or goes on."""
    sweep_folders(run / "checkpoints", "step-")


def found(run: Path) -> list[Checkpoint]:
    """The checkpoints of a run, oldest first."""
    folders = (run / "checkpoints").glob("step-*") if (run / "checkpoints").is_dir() else ()
    steps = [(int(match[1]), folder) for folder in folders if (match := _NAME.fullmatch(folder.name))]
    return [Checkpoint(folder, step) for step, folder in sorted(steps)]


def newest(run: Path) -> Checkpoint | None:
    """The newest checkpoint of a run."""
    checkpoints = found(run)
    return checkpoints[-1] if checkpoints else None
