"""A scripted model behind an OpenAI-compatible server solves a default task through the tools, by `rollenv eval`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chat_server import Answer, Server, serve, tool_call
from swe_bug import TASK, solution

from rollenv.cli import main

__all__ = ["serve"]


def scripted(body: dict[str, Any]) -> dict[str, Any]:
    """Looks round, views the file, edits it, runs the tests that are there, submits: one for each turn."""
    path, old, new = solution()
    steps = [
        tool_call("bash", command="git log --oneline; ls"),
        tool_call("view", path=path),
        tool_call("edit", path=path, old=old, new=new),
        tool_call("bash", command="python3 -m pytest -q -p no:cacheprovider 2>&1 | tail -1"),
        tool_call("submit"),
    ]
    return steps[sum(message["role"] == "assistant" for message in body["messages"])]


def test_a_model_solves_a_default_task(
    bubblewrap: str, serve: Callable[[Answer], Server], tmp_path: Path, capsys: Any
) -> None:
    server = serve(scripted)
    words = ["eval", "--env", "swe", "--agent", "chat-completions", "-n", "1", f"agent.base_url={server.url}"]
    assert main([*words, f"sandbox={bubblewrap}", "--out", str(tmp_path)]) == 0
    assert "100" in capsys.readouterr().out
    trajectory = json.loads((tmp_path / "trajectories.jsonl").read_text().splitlines()[0])
    assert trajectory["task"] == TASK
    assert trajectory["success"] is True
    called = [json.loads(turn["action"])["name"] for turn in trajectory["turns"]]
    assert called == ["bash", "view", "edit", "bash", "submit"]
    assert "passed" in server.asked[-1]["messages"][-1]["content"]
    assert [tool["function"]["name"] for tool in server.asked[0]["tools"]][-1] == "submit"
