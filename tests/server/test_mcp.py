"""Tool calls by the Model Context Protocol."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import toys


def rpc(http: httpx.Client, method: str, **params: Any) -> dict[str, Any]:
    answer = http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    assert answer.status_code == 200
    return dict(answer.json())


def test_an_episode_by_tool_calls(colours: Any) -> None:
    address, hosts = colours
    task = toys.Colours().tasks.ids("test")[0]
    colour = toys.Colours().tasks.get(task).data["colour"]
    with httpx.Client(base_url=address) as http:
        begun = http.post("/mcp", json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
        assert begun.json()["result"]["serverInfo"]["name"] == "colours"
        http.headers["Mcp-Session-Id"] = begun.headers["mcp-session-id"]
        assert http.post("/mcp", json={"method": "notifications/initialized"}).status_code == 202
        assert [tool["name"] for tool in rpc(http, "tools/list")["result"]["tools"]] == ["reset", "step", "state"]
        first = rpc(http, "tools/call", name="reset", arguments={"task": task})["result"]
        assert first["content"][0]["text"] == f"say {colour}"
        rpc(http, "tools/call", name="step", arguments={"action": colour})
        last = rpc(http, "tools/call", name="step", arguments={"action": colour})["result"]
        assert (last["structuredContent"]["reward"], last["structuredContent"]["done"]) == (1.0, True)
        over = rpc(http, "tools/call", name="step", arguments={"action": colour})["result"]
        assert over["isError"]
        assert rpc(http, "tools/call", name="state")["result"]["structuredContent"]["step_count"] == 2
        assert http.delete("/mcp").status_code == 204
    assert not len(hosts["colours"].sessions)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"id": 1}', -32600),
        (b'{"id": 1, "method": "fly"}', -32601),
        (b'{"id": 1, "method": "tools/call", "params": {"name": "fly"}}', -32602),
        (b'{"id": 1, "method": "tools/call", "params": {"name": "step", "arguments": {}}}', -32600),
        (b'{"id": 1, "method": "tools/call", "params": []}', -32602),
    ],
)
def test_what_is_wrong_is_a_json_rpc_error(colours: Any, body: bytes, code: int) -> None:
    answer = httpx.post(f"{colours[0]}/mcp", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, code)
