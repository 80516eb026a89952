"""AgentGym's and NeMo Gym's ways to ask for an environment: the same episodes, in their words."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import toys

ENV = toys.Colours()


def colour_of(task: str) -> str:
    return str(ENV.tasks.get(task).data["colour"])


def said(text: str) -> dict[str, Any]:
    """A model's response, as OpenAI's Responses API has it."""
    reasoning = {"type": "reasoning", "summary": []}
    return {"output": [reasoning, {"type": "message", "content": [{"type": "output_text", "text": text}]}]}


def test_an_episode_in_the_words_of_agentgyms_webshop(colours: Any) -> None:
    address, hosts = colours
    task = ENV.tasks.ids("test")[3]
    with httpx.Client(base_url=f"{address}/agentgym") as http:
        assert http.get("/").json() == "ok"
        number = http.post("/create").json()["id"]
        assert http.post("/reset", json={"env_idx": number, "session_id": 3}).json() == [f"say {colour_of(task)}", None]
        assert http.get("/observation", params={"env_idx": number}).json() == f"say {colour_of(task)}"
        first = http.post("/step", json={"env_idx": number, "action": colour_of(task)}).json()
        assert first == {"state": "again", "reward": 0.0, "done": False, "info": None}
        last = http.post("/step", json={"env_idx": number, "action": colour_of(task)}).json()
        assert (last["reward"], last["done"]) == (1.0, True)
        assert http.post("/step", json={"env_idx": number, "action": "red"}).status_code == 400
        assert http.post("/close", json={"env_idx": number}).json() == {"closed": True}
        assert http.get("/observation", params={"env_idx": number}).status_code == 404
    assert not len(hosts["colours"].sessions)


def test_an_episode_in_the_words_of_agentgyms_other_environments(colours: Any) -> None:
    address, _ = colours
    task = ENV.tasks.ids("test")[0]
    with httpx.Client(base_url=f"{address}/agentgym") as http:
        ids = [http.post("/create", json={}).json()["id"] for _ in range(3)]
        assert ids == [0, 1, 2]
        begun = http.post("/reset", json={"id": 1, "data_idx": 0}).json()
        assert (begun["observation"], begun["available_actions"]) == (f"say {colour_of(task)}", list(toys.COLOURS))
        assert http.get("/observation", params={"id": 2}).json() == ""
        step = http.post("/step", json={"id": 1, "action": "red"}).json()
        assert (step["observation"], step["reward"], step["done"]) == ("again", 0.0, False)


def test_webshop_is_created_as_its_agentgym_clients_expect() -> None:
    from server.serving import served

    with served("webshop") as (address, _), httpx.Client(base_url=f"{address}/webshop/agentgym") as http:
        number = http.post("/create").json()
        text, nothing = http.post("/reset", json={"env_idx": number, "session_id": 0}).json()
        assert (number, nothing) == (0, None)
        assert "Instruction:" in text
        # The server's first environment answers without its name too, from the same sessions.
        assert httpx.get(f"{address}/agentgym/observation", params={"env_idx": number}).json() == text


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/agentgym/reset", {}, 422),
        ("/agentgym/reset", {"id": 99}, 404),
        ("/agentgym/step", {"id": 99, "action": "red"}, 404),
        ("/agentgym/step", {"id": -1, "action": "red"}, 422),
        ("/agentgym/close", {"env_idx": "x"}, 422),
        ("/nemo_gym/step", {"response": said("red")}, 404),
        ("/nemo_gym/step", {"response": "red"}, 422),
        ("/nemo_gym/reset", {"seed": -1}, 422),
        ("/nemo_gym/reset", {"task": "nowhere"}, 400),
    ],
)
def test_what_is_wrong_is_said(colours: Any, path: str, body: Any, status: int) -> None:
    answer = httpx.post(colours[0] + path, json=body)
    assert answer.status_code == status
    assert answer.json()["data"]["message"]


def test_a_place_beyond_the_split_is_refused(colours: Any) -> None:
    with httpx.Client(base_url=f"{colours[0]}/agentgym") as http:
        number = http.post("/create").json()["id"]
        answer = http.post("/reset", json={"id": number, "data_idx": 32})
        assert (answer.status_code, "has 32" in answer.text) == (422, True)


def test_a_cookie_names_the_session_of_nemo_gym(colours: Any) -> None:
    address, hosts = colours
    first, second = ENV.tasks.ids("test")[:2]
    with httpx.Client(base_url=f"{address}/nemo_gym") as one, httpx.Client(base_url=f"{address}/nemo_gym") as other:
        for http in (one, other):
            assert http.post("/seed_session", json={"responses_create_params": {"input": []}}).json() == {}
        assert len(hosts["colours"].sessions) == 2
        row = {"responses_create_params": {"input": []}, "task": first, "seed": 5, "verifier_metadata": {"x": 1}}
        begun = one.post("/reset", json=row).json()
        assert (begun["observation"], begun["info"]["task"]) == (f"say {colour_of(first)}", first)
        assert other.post("/reset", json={**row, "task": second}).json()["info"]["task"] == second
        assert one.post("/step", json={"response": said("red")}).json()["terminated"] is False
        last = one.post("/step", json={**row, "response": said(colour_of(first))}).json()
        assert (last["observation"], last["reward"], last["terminated"], last["truncated"]) == (
            "done",
            1.0,
            True,
            False,
        )
        assert last["info"]["success"] is True
        # An episode's end is the session's.
        assert len(hosts["colours"].sessions) == 1
        assert one.post("/step", json={"response": said("red")}).status_code == 404
        assert other.post("/step", json={"response": said("red")}).status_code == 200


def test_a_reset_without_a_session_begins_one(colours: Any) -> None:
    address, hosts = colours
    with httpx.Client(base_url=f"{address}/nemo_gym") as http:
        http.post("/reset", json={})
        http.post("/reset", json={})
    assert len(hosts["colours"].sessions) == 1


def test_a_session_refuses_an_action_that_is_not_in_a_response(colours: Any) -> None:
    with httpx.Client(base_url=f"{colours[0]}/nemo_gym") as http:
        http.post("/reset", json={})
        assert http.post("/step", json={"response": {"id": 1}}).status_code == 422
        assert (
            http.post("/step", json={"response": {"output": [3, {"type": "message"}]}}).json()["info"]["valid_action"]
            is False
        )
