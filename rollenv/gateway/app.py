"""The gateway as an application: OpenAI's chat and text completions in front of an engine, every token recorded.

A client names its session by the header `X-Session-Id`, or by an address of its own, which is all that some frameworks
let one say: `base_url=".../sessions/NAME/v1"`. Clients that name none are met again by what was said (see `Sessions`).
Answers stream when they are whole: the engine gives completions, not tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Header, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

import rollenv
from rollenv.gateway.messages import BadMessages
from rollenv.gateway.sessions import NoSession, RecordedSession, Said, Sessions
from rollenv.inference.base import EngineDead, EngineError, InvalidRequest, SamplingParams
from rollenv.server.gate import Gate

Reply = dict[str, Any]
Name = Annotated[str, Path(min_length=1, max_length=255)]
DEFAULT_MAX_TOKENS = 1024


class _Sampling(BaseModel):
    """What both kinds of completion can be told; what else OpenAI's clients send is ignored."""

    model_config = ConfigDict(extra="ignore")
    model: str | None = None
    stream: bool = False
    n: Literal[1] = 1
    temperature: Annotated[float | None, Field(ge=0, le=100)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: str | list[str] | None = None
    seed: int | None = None

    def params(self, stop_token: int, most: int | None, unsaid: int) -> SamplingParams:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            max_tokens=min(filter(None, [self.max_tokens or unsaid, most])),
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=self.top_p or 1.0,
            stop_token_ids=(stop_token,),
            stop=tuple(text for text in stop if text),
            seed=-1 if self.seed is None else self.seed % 2**63,
        )


class ChatBody(_Sampling):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] = "auto"
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool | None = None
    top_logprobs: Literal[0] | None = None


class TextBody(_Sampling):
    """`POST /v1/completions`; `prompt` is text or token ids."""

    prompt: str | list[int]
    echo: Literal[False] | None = None
    logprobs: Literal[0, 1] | None = None


class EndBody(BaseModel):
    """What a session was worth."""

    reward: float = 0.0
    success: bool | None = None
    info: dict[str, Any] = Field(default_factory=dict)


def make_gateway(
    sessions: Sessions,
    model: str,
    token: str | None = None,
    limit: int = 64 << 20,
    records: bool = True,
    unsaid: int = DEFAULT_MAX_TOKENS,
) -> FastAPI:
    """The application.

    Args:
        model: the name under which it is offered.
        token: what clients must send as their API key; None: anything.
        limit: bytes of a request's body.
        records: whether clients can see, and end, sessions.
        unsaid: at most so many tokens of a completion whose client names no bound.
    """
    app = FastAPI(title="rollenv gateway", version=rollenv.__version__)
    app.add_exception_handler(BadMessages, _refused)
    app.add_exception_handler(EngineError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Gate, token=token, limit=limit, refuse=_error)
    for prefix in ("", "/sessions/{session}"):
        app.include_router(_completions(sessions, model, unsaid), prefix=f"{prefix}/v1")
    if records:
        app.include_router(_records(sessions))
    return app


# -- completions -------------------------------------------------------------------------------------------------------


def _completions(sessions: Sessions, model: str, unsaid: int) -> APIRouter:
    router = APIRouter(tags=["completions"])
    made = int(time.time())

    def params(body: _Sampling) -> SamplingParams:
        return body.params(sessions.chat.end_of_turn_id, sessions.engine.max_length, unsaid)

    @router.get("/models")
    async def models() -> Reply:
        """The one model."""
        return {"object": "list", "data": [{"id": model, "object": "model", "created": made, "owned_by": "rollenv"}]}

    @router.post("/chat/completions", response_model=None)
    async def chat(
        request: Request, body: ChatBody, x_session_id: Annotated[str | None, Header(max_length=255)] = None
    ) -> JSONResponse | StreamingResponse:
        """Answers a conversation."""
        session = await sessions.of(request.path_params.get("session") or x_session_id, body.messages)
        tools = [] if body.tool_choice == "none" else body.tools or []
        body.max_tokens = body.max_completion_tokens or body.max_tokens
        said = await session.chat(body.messages, tools, params(body))
        sessions.answered(session, body.messages, said.answer)
        choice = {"index": 0, "message": said.answer.as_dict(), "finish_reason": _finish(said)}
        choice["logprobs"] = {"content": _chat_logprobs(sessions, said)} if body.logprobs else None
        return _sent(_reply("chat.completion", "chatcmpl", session, model, choice, said), body.stream)

    @router.post("/completions", response_model=None)
    async def complete(
        request: Request, body: TextBody, x_session_id: Annotated[str | None, Header(max_length=255)] = None
    ) -> JSONResponse | StreamingResponse:
        """Continues a text, or token ids."""
        session = await sessions.of(request.path_params.get("session") or x_session_id, [])
        prompt = body.prompt if isinstance(body.prompt, list) else sessions.chat.encode(body.prompt)
        said = await session.complete(prompt, params(body))
        choice: Reply = {"index": 0, "text": said.answer.content, "finish_reason": said.completion.finish_reason}
        choice["logprobs"] = _text_logprobs(sessions, said) if body.logprobs is not None else None
        return _sent(_reply("text_completion", "cmpl", session, model, choice, said), body.stream)

    return router


