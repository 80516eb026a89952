"""Sandboxes for tests: every backend that can be used here, with an image made once, in a state folder of its own.

Fixtures, for the conftest.py of a folder whose tests need sandboxes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollenv.sandboxes import DEFAULT_IMAGE, SandboxError
from rollenv.sandboxes.backends import backend_module
from rollenv.sandboxes.images import build

CONTAINING = ["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)]
ALL = ["subprocess", *CONTAINING]


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ledgers and images of these tests alone: whatever else runs on the machine is not seen, and not reaped."""
    folder = tmp_path_factory.getbasetemp() / "sandboxes"
    folder.mkdir(exist_ok=True)
    # $ROLLENV_TEST_IMAGES keeps the images from session to session.
    images = os.environ.get("ROLLENV_TEST_IMAGES") or str(folder / "images")
    wanted = {"ROLLENV_STATE": str(folder), "ROLLENV_IMAGES": images}
    kept = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    yield folder
    for name, value in kept.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def usable(own_state: Path) -> Callable[[str], str]:
    """A backend's name, with the default image made; the test is skipped where the backend cannot be used."""

    @functools.cache
    def reason(name: str) -> str:
        if why := backend_module(name).why_not():
            return str(why)
        try:
            if name in ("bubblewrap", "docker"):
                build.make(DEFAULT_IMAGE, name, source="packages")
        except SandboxError as error:
            return str(error)
        return ""

    def find(name: str) -> str:
        if why := reason(name):
            pytest.skip(f"needs the {name} backend: {why}")
        return name

    return find


@pytest.fixture(params=ALL)
def backend(request: pytest.FixtureRequest, usable: Callable[[str], str]) -> str:
    """Each backend by turns."""
    return usable(request.param)


@pytest.fixture(params=CONTAINING)
def containing(request: pytest.FixtureRequest, usable: Callable[[str], str]) -> str:
    """Each backend that contains what it runs."""
    return usable(request.param)


@pytest.fixture(params=["bubblewrap"])
def bubblewrap(request: pytest.FixtureRequest, usable: Callable[[str], str]) -> str:
    """Bubblewrap alone."""
    return usable(request.param)


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker)])
def docker(request: pytest.FixtureRequest, usable: Callable[[str], str]) -> str:
    """The container engine alone."""
    return usable(request.param)
