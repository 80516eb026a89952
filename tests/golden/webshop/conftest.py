"""The reference recordings of the original WebShop."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollenv.envs.webshop import load_catalogue
from rollenv.envs.webshop.catalogue import Catalogue


@pytest.fixture(scope="session")
def data(shared_data: Callable[[str], Path]) -> Path:
    """The folder with the 1,000-product catalogue."""
    return shared_data("webshop")


@pytest.fixture(scope="session")
def catalogue(data: Path) -> Catalogue:
    return load_catalogue(data)


@pytest.fixture(scope="session")
def reference(data: Path) -> Callable[[str], Any]:
    """Reads one recording by its name."""

    def read(name: str) -> Any:
        with gzip.open(data / "reference" / f"{name}.json.gz", "rt", encoding="utf-8") as file:
            return json.load(file)

    return read
