"""The Model Context Protocol's tool calls, over plain JSON answers (its "Streamable HTTP" transport, without streams).

`initialize` begins a session, which the answer's header `Mcp-Session-Id` names and every later request repeats. The
tools are `reset`, `step` and `state`; what a tool says is the observation's text, with the rest as structured content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

import rollenv
from rollenv.errors import RollenvError
from rollenv.server import wire
from rollenv.server.host import EnvHost
from rollenv.server.sessions import SessionError

PROTOCOL = "2025-06-18"
SESSION = "mcp-session-id"
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
"""Codes of JSON-RPC 2.0."""

TOOLS: dict[str, dict[str, Any]] = {
    "reset": {
        "description": "Begin an episode and see its first observation.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "task": {"type": "string", "description": "Which task; without it one is drawn."},
                "seed": {"type": "integer", "minimum": 0},
            },
        },
    },
    "step": {
        "description": "Play an action and see what comes of it.",
        "inputSchema": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
    },
    "state": {"description": "Where the episode stands.", "inputSchema": {"type": "object", "properties": {}}},
}


class _RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def mcp_routes(host: EnvHost) -> APIRouter:
    """`/mcp` of one environment."""
    router = APIRouter()

    @router.post("/mcp")
    async def mcp(request: Request) -> Response:
        """JSON-RPC: initialize, ping, tools/list, tools/call."""
        call: dict[str, Any] = {}
        try:
            call = _read(await request.body())
            if "id" not in call:
                return Response(status_code=202)  # a notification
            result, headers = await _answer(host, call, request.headers.get(SESSION))
        except _RpcError as error:
            return _reply(call.get("id"), {"error": {"code": error.code, "message": str(error)}})
        except RollenvError as error:
            code = INVALID_PARAMS if isinstance(error, SessionError) else INTERNAL
            return _reply(call.get("id"), {"error": {"code": code, "message": str(error)}})
        return _reply(call["id"], {"result": result}, headers)

    @router.delete("/mcp")
    async def end(request: Request) -> Response:
        """Ends the session."""
        host.end(host.join(request.headers.get(SESSION, "")))
        return Response(status_code=204)

    return router


def _reply(number: Any, what: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"jsonrpc": "2.0", "id": number, **what}, headers=headers)


def _read(body: bytes) -> dict[str, Any]:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _RpcError(PARSE_ERROR, "the request is not JSON") from error
    if not isinstance(call, dict) or not isinstance(call.get("method"), str):
        raise _RpcError(INVALID_REQUEST, "a request is an object with a 'method'")
    if not isinstance(call.get("params", {}), dict):
        raise _RpcError(INVALID_PARAMS, "'params' is an object")
    return call


async def _answer(host: EnvHost, call: dict[str, Any], name: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    method, params = call["method"], call.get("params", {})
    if method == "initialize":
        session = await host.open()
        about = {"name": host.spec.name, "version": rollenv.__version__}
        result = {"protocolVersion": PROTOCOL, "capabilities": {"tools": {}}, "serverInfo": about}
        return result, {SESSION: session.id}
    if method == "ping":
        return {}, {}
    if method == "tools/list":
        return {"tools": [{"name": tool, **about} for tool, about in TOOLS.items()]}, {}
    if method == "tools/call":
        return await _call_tool(host, params, name), {}
    raise _RpcError(NO_METHOD, f"there is no method '{method:.80}'")


async def _call_tool(host: EnvHost, params: dict[str, Any], name: str | None) -> dict[str, Any]:
    tool, arguments = params.get("name"), params.get("arguments") or {}
    if tool not in TOOLS:
        raise _RpcError(INVALID_PARAMS, f"there is no tool {tool!r:.80}: there are {', '.join(TOOLS)}")
    if not isinstance(arguments, dict):
        raise _RpcError(INVALID_PARAMS, "'arguments' is an object")
    if name is None:
        raise _RpcError(INVALID_REQUEST, "call 'initialize' first and send the Mcp-Session-Id that it answers")
    reply = await host.ask(host.join(name), wire.Message(str(tool), arguments, None))
    data = json.loads(wire.dump(reply))["data"]
    if reply["type"] == "error":
        return {"content": [{"type": "text", "text": data["message"]}], "isError": True}
    text = data["observation"]["text"] if reply["type"] == "observation" else json.dumps(data)
    return {"content": [{"type": "text", "text": text}], "structuredContent": data, "isError": False}
