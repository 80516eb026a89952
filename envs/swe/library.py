"""Sets of tasks: from whatever a user names, ids in splits and a task for each id."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path

from rollenv.envs.swe.task import SweTask
from rollenv.errors import RollenvError, did_you_mean
from rollenv.tasks import TaskSet

EMBEDDED = "default"

Load = Callable[[str], SweTask]


class Library:
    """Tasks by id.

    Args:
        source: where they come from, for messages.
        splits: split name -> ids in their fixed order.
        load: id -> task; called once for each task that is asked for.
    """

    def __init__(self, source: str, splits: Mapping[str, Sequence[str]], load: Load) -> None:
        self.source = source
        self.task: Load = functools.lru_cache(maxsize=4096)(load)
        self.tasks = TaskSet("swe", splits, lambda id: self.task(id).content(), {"format": "swe-1"})


def open_library(tasks: str | PathLike[str] | None) -> Library:
    """The tasks that a name or a path stands for.

    Args:
        tasks: None or `default`: those that come with rollenv. Else a folder of task folders, one task folder, or a
            `.jsonl`, `.jsonl.gz`, `.json` or `.parquet` file of instances (or a folder of such files, one per split).

    Raises:
        RollenvError: there is nothing of that name, or it holds no tasks.
    """
    if tasks is None or fspath(tasks) == EMBEDDED:
        from rollenv.envs.swe.embedded import embedded_library

        return embedded_library()
    path = Path(fspath(tasks))
    if not path.exists():
        raise RollenvError(
            f"swe: there are no tasks '{path}'{did_you_mean(str(path), [EMBEDDED])}; give a folder of tasks, a .jsonl "
            f"or .parquet file of instances, or '{EMBEDDED}'"
        )
    if path.is_dir():
        from rollenv.envs.swe.folders import folder_library, holds_folders

        if holds_folders(path):
            return folder_library(path)
    from rollenv.envs.swe.instances import instance_library

    return instance_library(path)
