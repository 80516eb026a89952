"""A policy for training runs on the toy environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm-started policy on disk: right about half of the time."""
    torch = pytest.importorskip("torch")
    import toys

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("warm") / "model"
    toys.warm_policy().save(folder)
    return folder


@pytest.fixture
def colours(temp_registry: Any) -> Iterator[None]:
    torch = pytest.importorskip("torch")
    import toys

    before = torch.get_num_threads()
    toys.register()
    yield
    torch.set_num_threads(before)
