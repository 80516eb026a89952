"""One default SWE task and what mends it, for tests of who may mend it."""

from __future__ import annotations

from rollenv.envs.swe.bugs import apply_edits
from rollenv.envs.swe.embedded import embedded_library, read_verified
from rollenv.envs.swe.synthesis import repo_files

TASK = embedded_library().tasks.ids("test")[0]


def solution() -> tuple[str, str, str]:
    """File, text and replacement: whole lines around the bug, which are there once."""
    bug = next(bug for bug in read_verified() if bug.id == TASK)
    sound, edit = repo_files(bug.repo), bug.edits[0]
    broken = apply_edits(sound, bug.edits)[edit.file]
    tail = len(sound[edit.file]) - edit.end
    start = broken.rfind("\n", 0, edit.start) + 1
    end = broken.find("\n", len(broken) - tail)
    old, new = broken[start:end], sound[edit.file][start : len(sound[edit.file]) - (len(broken) - end)]
    assert broken.count(old) == 1
    return edit.file, old, new
