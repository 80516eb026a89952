"""Checkpoints: the whole state of a run in a folder that is either whole or not there.

`checkpoints/step-000020/` holds `model/` (a `transformers` folder; with LoRA also `adapter/`, a `peft` folder, and
`model/` is what that makes of the model), `trainer/` (what optimizers keep, in shards, and the critic), `trainer.pt`
(step count and generators), `rollouts.json` (the sample buffer: what was queued, running and finished) and `state.json`
(config, step, ledger).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rollenv.errors import RollenvError
from rollenv.files import new_folder, sweep_folders, sync_folder
from rollenv.trainers.state import check_tensors
from rollenv.trainers.upload import uploaded

log = logging.getLogger(__name__)

FORMAT = 3
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
        """Content of `trainer.pt`. Raises RollenvError when that or `trainer/` is missing or torn."""
        try:
            tensors: dict[str, Any] = torch.load(self.folder / "trainer.pt", map_location="cpu", weights_only=True)
        except Exception as error:
            raise RollenvError(f"checkpoint '{self.folder}' has no whole trainer.pt: {error!s:.200}") from error
        check_tensors(self.folder / "trainer")
        return tensors


def files_of(state: Mapping[str, Any], rollouts: Mapping[str, Any]) -> dict[str, str]:
    """The text files of a checkpoint: what `state` and `rollouts` are now."""
    return {
        "rollouts.json": json.dumps(rollouts),
        "state.json": json.dumps({"format": FORMAT} | dict(state), indent=1),
    }


async def write(
    run: Path, step: int, save: Callable[[Path], Awaitable[None]], files: Mapping[str, str], keep: int
) -> Checkpoint:
    """Writes the checkpoint of `step` and removes all but the newest `keep`.

    Args:
        save: writes the learner's part into a folder (see `Learner.write`).
        files: its text files.

    Raises:
        RollenvError: it cannot be written (a full disk, say); the older ones are untouched.
    """
    folder = run / "checkpoints" / f"step-{step:06d}"
    try:
        with new_folder(folder) as temporary:
            await save(temporary)
            for name, text in files.items():
                (temporary / name).write_text(text)
            await asyncio.to_thread(sync_folder, temporary)
    except RollenvError:
        raise
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
        await asyncio.to_thread(shutil.rmtree, old.folder, ignore_errors=True)
    return Checkpoint(folder, step)


class Writer:
    """Writes checkpoints beside the run, one after another.

    Invariant: what is written is the state at the moment of `begin`, however long it takes.

    Args:
        run: folder of the run.
        keep: how many are kept.
        upload: see `CheckpointConfig.upload`.
        on_written: called with each that is there.
    """

    def __init__(self, run: Path, keep: int, upload: str | None, on_written: Callable[[Checkpoint], None]) -> None:
        self._run, self._keep, self._upload, self._on_written = run, keep, upload, on_written
        self._task: asyncio.Task[Checkpoint] | None = None

    async def begin(self, step: int, learner: Snapshots, files: Mapping[str, str]) -> None:
        """Begins to write, when the one before is written.

        Raises:
            RollenvError: the one before could not be.
        """
        await self.settled()
        await learner.snapshot()
        self._task = asyncio.ensure_future(self._write(step, learner, files))

    async def _write(self, step: int, learner: Snapshots, files: Mapping[str, str]) -> Checkpoint:
        written = await write(self._run, step, learner.write, files, self._keep)
        self._on_written(written)
        if self._upload is not None and (failure := await uploaded(self._upload, written.folder)):
            log.warning("%s", failure)
        return written

    def check(self) -> None:
        """Raises RollenvError when what was being written could not be."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def settled(self) -> Checkpoint | None:
        """Waits for the one that is being written, if there is one, and returns it.

        Raises:
            RollenvError: it could not be.
        """
        task, self._task = self._task, None
        return None if task is None else await task


class Snapshots(Protocol):
    """What keeps a snapshot of itself, and writes it (see `Learner`)."""

    async def snapshot(self) -> None: ...

    async def write(self, folder: Path) -> None: ...


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
