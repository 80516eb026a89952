"""Environments over HTTP and WebSocket: the FastAPI application.

Every environment answers under its name (`/webshop/ws`, `/webshop/reset`, ...), the first one also without it. A
WebSocket is a session; one that names itself (`/ws?session=ID`) can be met again after its connection broke. By HTTP a
session is begun by a reset without one, and named in every request after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.resources
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from pydantic import BaseModel, ConfigDict, Field

import rollenv
from rollenv.errors import RollenvError
from rollenv.server import wire
from rollenv.server.direct import STATE
from rollenv.server.facades import agentgym_routes, nemo_gym_routes
from rollenv.server.gate import Gate
from rollenv.server.host import EnvHost
from rollenv.server.mcp import mcp_routes
from rollenv.server.sessions import ServerFull, Session, SessionError

REAP_SECONDS = 1.0
TRY_AGAIN_LATER = 1013
"""WebSocket close code (IANA registry)."""
STATUS = {"SESSION_ERROR": 404, "STEP_ORDER": 409, "EPISODE_OVER": 409, "DEADLINE": 504, "VALIDATION_ERROR": 422}
"""HTTP status of an error by its code; 400 for all others."""
Text = Annotated[str, Field(max_length=255)]


class ResetBody(BaseModel):
    """`session_id`: an earlier session, to be reset; without it a new one begins."""

    model_config = ConfigDict(extra="ignore")
    session_id: Text | None = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    task: str | None = None
    options: dict[str, Any] | None = None
    step_id: Annotated[int | None, Field(ge=1)] = None


class StepBody(BaseModel):
    """`step_id`: the number of the request, counted from 1: sent again it is answered again, not played again."""

    model_config = ConfigDict(extra="ignore")
    session_id: Text
    action: str | dict[str, Any]
    step_id: Annotated[int | None, Field(ge=1)] = None


class CloseBody(BaseModel):
    """Which session to end."""

    session_id: Text


def make_app(hosts: Mapping[str, EnvHost], token: str | None = None) -> FastAPI:
    """The application.

    Args:
        hosts: environments by their short names; the first is the one without a prefix.
        token: what clients must send as `Authorization: Bearer TOKEN` (a WebSocket may say `?token=TOKEN`); None:
            nothing.
    """

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        reaper = asyncio.ensure_future(_reap(list(hosts.values())))
        try:
            yield
        finally:
            reaper.cancel()
            for host in hosts.values():
                host.close()

    app = FastAPI(title="rollenv environments", version=rollenv.__version__, lifespan=life)
    app.add_exception_handler(RollenvError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    limit = min(host.limits.message_bytes for host in hosts.values())
    app.add_middleware(Gate, token=token, limit=limit, refuse=_error)
    app.include_router(_common(hosts))
    first = next(iter(hosts))
    makers = (_routes, mcp_routes, agentgym_routes, nemo_gym_routes)
    routes = {name: [make_routes(host) for make_routes in makers] for name, host in hosts.items()}
    for prefix, name in [("", first), *((f"/{name}", name) for name in hosts)]:
        for router in routes[name]:
            app.include_router(router, prefix=prefix, tags=[name])
        if prefix:
            app.include_router(_whole(hosts[name]), prefix=prefix, tags=[name])
    return app


async def _reap(hosts: Sequence[EnvHost]) -> None:
    while True:
        await asyncio.sleep(REAP_SECONDS)
        for host in hosts:
            host.reap()


# -- errors, tokens and sizes ------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ServerFull):
        return _error(429, "CAPACITY_REACHED", str(error), {"Retry-After": f"{error.retry_after:.0f}"})
    data = (error.reply if isinstance(error, _Failed) else wire.failure(error))["data"]
    return _error(STATUS.get(data["code"], 400), data["code"], data["message"])


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    what = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return _error(422, "VALIDATION_ERROR", what)


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(wire.refusal(code, message), status, headers)


# -- routes ------------------------------------------------------------------------------------------------------


def _common(hosts: Mapping[str, EnvHost]) -> APIRouter:
    """What is asked of the server, not of an environment."""
    router = APIRouter(tags=["server"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server serves."""
        draining = any(host.sessions.draining for host in hosts.values())
        return {"status": "degraded" if draining else "healthy"}

    @router.get("/envs")
    async def envs() -> list[dict[str, Any]]:
        """Which environments there are."""
        return [{"name": name, "id": h.spec.id, "description": h.spec.description} for name, h in hosts.items()]

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        registry = CollectorRegistry()
        registry.register(_Figures(hosts))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _whole(host: EnvHost) -> APIRouter:
    """What makes of an environment's own address a server of its own, for who expects one."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Whether the environment is served."""
        return {"status": "degraded" if host.sessions.draining else "healthy"}

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> JSONResponse:
        """The paths below the environment's address."""
        said, prefix = request.app.openapi(), f"/{host.spec.name}"
        paths = {
            path.removeprefix(prefix): what for path, what in said["paths"].items() if path.startswith(f"{prefix}/")
        }
        return JSONResponse({**said, "paths": paths})

    return router


