"""The toy environment, served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import toys
from server.serving import served


@pytest.fixture
def colours(temp_registry: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    toys.register()
    with served("colours", capacity=8) as (address, hosts):
        yield f"{address}/colours", hosts