def _finish(said: Said) -> str:
    return "tool_calls" if said.answer.tool_calls else said.completion.finish_reason


def _reply(kind: str, prefix: str, session: RecordedSession, model: str, choice: Reply, said: Said) -> Reply:
    read, wrote = len(said.prompt), len(said.completion.ids)
    usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
    return {
        "id": f"{prefix}-{session.name}-{len(session.trajectory.turns) - 1}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage | {"prompt_tokens_details": {"cached_tokens": said.cached}},
        "session": session.name,
    }


def _token_texts(sessions: Sessions, said: Said) -> list[str]:
    return [sessions.chat.tokenizer.decode([id]) for id in said.completion.ids]


def _chat_logprobs(sessions: Sessions, said: Said) -> list[Reply]:
    pairs = zip(_token_texts(sessions, said), said.completion.logprobs, strict=True)
    return [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []} for text, logprob in pairs
    ]


def _text_logprobs(sessions: Sessions, said: Said) -> Reply:
    texts = _token_texts(sessions, said)
    offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": said.completion.logprobs,
        "top_logprobs": None,
        "text_offset": offsets,
    }


def _sent(reply: Reply, stream: bool) -> JSONResponse | StreamingResponse:
    if not stream:
        return JSONResponse(reply)
    return StreamingResponse(_events(reply), media_type="text/event-stream")


def _events(reply: Reply) -> Iterator[str]:
    (choice,) = reply["choices"]
    common = {key: value for key, value in reply.items() if key not in ("choices", "usage")}
    if reply["object"] == "chat.completion":
        common["object"] = "chat.completion.chunk"
        delta = dict(choice["message"])
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": i} | call for i, call in enumerate(delta["tool_calls"])]
        first = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"]}
        last: Reply = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    else:
        first, last = (
            choice | {"finish_reason": None},
            {"index": 0, "text": "", "finish_reason": choice["finish_reason"]},
        )
    for event in ({"choices": [first]}, {"choices": [last]}, {"choices": [], "usage": reply["usage"]}):
        yield f"data: {json.dumps(common | event)}\n\n"
    yield "data: [DONE]\n\n"


# -- what was recorded -------------------------------------------------------------------------------------------------


def _records(sessions: Sessions) -> APIRouter:
    router = APIRouter(tags=["sessions"])

    @router.get("/health")
    async def health() -> Reply:
        """Whether the gateway serves, and with which weights."""
        return {"status": "healthy", "sessions": len(sessions), "version": sessions.engine.version}

    @router.get("/sessions/{session}")
    async def record(session: Name) -> Reply:
        """A session so far: every token, its log-probability and the version of the weights that made it."""
        return _found(sessions, session).trajectory.to_dict()

    @router.post("/sessions/{session}/end")
    async def end(session: Name, body: EndBody) -> Reply:
        """Ends a session with what it was worth, and returns it whole."""
        return (await sessions.end(_found(sessions, session), body.reward, body.success, body.info)).to_dict()

    return router


def _found(sessions: Sessions, name: str) -> RecordedSession:
    session = sessions.get(name)
    if session is None:
        raise NoSession(f"there is no session '{name}': it has ended, or has not said anything yet")
    return session


# -- errors ------------------------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, NoSession):
        return _error(404, "session_not_found", str(error))
    if isinstance(error, (BadMessages, InvalidRequest)):
        return _error(400, "invalid_request", str(error))
    return _error(503 if isinstance(error, EngineDead) else 500, "engine_error", str(error))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    what = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
    return _error(400, "invalid_request", what)


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "code": code, "param": None}
    return JSONResponse({"error": error}, status, headers)