class _Figures:
    """What Prometheus is told."""

    def __init__(self, hosts: Mapping[str, EnvHost]) -> None:
        self._hosts = hosts

    def collect(self) -> list[Any]:
        gauges = {
            "sessions": ("Sessions now", lambda h: len(h.sessions)),
            "capacity": ("The most sessions", lambda h: h.sessions.capacity),
        }
        counters = {
            "sessions_opened": ("Sessions begun", lambda h: h.sessions.opened),
            "sessions_refused": ("Sessions refused for want of a place", lambda h: h.sessions.refused),
            "requests": ("Requests of sessions", lambda h: h.requests),
            "request_failures": ("Requests answered with an error", lambda h: h.failures),
            "worker_deaths": ("Worker processes that ended", lambda h: 0 if h.workers is None else h.workers.deaths),
        }
        found: list[Any] = []
        kinds: list[tuple[Any, Any]] = [(GaugeMetricFamily, gauges), (CounterMetricFamily, counters)]
        for kind, table in kinds:
            for name, (text, value) in table.items():
                family = kind(f"rollenv_{name}", text, labels=["env"])
                for env, host in self._hosts.items():
                    family.add_metric([env], value(host))
                found.append(family)
        return found


def _routes(host: EnvHost) -> APIRouter:
    """The routes of one environment."""
    router = APIRouter()

    async def answered(session: Session, kind: str, data: dict[str, Any], step_id: int | None = None) -> Reply:
        reply = await host.ask(session, wire.Message(kind, data, step_id))
        if reply["type"] == "error":
            raise _Failed(reply)
        return {"session_id": session.id, **reply["data"]}

    @router.post("/reset")
    async def reset(body: ResetBody | None = None) -> Reply:
        """Begins an episode."""
        body = body or ResetBody()
        session = await host.open() if body.session_id is None else host.join(body.session_id)
        data = body.model_dump(include={"seed", "task", "options"}, exclude_none=True)
        try:
            return await answered(session, "reset", data, body.step_id)
        except _Failed:
            if body.session_id is None:
                host.end(session)
            raise

    @router.post("/step")
    async def step(body: StepBody) -> Reply:
        """Plays an action."""
        return await answered(host.join(body.session_id), "step", {"action": body.action}, body.step_id)

    @router.get("/state")
    async def state(session_id: Annotated[str, Query(max_length=255)]) -> Reply:
        """Where a session stands."""
        return await answered(host.join(session_id), "state", {})

    @router.post("/close")
    async def close(body: CloseBody) -> dict[str, str]:
        """Ends a session."""
        host.end(host.join(body.session_id))
        return {"session_id": body.session_id}

    @router.get("/metadata")
    async def metadata() -> Reply:
        """What the environment is."""
        return _metadata(host)

    @router.get("/schema")
    async def schema() -> Reply:
        """JSON schemas of actions, observations and states."""
        return SCHEMA

    @router.get("/tasks")
    async def tasks() -> Reply:
        """The splits: every task id, in order."""
        found = host.tasks()
        return {
            "name": found.name,
            "facts": found.facts,
            "splits": {name: list(of) for name, of in found.splits.items()},
        }

    @router.get("/tasks/{task:path}")
    async def task(task: Annotated[str, Path(max_length=1024)]) -> Reply:
        """What defines a task."""
        return {"id": task, "data": host.tasks().get(task).data}

    @router.get("/play", response_class=HTMLResponse)
    async def play() -> HTMLResponse:
        """A page to play by hand."""
        return HTMLResponse(_play_page(), headers={"Content-Security-Policy": PAGE_POLICY})

    @router.websocket("/ws")
    async def ws(websocket: WebSocket, session: str | None = None, resume: bool = False) -> None:
        await _serve_socket(host, websocket, session, resume)

    return router


