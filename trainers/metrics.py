"""Where a run's figures go: `metrics.jsonl`, one object a step, and TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollenv.errors import RollenvError
from rollenv.files import write_atomically


class MetricsWriter:
    """Appends figures to a run folder.

    Args:
        run: the run's folder.
        step: keep what an earlier session wrote up to this step and drop what came later (resume); 0 starts anew.
    """

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = run / "metrics.jsonl"
        kept = [line for line in read_metrics(run) if line["step"] <= step] if step else []
        write_atomically(self._path, (json.dumps(line) + "\n" for line in kept))
        try:
            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        except OSError as error:
            raise RollenvError(f"cannot write '{run / 'tensorboard'}': {error.strerror}") from error

    def write(self, figures: dict[str, Any]) -> None:
        """Writes the figures of a step, `step` among them. Raises RollenvError when the disk refuses."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(figures) + "\n")
            for key, value in figures.items():
                if isinstance(value, (int, float)) and key != "step":
                    self._board.add_scalar(key, value, figures["step"])
        except OSError as error:
            raise RollenvError(f"cannot write '{self._path}': {error.strerror}; make room, then --resume") from error

    def close(self) -> None:
        self._board.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The figures written so far; a torn last line (the process was killed in mid-write) is left out."""
    path = run / "metrics.jsonl"
    figures = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            figures.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return figures
