"""Trajectories on disk: which ones a folder holds, and how they become Parquet, JSON lines or a `datasets` folder.

A row is an episode. `ROW` says what its columns are; reading a row back gives an equal trajectory. What is written
appears whole or not at all.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollenv.errors import RollenvError
from rollenv.evaluation.atif import as_atif
from rollenv.evaluation.records import TRAJECTORIES, episode_lines
from rollenv.files import as_text, new_file, new_folder, write_atomically
from rollenv.trajectory import Trajectory

if TYPE_CHECKING:
    import pyarrow

Form = Literal["parquet", "jsonl", "datasets", "atif"]
BATCH = 256
"""Episodes that are in memory at a time."""

ROW = {
    "step": "training step that the episode was played for; null in an evaluation",
    "trained": "whether its group was trained; null in an evaluation",
    "advantages": "of each turn the advantages that its sampled tokens trained with, none where it did not train; null "
    "for an episode that did not",
    "env, task, seed": "what was played",
    "group, sample, attempt": "its place among the episodes of the run",
    "stop": "why it ended (`rollenv.trajectory.StopReason`)",
    "success": "whether the task was solved; null where the environment does not say",
    "reward": "the sum of its rewards",
    "failure": "where, kind, message, turn, collateral, injected; null for an episode that did not fail",
    "info": "what else the environment said in the end, as JSON text",
    "shared": "for each turn that it has from another episode of its group, that episode's sample",
    "branch_cost": "what branches cost that value its turns, as JSON text",
    "turns": "observation, completion, action (texts), reward, valid_action, fork, prompt_ids, completion_ids, "
    "logprobs, policy_versions (per sampled token), branch_returns, and seconds as JSON text",
}
"""Columns of a row -> meaning. In JSON lines, what is JSON text here is an object, and half of a surrogate pair, which
models do write and UTF-8 does not have, is kept; in a row it is a question mark."""

_STEP_FILE = re.compile(r"step-(\d+)\.jsonl")


@dataclass(slots=True)
class Exported:
    """An episode with what the folder says of it beside: see `ROW`."""

    trajectory: Trajectory
    step: int | None = None
    trained: bool | None = None
    advantages: list[list[float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; `from_dict` reads it back."""
        beside = {"step": self.step, "trained": self.trained, "advantages": self.advantages}
        return beside | self.trajectory.to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Exported:
        """The inverse of `to_dict`; of an evaluation, too, which says of its episodes what they are and no more."""
        beside = ("step", "trained", "advantages")
        of_episode = {key: value for key, value in data.items() if key not in (*beside, "tasks_sha256")}
        return cls(Trajectory.from_dict(of_episode), *(data.get(key) for key in beside))


# -- what a folder holds -------------------------------------------------------------------------------------------


def step_file(run: Path, step: int) -> Path:
    """Where a run keeps the episodes of a step."""
    return run / "trajectories" / f"step-{step:06d}.jsonl"


def kept_steps(run: Path) -> list[tuple[int, Path]]:
    """The steps whose episodes a run has kept, in order, and their files."""
    files = (run / "trajectories").glob("step-*.jsonl")
    return sorted((int(match[1]), file) for file in files if (match := _STEP_FILE.fullmatch(file.name)))


def keep(run: Path, step: int, episodes: Iterable[Exported]) -> None:
    """Keeps the episodes of a training step.

    Raises:
        RollenvError: they cannot be written.
    """
    write_atomically(step_file(run, step), map(_line, episodes))


def files_of(folder: Path) -> list[Path]:
    """The files with the episodes of a training run, or of an evaluation (`rollenv eval --out`).

    Raises:
        RollenvError: there are none.
    """
    files = [file for _, file in kept_steps(folder)]
    if not files and (folder / TRAJECTORIES).is_file():
        files = [folder / TRAJECTORIES]
    if not files:
        raise RollenvError(
            f"'{folder}' holds no trajectories: give the folder of 'rollenv eval --out', or of a training run that "
            "keeps them (trajectories=1 keeps those of every step)"
        )
    return files


def read(file: Path) -> Iterator[Exported]:
    """The episodes of a file of JSON lines.

    Raises:
        RollenvError: a line is no trajectory.
    """
    try:
        for number, data in enumerate(episode_lines(file), 1):
            try:
                exported = Exported.from_dict(data)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"line {number} is no episode ({error!r})") from error
            yield exported
    except ValueError as error:
        raise RollenvError(f"'{file}', {error}; export another run") from error


# -- rows ----------------------------------------------------------------------------------------------------------


def as_row(exported: Exported) -> dict[str, Any]:
    """An episode as Parquet has it."""
    row = exported.to_dict()
    row["info"], row["branch_cost"] = json.dumps(row["info"]), json.dumps(row["branch_cost"])
    row["turns"] = [_texts(turn | {"seconds": json.dumps(turn["seconds"])}) for turn in row["turns"]]
    row["failure"] = _texts(row["failure"]) if row["failure"] else None
    return _texts(row)


def _texts(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_text(value) if isinstance(value, str) else value for name, value in fields.items()}


