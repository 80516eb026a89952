"""What is wrong with a machine or a wish is said in one sentence, which names the thing and what to do."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from in_loop import in_loop

from rollenv.cli import main
from rollenv.sandboxes import EngineUnavailable, SandboxError, SandboxSpec, UnknownImage, create, engine
from rollenv.sandboxes import bubblewrap as backend
from rollenv.sandboxes.images.registry import RegistryError, remote_bytes


def one_sentence(error: BaseException, *words: str) -> None:
    said = str(error)
    assert "\n" not in said
    for word in words:
        assert word in said


@in_loop
async def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(EngineUnavailable) as caught:
        await create(SandboxSpec(), backend="docker")
    one_sentence(caught.value, f"unix://{tmp_path}/no.sock", "start one", "bubblewrap")


@in_loop
async def test_an_engine_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    with pytest.raises(EngineUnavailable) as caught:
        await create(SandboxSpec(), backend="docker")
    one_sentence(caught.value, "'ssh://somewhere'", "unix:///")


def test_no_permission_for_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("docker")
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(EngineUnavailable) as caught:
            engine.connect(f"unix://{path}")
    one_sentence(caught.value, "no permission", "group")


@in_loop
async def test_an_unknown_image(containing: str) -> None:
    with pytest.raises(UnknownImage) as caught:
        await create(SandboxSpec(image="rollenv/defautl"), backend=containing)
    one_sentence(caught.value, "'rollenv/defautl'", "rollenv images build")


@in_loop
async def test_no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PATH", "/nonexistent")
    with pytest.raises(EngineUnavailable) as caught:
        await create(SandboxSpec(), backend="bubblewrap")
    one_sentence(caught.value, "bwrap", "apt-get install -y bubblewrap")


@in_loop
async def test_no_permission_for_namespaces(monkeypatch: pytest.MonkeyPatch, bubblewrap: str) -> None:
    monkeypatch.setattr(backend, "_trial", lambda: "no permission to make namespaces (denied): run as root")
    with pytest.raises(EngineUnavailable) as caught:
        await create(SandboxSpec(), backend=bubblewrap)
    one_sentence(caught.value, "no permission to make namespaces", "run as root")


@in_loop
async def test_nothing_that_contains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(backend, "PATH", "/nonexistent")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(EngineUnavailable) as caught:
        await create(SandboxSpec())
    one_sentence(caught.value, "nothing here can contain untrusted code", "bubblewrap:", "docker:")


@in_loop
async def test_something_that_is_no_spec() -> None:
    with pytest.raises(SandboxError, match="SandboxSpec, not from dict"):
        await create({"image": "x"}, backend="subprocess")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["images", "build", "demo/x"], ["'demo/x'", "--from TAR"]),
        (["images", "build", "demo/x", "--from", "/no/such.tar", "--backend", "bubblewrap"], ["'/no/such.tar'"]),
        (["images", "build", "--backend", "bubblewrp"], ["'bubblewrp'"]),
        (["images", "build", "--source", "air", "--backend", "bubblewrap"], ["'air'"]),
        (["images", "plan", "--tasks", "/no/tasks.jsonl"], ["'/no/tasks.jsonl'"]),
    ],
)
def test_what_the_command_line_cannot_do(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in words:
        assert word in said


def test_a_registry_that_does_not_answer() -> None:
    with pytest.raises(RegistryError, match="no registry answers at localhost:1"):
        remote_bytes("localhost:1/a/b:c")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("No such image: a/b:latest", UnknownImage),
        ("a/b: image not known", UnknownImage),  # Podman's words
        ("No such container: sandbox-1", SandboxError),
    ],
)
def test_only_what_the_engine_says_of_an_image_is_said_of_one(said: str, kind: type[SandboxError]) -> None:
    """What is not there (404) may also be a container that ended in the meantime."""
    errors, requests = pytest.importorskip("docker.errors"), pytest.importorskip("requests")
    answer = requests.Response()
    answer.status_code, answer._content = 404, json.dumps({"message": said}).encode()
    with pytest.raises(SandboxError) as caught, engine.told("make a container", "a/b"):
        errors.create_api_error_from_http_exception(requests.HTTPError(response=answer))
    assert type(caught.value) is kind
    assert ("a/b" if kind is UnknownImage else said) in str(caught.value)