Reply = dict[str, Any]
PAGE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
"""The page loads nothing, and talks to nobody else."""


@functools.cache
def _play_page() -> str:
    return (importlib.resources.files("rollenv.server") / "play.html").read_text(encoding="utf-8")


class _Failed(RollenvError):
    """A request that was answered with an error."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply["data"]["message"])
        self.reply = reply


def _metadata(host: EnvHost) -> Reply:
    bounds = host.example.reward_range
    return {
        "name": host.spec.name,
        "id": host.spec.id,
        "description": host.spec.description or host.spec.id,
        "version": str(host.spec.version),
        "reward_range": [bound if math.isfinite(bound) else None for bound in bounds],  # JSON knows no infinity
        "free_text": host.example.free_text,
        "max_turns": host.spec.max_turns,
        "eval_split": host.spec.eval_split,
    }


_OBJECT = {"type": "object", "additionalProperties": True}
SCHEMA: Reply = {
    "action": {
        "type": "object",
        "properties": {"action": {"type": "string"}, "step_id": {"type": "integer", "minimum": 1}},
        "required": ["action"],
    },
    "observation": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "info": _OBJECT,
            "terminated": {"type": "boolean"},
            "truncated": {"type": "boolean"},
        },
        "required": ["text", "info", "terminated", "truncated"],
    },
    "state": {
        "type": "object",
        "properties": {
            "session_id": {"type": "string"},
            "episode_id": {"type": ["string", "null"]},
            "env": {"type": "string"},
            "task": {"type": ["string", "null"]},
            "step_count": {"type": "integer"},
            "last_step_id": {"type": "integer"},
            "done": {"type": "boolean"},
        },
    },
}


# -- WebSocket ---------------------------------------------------------------------------------------------------


async def _serve_socket(host: EnvHost, websocket: WebSocket, name: str | None, resume: bool) -> None:
    """One connection. A session without a name ends with it, one with a name when its lease has run out."""
    await websocket.accept()
    try:
        session = await _session_for(host, name, resume)
    except RollenvError as error:
        code = "CAPACITY_REACHED" if isinstance(error, ServerFull) else "SESSION_ERROR"
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await websocket.send_text(wire.dump(wire.refusal(code, str(error))).decode())
            await websocket.close(TRY_AGAIN_LATER if isinstance(error, ServerFull) else 1008)
        return
    host.connected(session)
    connection = websocket.scope.get("state", {}).get(STATE)  # only servers of ours have it
    if connection is not None:
        connection.answer = functools.partial(_answer_now, host, session)
    try:
        ended = await _converse(host, session, websocket.receive_text, websocket.send_text)
    except WebSocketDisconnect:
        ended = False
    finally:
        host.disconnected(session)
    if ended or name is None:
        host.end(session)
    if ended:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await websocket.close()


async def _session_for(host: EnvHost, name: str | None, resume: bool) -> Session:
    if name is not None and (len(name) > 255 or not name):
        raise SessionError("VALIDATION_ERROR", "a session's name has 1 to 255 characters")
    if name is not None and (resume or host.sessions.find(name) is not None):
        return host.join(name)
    return await host.open(name)


def _answer_now(host: EnvHost, session: Session, text: str) -> bytes | None:
    """What `_converse` would send; None where it has to wait, refuse or end."""
    try:
        message = wire.read_message(text)
    except SessionError:
        return None
    reply = None if message.type == "close" else host.ask_now(session, message)
    return None if reply is None else _json_of(reply)


def _json_of(reply: Reply) -> bytes:
    """A reply as it is sent; an error where the environment put something into it that JSON has no form for."""
    try:
        return wire.dump(reply)
    except (TypeError, ValueError) as error:
        return wire.dump(wire.refusal("EXECUTION_ERROR", f"the environment's answer cannot be sent: {error}"))


async def _converse(
    host: EnvHost, session: Session, receive: Callable[[], Awaitable[str]], send: Callable[[str], Awaitable[None]]
) -> bool:
    """Answers until the client says `close` (True) or the session is over (True)."""
    while True:
        try:
            message = wire.read_message(await receive())
        except (SessionError, KeyError) as error:  # KeyError: a binary frame
            if isinstance(error, KeyError):
                error = SessionError("INVALID_JSON", "messages are text frames")
            await send(wire.dump(wire.failure(error)).decode())
            continue
        if message.type == "close":
            return True
        await send(_json_of(await host.ask(session, message)).decode())
        if host.sessions.find(session.id) is not session:
            return True
