"""The viewer over HTTP: one page, and the questions that it asks. Nothing is ever written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rollenv.viewer import index
from rollenv.viewer.library import Library, Unknown
from rollenv.viewer.page import content_security_policy, page
from rollenv.viewer.runs import MetricsTail, as_json

FOLLOW_SECONDS = 0.5
"""How often a run that trains is looked at for something new."""
SILENCE_SECONDS = 15.0
"""After so long without news a word is sent all the same, so that nobody on the way takes the connection for dead."""
PAGE = 200
"""The most episodes of an answer."""

Run = Annotated[str, Query(max_length=4096)]
Number = Annotated[int, Query(ge=0, lt=2**53)]


def make_app(library: Library, hosts: Sequence[str] = ("127.0.0.1", "localhost", "[::1]")) -> FastAPI:
    """The application.

    Args:
        hosts: names by which the server may be called; another one is a page elsewhere that has its own name lead here,
            and is refused. `*`: any.
    """

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(library.close)

    app = FastAPI(title="rollenv viewer", lifespan=life, docs_url=None, redoc_url=None)
    app.state.stopping = lambda: False
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.add_exception_handler(Unknown, _unknown)
    app.include_router(_routes(library))
    return app


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 404)


async def _answer(ask: Callable[..., Any], *words: Any) -> Response:
    """What is found, asked on a thread: files and tables take their time."""

    def text() -> str:
        return as_json(ask(*words))

    return Response(await asyncio.to_thread(text), media_type="application/json", headers={"Cache-Control": "no-store"})


def _routes(library: Library) -> APIRouter:
    router = APIRouter()

    @router.get("/", response_class=HTMLResponse)
    async def the_page() -> Response:
        """The page."""
        return HTMLResponse(page(), headers={"Content-Security-Policy": content_security_policy()})

    @router.get("/api/runs")
    async def runs() -> Response:
        """Which runs there are."""
        return await _answer(library.runs)

    @router.get("/api/run")
    async def run(run: Run) -> Response:
        """What a run says of itself."""
        return await _answer(library.details, run)

    @router.get("/api/episodes")
    async def episodes(
        run: Run,
        show: Annotated[str, Query(pattern=f"^({'|'.join(index.SHOW)})$")] = "all",
        sort: Annotated[str, Query(pattern=f"^({'|'.join(index.SORT)})$")] = "order",
        text: Annotated[str, Query(max_length=500)] = "",
        step: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
        offset: Number = 0,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
    ) -> Response:
        """Some of its episodes."""
        return await _answer(library.episodes, run, index.Query(show, sort, text, step), offset, limit)

    @router.get("/api/episode")
    async def episode(run: Run, id: Number) -> Response:
        """One episode."""
        return await _answer(library.episode, run, id)

    @router.get("/api/group")
    async def group(run: Run, id: Number) -> Response:
        """The episodes that are compared with one."""
        return await _answer(library.group, run, id)

    @router.get("/api/metrics")
    async def metrics(run: Run) -> Response:
        """The figures of its steps."""
        return await _answer(library.metrics, run)

    @router.get("/api/events")
    async def events(run: Run, request: Request) -> Response:
        """The figures of its steps, those to come too, as server-sent events: `anew` (forget what you had) and
        `figures`, a list of steps, at first even if there are none."""
        tail = MetricsTail(library.run(run).folder)
        return StreamingResponse(_follow(tail, request), media_type="text/event-stream")

    return router


async def _follow(tail: MetricsTail, request: Request) -> AsyncIterator[str]:
    begun, silent = False, 0.0
    while not request.app.state.stopping() and not await request.is_disconnected():
        anew, lines = await asyncio.to_thread(tail.new)
        if anew:
            yield "event: anew\ndata: {}\n\n"
        if lines or not begun:
            begun = True
            yield f"event: figures\ndata: {as_json(lines)}\n\n"
        silent = 0.0 if lines else silent + FOLLOW_SECONDS
        if silent >= SILENCE_SECONDS:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(FOLLOW_SECONDS)


def make_server(library: Library, hosts: Sequence[str]) -> uvicorn.Server:
    """A server of the viewer; told to stop, it lets go of the pages that follow a run."""
    app = make_app(library, hosts)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5))
    app.state.stopping = lambda: server.should_exit
    return server
