"""Bugs that tests notice: candidates from `bugs.py`, tried in a sandbox, described as somebody would report them.

`python -m rollenv.envs.swe.synthesis` makes the file of verified bugs that the embedded tasks are read from.
Invariant: the same repositories and seed give the same file, byte for byte; a bug is kept only when at least one test
fails with it and at least one passes.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import io
import json
import random
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollenv.envs.swe.bugs import KINDS, Bug, Edit, apply_edits, find_bugs
from rollenv.envs.swe.issues import write_issue
from rollenv.envs.swe.junit import Result, read_junit
from rollenv.envs.swe.log_parsers import PASSED
from rollenv.sandboxes import MiB, Sandbox, SandboxSpec, create
from rollenv.seeding import derive_seed

REPOS = Path(__file__).parent / "repos"
VERIFIED = Path(__file__).parent / "bugs.jsonl.gz"
RUNNER = Path(__file__).parent / "runner.py"
SEED = 0
SINGLE, MULTIPLE = 24, 8
"""Tasks of one bug, and of two or three, for each repository."""
_BATCH = 24
_SECONDS = 10.0
_MOST_FAILING = 0.6
"""A bug that breaks more of the tests than this is noticed by anybody."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A bug, or several, that tests notice."""

    id: str
    repo: str
    kinds: tuple[str, ...]
    edits: tuple[Edit, ...]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    issue: str

    @classmethod
    def from_json(cls, line: str) -> Verified:
        """One line of the file."""
        said = json.loads(line)
        edits = tuple(Edit(**edit) for edit in said.pop("edits"))
        return cls(edits=edits, **{key: tuple(v) if isinstance(v, list) else v for key, v in said.items()})


def repo_files(repo: str) -> dict[str, str]:
    """The text of every file of an embedded repository, by relative path."""
    folder = REPOS / repo
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".md"))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def repo_names() -> list[str]:
    """The embedded repositories."""
    return sorted(path.name for path in REPOS.iterdir() if path.is_dir() and path.name != "__pycache__")


def is_test(path: str) -> bool:
    """Whether a path is of the tests."""
    return path.startswith("tests/")


class Verifier:
    """Runs the tests of many trees in one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._runner = RUNNER.read_text(encoding="utf-8")

    async def results(self, trees: Sequence[Mapping[str, str]]) -> list[dict[str, Result]]:
        """What became of each tree's tests; nothing for a tree whose tests did not come to an end."""
        found: list[dict[str, Result]] = []
        for at in range(0, len(trees), _BATCH):
            found += await self._batch(trees[at : at + _BATCH])
        return found

    async def _batch(self, trees: Sequence[Mapping[str, str]]) -> list[dict[str, Result]]:
        await self._sandbox.restore()
        jobs = [
            {"root": f"/workspace/{n}", "tests": ["tests"], "xml": f"/tmp/xml/{n}", "files": files, "timeout": _SECONDS}
            for n, files in enumerate(map(dict, trees))
        ]
        program = f"import json\nJOBS = json.loads({json.dumps(json.dumps(jobs))})\n{self._runner}"
        await self._sandbox.exec(
            ["python3", "-I", "-B", "-"], stdin=program, timeout=30 + len(trees) * (_SECONDS + 2), cwd="/tmp"
        )
        with tarfile.open(fileobj=io.BytesIO(await self._sandbox.download("/tmp/xml"))) as tar:
            files = {member.name.rpartition("/")[2]: tar.extractfile(member) for member in tar if member.isfile()}
            texts = {name: file.read() for name, file in files.items() if file is not None}
        return [read_junit(texts.get(str(n), b"")) for n in range(len(trees))]


