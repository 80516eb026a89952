"""`rollenv serve`: environments for others, over HTTP and WebSocket."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollenv.cli.options import ImportOption, import_user_code
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.server.host import EnvHost, Limits


def serve(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Arguments of the environments, such as data=DIR, or webshop.data=DIR for one of several.",
            show_default=False,
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME", help="What to serve; several times for several.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8000,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="The most sessions of each environment.")] = 1024,
    lease: Annotated[float, typer.Option("--lease", min=1.0, help="Seconds that a lost session is kept.")] = 60.0,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Processes that each environment lives in; 0: the server's own.")
    ] = 0,
    step_seconds: Annotated[float, typer.Option("--step-seconds", min=0.1, help="Deadline of a step.")] = 60.0,
    reset_seconds: Annotated[float, typer.Option("--reset-seconds", min=0.1, help="Deadline of a reset.")] = 120.0,
    message_bytes: Annotated[int, typer.Option("--message-bytes", min=1024, help="The longest message.")] = 1 << 20,
    ping_seconds: Annotated[
        float,
        typer.Option("--ping-seconds", min=0.1, help="Between two pings; who answers none for as long is dropped."),
    ] = 20.0,
    drain: Annotated[float, typer.Option("--drain", min=0.0, help="Seconds for episodes to end at SIGTERM.")] = 30.0,
    token: Annotated[
        str | None, typer.Option("--token", help="Clients must send it (default: $ROLLENV_TOKEN).", show_default=False)
    ] = None,
    imports: ImportOption = None,
) -> None:
    """Serve environments: OpenEnv's protocol over WebSocket and HTTP, with leases, deadlines and metrics."""
    from rollenv.server.host import Limits
    from rollenv.server.serve import listen, make_server

    import_user_code(imports)
    if not env:
        raise RollenvError("say what to serve: --env NAME ('rollenv envs' lists them)")
    limits = Limits(sessions, lease, reset_seconds, step_seconds, message_bytes, ping_seconds)
    with listen(host, port) as listening:  # before anything is loaded
        hosts = _hosts(env, settings or [], limits, workers)
        server = make_server(hosts, token or os.environ.get("ROLLENV_TOKEN"), drain)
        at = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        for name, hosted in hosts.items():
            print(f"{hosted.spec.id} at {at}/{name}", flush=True)
        # What is there now stays, and need not be looked at whenever sessions come and go. What they leave behind is
        # mostly freed without the collector, which took a tenth of the time when it came as often as by default.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        server.run([listening])
    print("stopped", flush=True)


def _hosts(names: Sequence[str], settings: Sequence[str], limits: Limits, workers: int) -> dict[str, EnvHost]:
    from rollenv.config import parse_override
    from rollenv.registration import spec
    from rollenv.server.host import EnvHost

    specs = {spec(name).name: spec(name) for name in names}
    arguments: dict[str, dict[str, object]] = {name: {} for name in specs}
    for key, value in map(parse_override, settings):
        first, dot, rest = key.partition(".")
        if dot and first not in specs:
            raise RollenvError(f"{key}: '{first}' is not served here, only {', '.join(specs)}")
        for name in [first] if dot else specs:
            arguments[name][rest if dot else key] = value
    return {name: EnvHost(found, arguments[name], limits, workers=workers) for name, found in specs.items()}
