"""A server in this process, for tests: on a thread of its own, at a port of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn

from rollenv.registration import spec
from rollenv.server.host import EnvHost, Limits
from rollenv.server.serve import listen, make_server


@contextlib.contextmanager
def served(
    *names: str, token: str | None = None, arguments: Mapping[str, Any] | None = None, workers: int = 0, **limits: Any
) -> Iterator[tuple[str, dict[str, EnvHost]]]:
    """Serves environments; gives the address and the hosts."""
    hosts = {spec(name).name: EnvHost(spec(name), arguments or {}, Limits(**limits), workers=workers) for name in names}
    server = make_server(hosts, token, drain_seconds=0.0)
    with running(server) as address:
        yield address, hosts


@contextlib.contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """Runs a server on a thread; gives its address."""
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


def until(true: Any, seconds: float = 20.0) -> None:
    """Waits until `true()` is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
