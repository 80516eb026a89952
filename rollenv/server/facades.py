"""The same sessions, as two other gyms ask for them: thin routers over `EnvHost`.

`/agentgym` speaks as AgentGym's environment servers do (WooooDyy/AgentGym: `agentenv_webshop/server.py`, and the
clients in `agentenv/envs/`): environments are whole numbers. `/nemo_gym` speaks as a resources server of NeMo Gym in
Gymnasium's style does (NVIDIA-NeMo/Gym: `resources_servers/gymnasium/base.py`): a cookie says which session it is, and
an action is the text of a model's response.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from rollenv.server import wire
from rollenv.server.host import EnvHost, Seat
from rollenv.server.sessions import Session, SessionError

COOKIE = "session"
"""The name that Starlette gives its session cookie, and so NeMo Gym."""

Number = Annotated[int, Field(ge=0, lt=2**53)]


class AgentGymBody(BaseModel):
    """Which environment: `env_idx` (as AgentGym's WebShop says) or `id` (as its other environments do)."""

    model_config = ConfigDict(extra="ignore")
    env_idx: Number | None = None
    id: Number | None = None

    @property
    def number(self) -> int:
        found = self.id if self.env_idx is None else self.env_idx
        if found is None:
            raise SessionError("VALIDATION_ERROR", "say which environment: 'env_idx', the number that /create answered")
        return found


class AgentGymReset(AgentGymBody):
    """Which task, by its place in the split: `session_id` (WebShop), `data_idx` or `game` (others)."""

    session_id: Number | None = None
    data_idx: Number | None = None
    game: Number | None = None

    @property
    def place(self) -> int | None:
        given = (place for place in (self.session_id, self.data_idx, self.game) if place is not None)
        return next(given, None)


class AgentGymStep(AgentGymBody):
    """What to do."""

    action: str


async def asked(host: EnvHost, session: Session, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """The data of the answer to a request. Raises the error that it says, as a client would."""
    reply = await host.ask(session, wire.Message(kind, data, None))
    if reply["type"] == "error":
        raise wire.error_of(reply)
    found: dict[str, Any] = reply["data"]
    return found


# -- AgentGym ----------------------------------------------------------------------------------------------------


def agentgym_routes(host: EnvHost) -> APIRouter:
    """`/agentgym/...` of one environment. `/create` answers a number for WebShop and `{"id", "observation"}` for all
    others; what names its environment by `env_idx` is answered in WebShop's form, `id` in that of the others."""
    router = APIRouter(prefix="/agentgym")
    numbers = itertools.count()

    def at(number: int) -> Session:
        return host.join(_name(number))

    @router.get("/")
    async def ok() -> str:
        """Whether it is there."""
        return "ok"

    @router.post("/create")
    async def create() -> Any:
        """A new environment, and its number."""
        number = next(numbers)
        await host.open(_name(number))
        return (
            number if host.spec.name == "webshop" else {"id": number, "observation": "", "reward": 0.0, "done": False}
        )

    @router.post("/reset")
    async def reset(body: AgentGymReset) -> Any:
        """Begins the task at that place of the split that evaluations play; without a place one is drawn."""
        data = await asked(host, at(body.number), "reset", _task_at(host, body.place))
        text = data["observation"]["text"]
        if body.env_idx is not None:
            return [text, None]
        return {"id": body.number, "reward": 0.0, "done": False, **_seen(data)}

    @router.post("/step")
    async def step(body: AgentGymStep) -> dict[str, Any]:
        """Plays an action."""
        data = await asked(host, at(body.number), "step", {"action": body.action})
        answer = {"reward": data["reward"], "done": data["done"]}
        if body.env_idx is not None:
            return {"state": data["observation"]["text"], "info": None, **answer}
        return {**answer, **_seen(data)}

    @router.get("/observation")
    async def observation(
        env_idx: Annotated[Number | None, Query()] = None, id: Annotated[Number | None, Query()] = None
    ) -> str:
        """What was seen last."""
        seat: Seat = at(AgentGymBody(env_idx=env_idx, id=id).number).held
        return "" if seat.last is None else str(seat.last["data"]["observation"]["text"])

    @router.post("/close")
    async def close(body: AgentGymBody) -> dict[str, bool]:
        """Ends an environment."""
        host.end(at(body.number))
        return {"closed": True}

    return router


def _name(number: int) -> str:
    return f"agentgym-{number}"


def _task_at(host: EnvHost, place: int | None) -> dict[str, Any]:
    if place is None:
        return {}
    ids = host.tasks().ids(host.spec.eval_split)
    if place >= len(ids):
        raise SessionError(
            "VALIDATION_ERROR", f"there is no task {place}: split '{host.spec.eval_split}' has {len(ids)}"
        )
    return {"task": ids[place]}


def _seen(data: Mapping[str, Any]) -> dict[str, Any]:
    """What is seen, and what can be done, where that is known."""
    seen = data["observation"]
    listed = seen["info"].get("admissible_actions")
    return {"observation": seen["text"], **({} if listed is None else {"available_actions": listed})}


# -- NeMo Gym ----------------------------------------------------------------------------------------------------


class NemoReset(BaseModel):
    """A row of the data set: its `task` and `seed` are the episode's; the rest is not looked at."""

    model_config = ConfigDict(extra="ignore")
    task: str | None = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None


class NemoStep(BaseModel):
    """`response`: what the model answered, as OpenAI's Responses API has it; its text is the action."""

    model_config = ConfigDict(extra="ignore")
    response: dict[str, Any]


def nemo_gym_routes(host: EnvHost) -> APIRouter:
    """`/nemo_gym/...` of one environment."""
    router = APIRouter(prefix="/nemo_gym")

    async def begun(request: Request, response: Response) -> Session:
        """The session of the cookie; a new one, and its cookie, where there is none (any more)."""
        name = request.cookies.get(COOKIE, "")
        if host.sessions.find(name) is not None:
            return host.join(name)
        session = await host.open()
        response.set_cookie(COOKIE, session.id, httponly=True, samesite="lax")
        return session

    @router.post("/seed_session")
    async def seed_session(request: Request, response: Response) -> dict[str, Any]:
        """A session, which the cookie of the answer names."""
        await begun(request, response)
        return {}

    @router.post("/reset")
    async def reset(body: NemoReset, request: Request, response: Response) -> dict[str, Any]:
        """Begins an episode in the session."""
        session = await begun(request, response)
        data = await asked(host, session, "reset", body.model_dump(exclude_none=True))
        return {"observation": data["observation"]["text"], "info": data["observation"]["info"]}

    @router.post("/step")
    async def step(body: NemoStep, request: Request) -> dict[str, Any]:
        """Plays the text of a response. The session ends with its episode."""
        session = host.join(request.cookies.get(COOKIE, ""))
        data = await asked(host, session, "step", {"action": response_text(body.response)})
        if data["done"]:
            host.end(session)
        seen = data["observation"]
        ends = {"terminated": seen["terminated"], "truncated": seen["truncated"]}
        return {"observation": seen["text"], "reward": data["reward"], **ends, "info": seen["info"]}

    return router


def response_text(response: Mapping[str, Any]) -> str:
    """The text of a response of OpenAI's Responses API: the `output_text` parts of its messages, one after the other.

    >>> response_text({"output": [{"type": "message", "content": [{"type": "output_text", "text": "go"}]}]})
    'go'
    """
    output = response.get("output")
    if not isinstance(output, list):
        raise SessionError("VALIDATION_ERROR", "'response' has a list 'output', as OpenAI's Responses API has it")
    messages = [item for item in output if isinstance(item, dict) and item.get("type") == "message"]
    return "".join(_text(message.get("content")) for message in messages)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "output_text")
