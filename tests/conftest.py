"""What every test can ask for."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before torch is loaded: its idle OpenMP threads would spin, which slows everything else on a small machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

ROOT = Path(__file__).resolve().parents[1]
# Helpers that live beside the tests: `from conformance.toy import ...`.
sys.path.insert(0, str(ROOT / "tests"))

import gymnasium  # noqa: E402
import hypothesis  # noqa: E402
import pytest  # noqa: E402

from rollenv import registration  # noqa: E402

# No test asserts time, and machines are shared: an example may take as long as it takes.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


SLOW_FILES = (
    "chaos/test_long_chaos.py",
    "cli/test_nodes.py",
    "chaos/test_killed.py",
    "laws/test_everything_trains_once.py",
    "cli/test_new.py",
    "trainers/test_ranks.py",
)


TOGETHER = {
    "sandboxes": ("sandboxes", "envs/swe"),
    "ray": ("cluster/test_engine.py", "cluster/test_runtime.py", "trainers/test_cluster_runs.py"),
}
"""What one process runs. Sandboxes: tests that count the processes, mounts and containers of the machine, never two of
them at the same time. Ray: tests that share a cluster."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several tests run at the same time, a file stays in one process, and those that take minutes come first, so
    that none is left alone at the end; before them those that mostly wait, beside which others compute."""
    tests = ROOT / "tests"
    first = {path: place for place, path in enumerate((*TOGETHER["sandboxes"], *TOGETHER["ray"], *SLOW_FILES))}

    def place(path: Path) -> int:
        inside = path.relative_to(tests).as_posix()
        return min((place for start, place in first.items() if inside.startswith(start)), default=len(first))

    def group(path: Path) -> str:
        inside = path.relative_to(tests).as_posix()
        return next((name for name, starts in TOGETHER.items() if inside.startswith(starts)), inside)

    items.sort(key=lambda item: place(item.path))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item.path)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fails where the groups are not kept (by a version of pytest that pytest-xdist does not know)."""
    spread = hasattr(session.config, "workerinput") and session.config.getvalue("loadgroup")
    if spread and any("@" not in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist does not keep groups of tests together: see its version and pytest's")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests index and compile is made afresh, once, and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLENV_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of real data by its relative path; the test is skipped where that data is missing.

    It lies in `../shared/data` beside the repository, or where $ROLLENV_TEST_DATA says.
    """
    folder = Path(os.environ.get("ROLLENV_TEST_DATA") or ROOT.parent / "shared" / "data")

    def find(relative: str) -> Path:
        path = folder / relative
        if not path.exists():
            pytest.skip(f"needs real data: {path} does not exist (set ROLLENV_TEST_DATA to the folder that has it)")
        return path

    return find


@pytest.fixture
def temp_registry() -> Iterator[dict[str, registration.EnvSpec]]:
    """The registry of environments; what a test registers, here and in gymnasium, is forgotten after it."""
    registration.load_plugins()
    ours, mirrored = dict(registration.registry), dict(gymnasium.registry)
    yield registration.registry
    for live, kept in ((registration.registry, ours), (gymnasium.registry, mirrored)):
        live.clear()
        live.update(kept)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A cluster of this machine with four devices that it pretends to have; it lives for the whole session."""
    pytest.importorskip("ray")
    from rollenv.cluster.ray_runtime import RayRuntime
    from rollenv.config.cluster import RayConfig

    runtime = RayRuntime(RayConfig(fake_gpus=4))
    yield runtime
    asyncio.run(runtime.close())