def from_row(row: Mapping[str, Any]) -> Exported:
    """The inverse of `as_row`."""
    data = dict(row)
    data["info"], data["branch_cost"] = json.loads(data["info"]), json.loads(data["branch_cost"])
    data["turns"] = [turn | {"seconds": json.loads(turn["seconds"])} for turn in data["turns"]]
    return Exported.from_dict(data)


def schema() -> pyarrow.Schema:
    """The columns of `ROW` as Arrow types."""
    import pyarrow as pa

    ids, numbers = pa.list_(pa.int32()), pa.list_(pa.float64())
    turn = {
        "observation": pa.string(),
        "prompt_ids": ids,
        "completion_ids": ids,
        "logprobs": numbers,
        "policy_versions": ids,
        "fork": pa.bool_(),
        "completion": pa.string(),
        "action": pa.string(),
        "reward": pa.float64(),
        "valid_action": pa.bool_(),
        "seconds": pa.string(),
        "branch_returns": numbers,
    }
    failure = {
        "where": pa.string(),
        "kind": pa.string(),
        "message": pa.string(),
        "turn": pa.int32(),
        "collateral": pa.bool_(),
        "injected": pa.string(),
    }
    columns = {
        "step": pa.int64(),
        "trained": pa.bool_(),
        "advantages": pa.list_(numbers),
        "env": pa.string(),
        "task": pa.string(),
        "seed": pa.int64(),
        "group": pa.int64(),
        "sample": pa.int32(),
        "attempt": pa.int32(),
        "turns": pa.list_(pa.struct(list(turn.items()))),
        "stop": pa.string(),
        "failure": pa.struct(list(failure.items())),
        "success": pa.bool_(),
        "info": pa.string(),
        "shared": ids,
        "branch_cost": pa.string(),
        "reward": pa.float64(),
    }
    return pa.schema(list(columns.items()))


# -- writing -------------------------------------------------------------------------------------------------------


def export(folder: Path, form: Form, out: Path, progress: Callable[[int], None] = lambda done: None) -> int:
    """Writes the episodes of `folder` to `out`: a file, a folder for `datasets.load_from_disk`, or (`atif`) a folder
    with a file for each.

    Args:
        progress: gets the number of episodes written so far.

    Returns:
        How many episodes there are.

    Raises:
        RollenvError: there are none, `out` is there already, a package is missing, or the disk refuses.
    """
    files = files_of(folder)
    if out.exists():
        raise RollenvError(f"'{out}' is there already: give another --out, or remove it")
    counted = _Counted(itertools.chain.from_iterable(map(read, files)), progress)
    try:
        if form == "jsonl":
            write_atomically(out, (_line(each) for each in counted))
        elif form == "parquet":
            with new_file(out) as temporary:
                _write_parquet(counted, temporary)
        elif form == "atif":
            _write_atif(counted, out, *_who(folder))
        else:
            _write_dataset(counted, out)
    except ModuleNotFoundError as error:
        missing = f"--to {form} needs {error.name}, which is not installed"
        raise RollenvError(f"{missing}: pip install 'rollenv[export]', or say --to jsonl") from error
    except OSError as error:
        raise RollenvError(f"cannot write '{out}': {error.strerror or error}; nothing there was changed") from error
    return counted.n


class _Counted:
    """Counts what is taken of it."""

    def __init__(self, episodes: Iterable[Exported], progress: Callable[[int], None]) -> None:
        self._episodes, self._progress, self.n = episodes, progress, 0

    def __iter__(self) -> Iterator[Exported]:
        for exported in self._episodes:
            self.n += 1
            yield exported
            self._progress(self.n)


def _line(exported: Exported) -> str:
    return json.dumps(exported.to_dict()) + "\n"


def _write_parquet(episodes: Iterable[Exported], file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = map(as_row, episodes)
    with pq.ParquetWriter(str(file), schema(), compression="zstd") as writer:
        while batch := list(itertools.islice(rows, BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema()))


def _write_dataset(episodes: Iterable[Exported], out: Path) -> None:
    from datasets import Dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.rows.") as work, new_folder(out) as temporary:
        rows = Path(work) / "rows.parquet"
        _write_parquet(episodes, rows)
        dataset = Dataset.from_parquet(str(rows), cache_dir=str(Path(work) / "cache"))
        dataset.save_to_disk(str(temporary))


def _write_atif(episodes: Iterable[Exported], out: Path, agent: str, model: str | None) -> None:
    with new_folder(out) as temporary:
        for number, exported in enumerate(episodes):
            text = json.dumps(as_atif(exported.trajectory, agent, model))
            (temporary / f"{number:06d}.json").write_text(text, encoding="utf-8")


def _who(folder: Path) -> tuple[str, str | None]:
    """The agent of an evaluation, and its model; a training run's policy has the run's name."""
    try:
        summary = json.loads((folder / "summary.json").read_text())
        return str(summary.get("agent") or "rollenv"), summary.get("model")
    except (OSError, ValueError, AttributeError):
        return "rollenv", folder.name
