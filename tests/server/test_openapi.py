"""The HTTP surface by its own description: whatever a client sends, the server answers, and never with a 5xx."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import toys
from server.serving import served

schemathesis = pytest.importorskip("schemathesis")

REFUSALS = (400, 409, 413, 422, 429)


def probed(operation: Any) -> None:
    """Sends what the description of an operation allows, and what it does not."""

    @hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(case=operation.as_strategy())
    def test(case: Any) -> None:
        answer = case.call(timeout=20)
        assert answer.status_code < 500, answer.text
        if answer.status_code in REFUSALS:
            error = answer.json()
            assert error["type"] == "error"
            assert error["data"]["code"]
            assert error["data"]["message"]

    test()


def test_no_request_breaks_the_server(temp_registry: Any) -> None:
    toys.register()
    with served("colours", capacity=4, lease_seconds=1.0, message_bytes=4096) as (address, hosts):
        surface = schemathesis.openapi.from_url(f"{address}/openapi.json")
        operations = [found.ok() for found in surface.get_all_operations()]
        assert len(operations) > 15
        for operation in operations:
            if not operation.path.startswith("/colours"):  # the same once more
                probed(operation)
        assert hosts["colours"].requests > 0
