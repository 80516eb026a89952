"""The tensors of a trainer, by name, and their way to the disk and back: a folder of shards, written and read by
`torch.distributed.checkpoint`.

Every rank writes what it has, or its part of what all have; who reads takes what it needs, whichever files that is in:
a run may go on with another number of ranks and another strategy.

Invariant: what is read is what was written, to the bit.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from rollenv.errors import RollenvError

Named = Iterable[tuple[str, torch.nn.Parameter]]
Shape = tuple[torch.Size, torch.dtype]


def optimizer_tensors(optimizer: torch.optim.Optimizer, named: Named, prefix: str) -> dict[str, Tensor]:
    """What an optimizer keeps for each parameter, as `PREFIX/NAME/KEY`."""
    return {
        f"{prefix}/{name}/{key}": value
        for name, parameter in named
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def make_room(optimizer: torch.optim.Optimizer, named: Named, prefix: str, shapes: Mapping[str, Shape]) -> None:
    """Gives an optimizer zeros for all of `shapes` that are its own; laid out as the parameter is where they have its
    shape."""
    found: dict[str, dict[str, Shape]] = {}
    for place, shape in shapes.items():
        if place.startswith(f"{prefix}/"):
            name, _, key = place.removeprefix(f"{prefix}/").rpartition("/")
            found.setdefault(name, {})[key] = shape
    for name, parameter in named:
        for key, (size, dtype) in found.get(name, {}).items():
            alike = size == parameter.shape
            zeros = torch.zeros_like(parameter, dtype=dtype) if alike else torch.zeros(size, dtype=dtype)
            optimizer.state[parameter][key] = zeros.detach()


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the host's memory, shards as shards."""
    stager = DefaultStager(StagingOptions(False, False, False, False))
    copies: dict[str, Tensor] = stager.stage(dict(tensors))  # type: ignore[assignment]
    stager.close()
    return copies


def save_tensors(tensors: Mapping[str, Tensor], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Writes tensors into a folder, each rank of `group` its own (None: there is only this process); all have to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is one process, and that it knows
        writer = dcp.FileSystemWriter(folder, sync_files=False)  # that is done once the whole folder is there
        with _plain_errors():
            dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)


def load_tensors(folder: Path, room: Callable[[Mapping[str, Shape]], Mapping[str, Tensor]]) -> None:
    """Reads a folder of tensors into those that `room` makes for the shapes that are there.

    Raises:
        RollenvError: the folder is missing, torn, or holds other tensors.
    """
    try:
        shapes = {
            name: (stored.size, stored.properties.dtype)
            for name, stored in _metadata(folder).state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }
        targets = dict(room(shapes))
        if strange := sorted(shapes.keys() ^ targets.keys()):
            raise RollenvError(f"'{strange[0]}' is only in one of the checkpoint and the trainer")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            with _plain_errors():
                dcp.load(targets, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    except Exception as error:  # pickle, zip files and the file system have classes of their own
        raise RollenvError(
            f"cannot read the trainer's state in '{folder}': {_first_line(error)}; use another checkpoint"
        ) from error


def check_tensors(folder: Path) -> None:
    """Raises RollenvError when a folder of tensors is missing or torn, as far as the sizes of its files tell."""
    try:
        ends: dict[str, int] = {}
        for place in (_metadata(folder).storage_data or {}).values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
        torn = [name for name, end in ends.items() if (folder / name).stat().st_size < end]
    except Exception as error:
        raise RollenvError(
            f"'{folder}' has no whole trainer state: {_first_line(error)}; use another checkpoint"
        ) from error
    if torn:
        raise RollenvError(f"'{folder}' has no whole {torn[0]}: it is too short; use another checkpoint")


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raises what went wrong on a rank, not that something did (which is no `Exception`)."""
    try:
        yield
    except dcp.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def _metadata(folder: Path) -> Any:
    return dcp.FileSystemReader(folder).read_metadata()


def _first_line(error: BaseException) -> str:
    return f"{next(iter(str(error).splitlines()), type(error).__name__):.200}"
