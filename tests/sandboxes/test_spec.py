"""A spec is a value: frozen, hashable, checked when it is made."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from in_loop import in_loop

from rollenv.errors import RollenvError
from rollenv.sandboxes import SandboxSpec, create
from rollenv.sandboxes.backends import TRUSTING, available


def test_equal_specs_are_one_key() -> None:
    one, two = SandboxSpec(env={"A": "1", "B": "2"}), SandboxSpec(env={"B": "2", "A": "1"})
    assert one == two
    assert hash(one) == hash(two)
    assert one.key == two.key
    assert one.key != dataclasses.replace(one, memory=1 << 28).key


def test_a_spec_cannot_be_changed_and_survives_pickling() -> None:
    spec = SandboxSpec(env={"A": "1"}, writable=("/opt",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.memory = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        spec.env["A"] = "2"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_folders_within_others_are_left_out() -> None:
    assert SandboxSpec(workdir="/tmp/work", writable=("/opt/a", "/opt")).folders == ("/tmp", "/opt")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"memory": 1}, "'memory'"),
        ({"memory": 1.5}, "'memory'"),
        ({"cpus": 0}, "'cpus'"),
        ({"pids": True}, "'pids'"),
        ({"disk": -1}, "'disk'"),
        ({"exec_timeout": 0}, "'exec_timeout'"),
        ({"exec_timeout": float("nan")}, "'exec_timeout'"),
        ({"image": ""}, "'image'"),
        ({"env": {"A=B": "c"}}, "'A=B'"),
        ({"env": {"A": "\0"}}, "'A'"),
        ({"workdir": "work"}, "'work'"),
        ({"workdir": "/"}, "'/'"),
        ({"workdir": "/srv/../etc"}, "'/srv/../etc'"),
        ({"writable": ("/usr/local",)}, "stays read-only"),
        ({"writable": ("/a:b",)}, "'/a:b'"),
        ({"writable": "/opt"}, "'writable'"),
        ({"network": ("everywhere",)}, "'everywhere'"),
    ],
)
def test_what_no_sandbox_can_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(RollenvError, match=words) as caught:
        SandboxSpec(**wrong)
    assert "\n" not in str(caught.value)


def test_the_backend_that_contains_nothing_is_never_chosen() -> None:
    assert TRUSTING not in available()


@in_loop
async def test_unknown_backends_are_refused() -> None:
    with pytest.raises(RollenvError, match="did you mean 'bubblewrap'"):
        await create(SandboxSpec(), backend="bublewrap")
