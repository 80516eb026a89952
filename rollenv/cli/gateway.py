"""`rollenv gateway`: a model behind OpenAI's API, every token recorded, for agents that are programs of others."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollenv.cli.models import model_folder
from rollenv.cli.options import ConfigOption, Settings, as_words
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.config import TrainConfig

READ_HERE = ("rollout.", "vllm.", "device", "threads", "seed")


def gateway(
    model: Annotated[str, typer.Option("--model", metavar="PATH|HUB", help="The model to offer.")],
    settings: Settings = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8002,
    name: Annotated[str | None, typer.Option("--name", help="The model's name for clients (default: --model).")] = None,
    engine: Annotated[str | None, typer.Option("--engine", metavar="torch|vllm", help="What generates.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write sessions that end to DIR/trajectories.jsonl.")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="Clients' API key (default: $ROLLENV_TOKEN).", show_default=False)
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Offer a model by OpenAI's API, and record what is read and sampled: tokens, log-probabilities, versions."""
    from rollenv.config import TrainConfig, parse_override
    from rollenv.config.load import apply_words, read_toml, resolve_key, validated
    from rollenv.server.serve import listen

    if out is not None and out.exists() and not out.is_dir():
        raise RollenvError(f"--out {out} is a file: give a folder")
    words = [*as_words({"rollout.engine": engine}), *(settings or [])]
    for word in words:
        key = resolve_key(TrainConfig, parse_override(word)[0], [])
        if not key.startswith(READ_HERE):
            raise RollenvError(f"'{key}' means nothing to a gateway: leave it out ('rollenv gateway --help')")
    data = {**(read_toml(config) if config is not None else {}), "env": "gateway"}
    apply_words(TrainConfig, data, map(parse_override, words), [])
    run = validated(TrainConfig, data, str(config or "configuration"))
    with listen(host, port) as listening:  # before anything is loaded
        print(f"{name or model} at http://{host}:{listening.getsockname()[1]}/v1", flush=True)
        secret = token or os.environ.get("ROLLENV_TOKEN")
        asyncio.run(_serve(run, model_folder(model), name or model, out, secret, listening))
    print("stopped", flush=True)


async def _serve(
    config: TrainConfig, path: str, name: str, out: Path | None, token: str | None, listening: socket.socket
) -> None:
    import uvicorn

    from rollenv.gateway.app import make_gateway
    from rollenv.gateway.sessions import Sessions
    from rollenv.inference.chat import ChatFormat
    from rollenv.rollout.setup import model_engine
    from rollenv.trainers.device import choose_device
    from rollenv.trainers.policy import load_model

    device = choose_device(config.device, config.threads)
    model, tokenizer = load_model(path)
    engine = model_engine(model, tokenizer, device, config.rollout, vllm=config.vllm)
    try:
        sessions = Sessions(engine, ChatFormat(tokenizer), config.seed, out)
        app = make_gateway(sessions, name, token)
        await uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).serve([listening])
    finally:
        await engine.close()
