"""Episodes in the Agent Trajectory Interchange Format, which other harnesses read: ATIF-v1.4 (Harbor's RFC 0001).

The first observation is the user's message; every turn is a step of the agent with its text, what it called, what came
of it, and the tokens: `prompt_token_ids` are the whole prompt that the model was given, earlier turns included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import rollenv
from rollenv.trajectory import Trajectory, Turn

VERSION = "ATIF-v1.4"


def as_atif(trajectory: Trajectory, agent: str = "rollenv", model: str | None = None) -> dict[str, Any]:
    """An episode as ATIF has it.

    Args:
        agent: name of who acted.
        model: name of its model, if it had one.
    """
    turns = trajectory.turns
    first = turns[0].observation if turns else ""
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": first}]
    prompt: list[int] = []
    for number, turn in enumerate(turns):
        begins_anew = turn.fork and bool(turn.prompt_ids or turn.completion_ids)  # as `Trajectory.segments` has it
        prompt = turn.prompt_ids if begins_anew else prompt + turn.prompt_ids
        after = turns[number + 1].observation if number + 1 < len(turns) else None
        steps.append({"step_id": number + 2, **_step(turn, f"call-{number}", after, prompt)})
        prompt = prompt + turn.completion_ids
    who = {"name": agent, "version": rollenv.__version__} | ({"model_name": model} if model else {})
    t = trajectory
    return {
        "schema_version": VERSION,
        "session_id": f"{t.env}/{t.task}/{t.group}/{t.sample}/{t.attempt}",
        "agent": who,
        "steps": steps,
        "final_metrics": _totals(t, steps),
        "extra": {"env": t.env, "task": t.task, "seed": t.seed, "info": t.info},
    }


def _step(turn: Turn, call_id: str, after: str | None, prompt: list[int]) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": turn.completion or turn.action}
    call = _tool_call(turn.action)
    if call is not None:
        step["tool_calls"] = [{"tool_call_id": call_id, **call}]
    if after is not None:
        step["observation"] = {"results": [{"source_call_id": call_id if call else None, "content": after}]}
    if turn.completion_ids:
        step["metrics"] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(turn.completion_ids),
            "cached_tokens": len(prompt) - len(turn.prompt_ids),
            "prompt_token_ids": prompt,
            "completion_token_ids": turn.completion_ids,
            "logprobs": turn.logprobs,
            "extra": {"policy_versions": turn.policy_versions},
        }
    extra = {"action": turn.action, "reward": turn.reward, "valid_action": turn.valid_action, "seconds": turn.seconds}
    return step | {"extra": extra}


def _tool_call(action: str) -> dict[str, Any] | None:
    try:
        said = json.loads(action)
        name, arguments = said["name"], said["arguments"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return None
    return {"function_name": name, "arguments": dict(arguments)}


def _totals(t: Trajectory, steps: list[dict[str, Any]]) -> dict[str, Any]:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    totals = {f"total_{key}": sum(each[key] for each in metrics) for key in ("prompt_tokens", "completion_tokens")}
    totals["total_cached_tokens"] = sum(each["cached_tokens"] for each in metrics)
    failure = None if t.failure is None else f"{t.failure.label}: {t.failure.message}"
    result = {"reward": t.reward, "success": t.success, "stop": t.stop.value, "failure": failure}
    return {**totals, "total_steps": len(steps), "extra": result}