async def synthesise(repo: str, verifier: Verifier, seed: int = SEED) -> list[Verified]:
    """The verified bugs of one repository: single ones of all kinds by turns, then several at once."""
    files = repo_files(repo)
    sound = (await verifier.results([files]))[0]
    if not sound or any(result.status != PASSED for result in sound.values()):
        raise ValueError(f"the tests of '{repo}' do not pass: {[id for id in sound if sound[id].status != PASSED]}")
    rng = random.Random(derive_seed(seed, "bugs", repo))
    candidates = by_turns([bug for path in files if not is_test(path) and path.endswith(".py")
                           for bug in find_bugs(path, files[path])], rng)  # fmt: skip
    singles: list[tuple[Bug, ...]] = []
    kept: list[Verified] = []
    while candidates and len(kept) < SINGLE:
        tried, candidates = [(bug,) for bug in candidates[:_BATCH]], candidates[_BATCH:]
        for bugs, verified in await _verified(repo, files, sound, tried, verifier, rng):
            if len(kept) < SINGLE:
                singles.append(bugs)
                kept.append(verified)
    combined = [tuple(bug for bugs in group for bug in bugs) for group in _groups(singles, rng)]
    several = await _verified(repo, files, sound, combined, verifier, rng)
    kept += [verified for _, verified in several][:MULTIPLE]
    return [_named(verified, number) for number, verified in enumerate(kept, 1)]


def by_turns(bugs: Sequence[Bug], rng: random.Random) -> list[Bug]:
    """All bugs in a random order in which the kinds take turns."""
    of_kind: dict[str, list[Bug]] = {kind: [bug for bug in bugs if bug.kind == kind] for kind in KINDS}
    for line in of_kind.values():
        rng.shuffle(line)
    found = []
    while any(of_kind.values()):
        found += [line.pop() for line in of_kind.values() if line]
    return found


def _groups(singles: Sequence[tuple[Bug, ...]], rng: random.Random) -> list[list[tuple[Bug, ...]]]:
    """Twos and threes of bugs in different functions, each once."""
    found: list[list[tuple[Bug, ...]]] = []
    for number in range(3 * MULTIPLE):
        group: list[tuple[Bug, ...]] = []
        for bugs in rng.sample(singles, len(singles)):
            if all(bugs[0].function != other[0].function for other in group):
                group.append(bugs)
            if len(group) == 2 + number % 2:
                if set(group) not in map(set, found):
                    found.append(group)
                break
    return found


async def _verified(
    repo: str,
    files: dict[str, str],
    sound: Mapping[str, Result],
    tried: Sequence[tuple[Bug, ...]],
    verifier: Verifier,
    rng: random.Random,
) -> list[tuple[tuple[Bug, ...], Verified]]:
    trees = [apply_edits(files, [bug.edit for bug in bugs]) for bugs in tried]
    found = []
    for bugs, results in zip(tried, await verifier.results(trees), strict=True):
        # A file that can no longer be imported has one error in place of its tests.
        failing = [id for id in sound if id not in results or results[id].status != PASSED]
        passing = [id for id in sound if id not in failing]
        if not failing or len(failing) > _MOST_FAILING * len(sound) or not results:
            continue
        told = {id: results[id] for id in failing if id in results}
        if len(told) < len(failing):
            continue
        issue = write_issue(files, told, rng)
        kinds = tuple(bug.kind for bug in bugs)
        edits = tuple(bug.edit for bug in bugs)
        found.append((bugs, Verified("", repo, kinds, edits, tuple(failing), tuple(passing), issue)))
    return found


def _named(verified: Verified, number: int) -> Verified:
    kind = verified.kinds[0] if len(verified.kinds) == 1 else "several"
    return Verified(**{**_fields(verified), "id": f"{verified.repo}-{number:02d}-{kind}"})


def _fields(verified: Verified) -> dict[str, Any]:
    return {name: getattr(verified, name) for name in verified.__slots__}


def write(path: Path, bugs: Sequence[Verified]) -> None:
    """Writes the file, one bug a line; the same bugs give the same bytes."""
    text = "".join(json.dumps(asdict(bug), ensure_ascii=False) + "\n" for bug in bugs)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


async def make(backend: str | None, repos: Sequence[str], seed: int) -> list[Verified]:
    """The verified bugs of some repositories."""
    spec = SandboxSpec(memory=768 * MiB, disk=256 * MiB, pids=64)
    found = []
    async with await create(spec, backend=backend) as sandbox:
        verifier = Verifier(sandbox)
        for repo in repos:
            bugs = await synthesise(repo, verifier, seed)
            print(f"{repo}: {len(bugs)} bugs", flush=True)
            found += bugs
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default=None)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=VERIFIED)
    parser.add_argument("repos", nargs="*")
    args = parser.parse_args()
    bugs = asyncio.run(make(args.backend, args.repos or repo_names(), args.seed))
    write(args.out, bugs)
    print(f"{args.out}: {len(bugs)} bugs")


if __name__ == "__main__":
    main()
