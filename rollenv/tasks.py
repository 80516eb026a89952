"""Task sets: stable ids, named splits, and a content hash that every result carries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollenv.errors import RollenvError, did_you_mean


@dataclass(frozen=True, slots=True)
class Task:
    """One task: a stable id and the data that defines it (JSON-serialisable)."""

    id: str
    data: Any


@dataclass(frozen=True, slots=True)
class Panel:
    """A frozen list of tasks to measure on. Two results are comparable only when their `sha256` agree."""

    split: str
    ids: tuple[str, ...]
    sha256: str


class TaskSet:
    """Named splits of task ids over lazily read content.

    Args:
        name: name of the set, for messages (what decides a task's outcome belongs into `facts`).
        splits: split name -> ids in their fixed order. Splits may not overlap.
        content: id -> the task's data (JSON-serialisable); called only for tasks that are asked for.
        facts: whatever else decides a task's outcome (versions, component choices); part of the hash.
    """

    def __init__(
        self,
        name: str,
        splits: Mapping[str, Sequence[str]],
        content: Callable[[str], Any],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.splits: dict[str, tuple[str, ...]] = {split: tuple(ids) for split, ids in splits.items()}
        self.facts = dict(facts or {})
        self._content = content
        self._split_of = {task: split for split, ids in self.splits.items() for task in ids}
        if len(self._split_of) != sum(len(ids) for ids in self.splits.values()):
            raise ValueError(f"task set '{name}': an id occurs twice, within a split or in two of them")

    def __len__(self) -> int:
        return len(self._split_of)

    def __contains__(self, task_id: object) -> bool:
        return isinstance(task_id, str) and task_id in self._split_of

    def get(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            RollenvError: there is no such task.
        """
        self.split_of(task_id)
        return Task(task_id, self._content(task_id))

    def split_of(self, task_id: str) -> str:
        """The split that `task_id` is in. Raises RollenvError when there is no such task."""
        try:
            return self._split_of[task_id]
        except (KeyError, TypeError):
            raise RollenvError(
                f"task set '{self.name}' has no task {task_id!r}"
                f"{did_you_mean(str(task_id), list(self._split_of)[:20_000])}"
            ) from None

    def ids(self, split: str) -> tuple[str, ...]:
        """The ids of a split, in its fixed order. Raises RollenvError when there is no such split."""
        try:
            return self.splits[split]
        except KeyError:
            raise RollenvError(
                f"task set '{self.name}' has no split '{split}' (it has {', '.join(self.splits)})"
                f"{did_you_mean(split, self.splits)}"
            ) from None

    def panel(self, split: str, size: int | None = None) -> Panel:
        """The first `size` tasks of `split` (all when None) with the hash of their content.

        Raises:
            RollenvError: no such split, or fewer than `size` tasks in it.
        """
        ids = self.ids(split)
        if size is not None:
            if not 0 < size <= len(ids):
                raise RollenvError(
                    f"split '{split}' of '{self.name}' has {len(ids)} tasks: ask for 1 to {len(ids)}, not {size}"
                )
            ids = ids[:size]
        return Panel(split, ids, self.sha256(ids))

    def sha256(self, ids: Sequence[str]) -> str:
        """Hex sha256 over the set's facts and the id and content of `ids`, in order (canonical JSON lines)."""
        digest = hashlib.sha256(canonical_json({"facts": self.facts}))
        for task_id in ids:
            digest.update(b"\n" + canonical_json([task_id, self._content(task_id)]))
        return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
