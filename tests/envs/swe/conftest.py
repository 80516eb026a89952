"""Real SWE data for tests, unpacked once."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandboxing import bubblewrap, containing, docker, own_state, usable

__all__ = ["bubblewrap", "containing", "docker", "own_state", "usable"]

Data = Callable[[str], Path]


def _unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def gold_logs(shared_data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Official logs and report of SWE-bench Lite's gold patches."""
    archive = shared_data("swe/SWE-bench_Lite_golden.tar.xz")
    return _unpacked(archive, tmp_path_factory.mktemp("gold")) / "SWE-bench_Lite_golden"


@pytest.fixture(scope="session")
def smith_logs(shared_data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SWE-smith's own test fixtures."""
    archive = shared_data("swe/swesmith_test_logs.tar.xz")
    return _unpacked(archive, tmp_path_factory.mktemp("smith")) / "tests" / "test_logs"


@pytest.fixture(scope="session")
def lite(shared_data: Data) -> dict[str, dict[str, Any]]:
    """SWE-bench Lite's instances by id."""
    with gzip.open(shared_data("swe/SWE-bench_Lite_323.jsonl.gz"), "rt") as lines:
        return {task["instance_id"]: task for task in map(json.loads, lines)}
