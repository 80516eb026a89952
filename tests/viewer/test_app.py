"""What the viewer's server answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient
from viewer.folders import episode, evaluation, served, training

from rollenv.files import write_atomically
from rollenv.trajectory import Failure, StopReason
from rollenv.viewer.app import make_app
from rollenv.viewer.library import Library


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A training run of three steps, and an evaluation."""
    broken = {"stop": StopReason.FAILED, "success": None, "failure": Failure("env", "timeout", "<b>no</b>", 1)}
    training(
        tmp_path / "train",
        {step: [episode(i, turns=i + 1, reward=i / 4, success=i == 3) for i in range(4)] for step in (1, 2, 3)},
        *({"step": step, "success": step / 4, "kl": float("nan")} for step in (1, 2, 3)),
    )
    evaluation(tmp_path / "eval", [*(episode(i) for i in range(120)), episode(120, **broken)], success_rate=0.5)
    with TestClient(make_app(Library(tmp_path)), base_url="http://localhost") as client:
        while any(
            client.get("/api/run", params={"run": run}).json()["progress"]["reading"] for run in ("train", "eval")
        ):
            time.sleep(0.01)
        yield client


def test_runs_and_what_they_say_of_themselves(client: TestClient) -> None:
    runs = {run["id"]: run for run in client.get("/api/runs").json()}
    assert runs.keys() == {"train", "eval"}
    assert (runs["train"]["steps"], runs["train"]["success_rate"]) == (3, 0.75)
    assert runs["eval"]["success_rate"] == 0.5
    details = client.get("/api/run", params={"run": "train"}).json()
    assert details["counts"]["all"] == 12
    assert details["kept_steps"] == [1, 2, 3]
    assert details["config"] == {"env": "shop", "steps": 9}


def test_episodes_come_in_pages_filtered_and_sorted(client: TestClient) -> None:
    def ask(**words: object) -> dict:
        return client.get("/api/episodes", params={"run": "eval", **words}).json()

    assert [row["id"] for row in ask(offset=100, limit=50)["rows"]] == list(range(100, 121))
    assert ask(limit=1)["total"] == 121
    (failed,) = ask(show="failed")["rows"]
    assert (failed["failure"], failed["task"]) == ("env/timeout", "task-60")
    assert ask(text="thing 59")["total"] == 2
    longest = client.get("/api/episodes", params={"run": "train", "sort": "turns", "step": 2, "limit": 2}).json()[
        "rows"
    ]
    assert [(row["step"], row["turns"]) for row in longest] == [(2, 4), (2, 3)]


def test_an_episode_and_its_group_are_told_whole(client: TestClient) -> None:
    one = client.get("/api/episode", params={"run": "eval", "id": 3}).json()
    assert [turn["action"] for turn in one["turns"]] == ["take[0]", "take[1]"]
    assert one["turns"][0]["seconds"] == {"generate": 0.25, "env": 0.5}
    assert one["turns"][0]["logprobs"] == [-0.5, -2.0]
    assert one["turns"][0]["pieces"] is None  # no tokenizer is at hand
    group = client.get("/api/group", params={"run": "eval", "id": 3}).json()["episodes"]
    assert [each["id"] for each in group] == [2, 3]
    assert group[1] == one


def test_figures_without_a_value_are_null(client: TestClient) -> None:
    assert client.get("/api/metrics", params={"run": "train"}).json()[0] == {"step": 1, "success": 0.25, "kl": None}


@pytest.mark.parametrize(
    ("path", "words", "status"),
    [
        ("run", {"run": "none"}, 404),
        ("run", {"run": "../eval"}, 404),
        ("run", {"run": "/etc"}, 404),
        ("episode", {"run": "eval", "id": 999}, 404),
        ("group", {"run": "eval", "id": 999}, 404),
        ("events", {"run": "none"}, 404),
        ("episode", {"run": "eval", "id": "x"}, 422),
        ("episode", {"run": "eval", "id": 2**70}, 422),
        ("episodes", {"run": "eval", "show": "1; DROP TABLE episodes"}, 422),
        ("episodes", {"run": "eval", "sort": "id"}, 422),
        ("episodes", {"run": "eval", "limit": 10**6}, 422),
        ("run", {}, 422),
    ],
)
def test_what_is_not_there_is_not_found_and_nonsense_is_refused(
    path: str, words: dict, status: int, client: TestClient
) -> None:
    assert client.get(f"/api/{path}", params=words).status_code == status


def test_a_page_elsewhere_that_has_its_name_lead_here_learns_nothing(client: TestClient) -> None:
    assert client.get("/api/runs", headers={"Host": "evil.example"}).status_code == 400


def test_an_episode_that_has_changed_on_the_disk_is_a_sentence(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "eval" / "trajectories.jsonl").unlink()
    answer = client.get("/api/episode", params={"run": "eval", "id": 3})
    assert answer.status_code == 404
    assert answer.json()["error"]


def test_a_run_that_began_after_the_server_is_found(client: TestClient, tmp_path: Path) -> None:
    evaluation(tmp_path / "later", [episode(0)])
    assert client.get("/api/episodes", params={"run": "later"}).json()["total"] == 1


def test_the_page_may_run_its_own_script_and_nothing_else(client: TestClient) -> None:
    page = client.get("/")
    assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


def test_figures_are_told_as_they_are_written(tmp_path: Path) -> None:
    training(tmp_path, {}, {"step": 1, "loss": 0.5})

    def events(lines: Iterator[str]) -> Iterator[tuple[str, object]]:
        for line in lines:
            if line.startswith("event: "):
                yield line.removeprefix("event: "), json.loads(next(lines).removeprefix("data: "))

    with (
        served(tmp_path) as address,
        httpx.stream("GET", f"{address}/api/events", params={"run": "."}, timeout=60) as answer,
    ):
        told = events(answer.iter_lines())
        assert next(told) == ("anew", {})
        assert next(told) == ("figures", [{"step": 1, "loss": 0.5}])
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "loss": NaN}\n')
        assert next(told) == ("figures", [{"step": 2, "loss": None}])
        write_atomically(tmp_path / "metrics.jsonl", ['{"step": 1}\n'])
        assert next(told) == ("anew", {})
        assert next(told) == ("figures", [{"step": 1}])
