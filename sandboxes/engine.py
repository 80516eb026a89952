"""The container engine: Docker, or Podman through the same interface. Connections, what its errors mean, streams."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollenv.sandboxes.errors import EngineUnavailable, SandboxError, UnknownImage

if TYPE_CHECKING:
    from rollenv.sandboxes.ledger import Entry

_SECONDS = 60
_STDOUT, _STDERR = 1, 2
_START = "start one (on Debian: apt-get install -y docker.io, then dockerd), set DOCKER_HOST, or use bubblewrap"


def address() -> str:
    """$DOCKER_HOST, else the first of the usual sockets of Docker and Podman that is there, else Docker's."""
    if own := os.environ.get("DOCKER_HOST"):
        return own
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = [
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        "/run/podman/podman.sock",
        f"{runtime}/podman/podman.sock",
    ]
    return "unix://" + next((path for path in usual if os.path.exists(path)), usual[0])


def connect(where: str | None = None) -> Any:
    """The engine's client (`docker.APIClient`), one per process and address.

    Args:
        where: its address; None: `address()`.

    Raises:
        EngineUnavailable: the SDK is missing, nothing answers there, or this user may not speak to it.
    """
    return _connect(where or address(), os.getpid())


@functools.cache
def _connect(where: str, pid: int) -> Any:
    try:
        import docker
    except ModuleNotFoundError as error:
        raise EngineUnavailable("the docker backend needs Docker's SDK: pip install 'rollenv[swe]'") from error
    path = Path(where.removeprefix("unix://"))
    if where.startswith("unix://") and path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise EngineUnavailable(
            f"no permission to use the container engine at '{where}': run as root, or add this user to its group "
            "(sudo usermod -aG docker $USER, then log in again)"
        )
    if urlsplit(where).scheme not in ("unix", "tcp", "http"):
        raise EngineUnavailable(
            f"'{where}' is no address of a container engine: unix:///path/to/socket or tcp://host:port"
        )
    try:
        return docker.APIClient(base_url=where, version="auto", timeout=_SECONDS)
    except (docker.errors.DockerException, OSError) as error:
        raise EngineUnavailable(f"no container engine answers at '{where}': {_START}") from error


@contextlib.contextmanager
def told(what: str, image: str = "") -> Any:
    """Says an engine's errors in one sentence; `what` was tried with `image`."""
    import docker.errors
    import requests.exceptions

    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise unknown_image(image) from error
    except docker.errors.APIError as error:
        if image and error.status_code == 404 and "image" in str(error.explanation).lower():  # in Podman's words
            raise unknown_image(image) from error
        words = str(error.explanation or error).strip().splitlines()[-1:]
        raise SandboxError(f"the container engine cannot {what}: {''.join(words)}") from error
    except (requests.exceptions.RequestException, docker.errors.DockerException, OSError) as error:
        _connect.cache_clear()
        raise EngineUnavailable(f"the container engine at '{address()}' does not answer: {_START}") from error


def unknown_image(image: str) -> UnknownImage:
    """What to say about an image that an engine lacks."""
    return UnknownImage(
        f"the container engine has no image '{image}': 'rollenv images build' makes the default one, "
        f"'docker pull {image}' fetches one from a registry"
    )


def remove_labelled(entry: Entry) -> None:
    """Removes what a ledger names from its engine, if it carries its owner's name; what is not there is fine.

    Raises:
        SandboxError: the engine does not answer, or will not.
    """
    import docker.errors

    api = connect(entry.where)
    calls = {
        "container": (api.inspect_container, functools.partial(api.remove_container, force=True, v=True)),
        "network": (api.inspect_network, api.remove_network),
        "volume": (api.inspect_volume, functools.partial(api.remove_volume, force=True)),
        "image": (api.inspect_image, functools.partial(api.remove_image, force=True)),
    }
    inspect, remove = calls[entry.kind]
    with told(f"remove {entry.kind} '{entry.name}'"), contextlib.suppress(docker.errors.NotFound):
        found = inspect(entry.name)
        labels = found.get("Labels") or found.get("Config", {}).get("Labels") or {}
        if labels.get("rollenv.owner") == entry.owner:
            remove(entry.name)


class Stream:
    """The outputs and the input of a command in a container, over a connection of their own.

    The SDK's own stream reads ahead and loses what came with the answer's head, so the connection is made here.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._discarding = False
        self.ended = asyncio.ensure_future(self._sort())

    async def _sort(self) -> None:
        """Frames of 8 bytes' head (stream, length) and content: docker's `attach` protocol."""
        outputs = {_STDOUT: self.stdout, _STDERR: self.stderr}
        try:
            while True:
                kind, size = struct.unpack(">B3xI", await self._reader.readexactly(8))
                while size:
                    data = await self._reader.read(min(size, 1 << 16))
                    if not data:
                        return
                    size -= len(data)
                    if (output := outputs.get(kind)) is not None and not self._discarding:
                        output.feed_data(data)
                        await self._room(output)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.stdout.feed_eof()
            self.stderr.feed_eof()
            self._writer.close()

    async def _room(self, output: asyncio.StreamReader) -> None:
        """Waits while a reader has more than a megabyte before it: nobody may fill this process's memory."""
        while len(output._buffer) > 1 << 20 and not self._discarding:  # type: ignore[attr-defined]
            await asyncio.sleep(0.002)

    def write(self, data: bytes) -> None:
        """To the command's stdin."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Waits until there is room for more."""
        await self._writer.drain()

    def close(self) -> None:
        """The end of its stdin; its outputs go on."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def discard(self) -> None:
        """What still comes is for nobody."""
        self._discarding = True

    def drop(self) -> None:
        """Closes the connection."""
        self.ended.cancel()
        self._writer.close()


async def open_stream(where: str, version: str, exec_id: str) -> Stream:
    """Starts a command that the engine knows by id and returns its stream.

    Raises:
        SandboxError: the engine does not start it.
    """
    parts = urlsplit(where)
    writer = None
    try:
        async with asyncio.timeout(_SECONDS):
            if parts.scheme == "unix":
                reader, writer = await asyncio.open_unix_connection(parts.path)
            else:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 2375)
            answer = await _ask_to_start(reader, writer, version, exec_id)
    except BaseException as error:
        if writer is not None:
            writer.close()
        if isinstance(error, OSError | asyncio.IncompleteReadError):  # too late an answer is an OSError as well
            raise EngineUnavailable(f"the container engine at '{where}' does not answer: {_START}") from error
        raise
    status = int(answer.split(b" ", 2)[1])
    if status not in (101, 200):
        said = (await reader.read(1 << 14)).decode(errors="replace").strip().splitlines()[-1:]
        writer.close()
        raise SandboxError(f"the container engine cannot start a command: {''.join(said) or status}")
    return Stream(reader, writer)


async def _ask_to_start(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: str, exec_id: str
) -> bytes:
    """Asks for a command's start over a connection that then is its stream; returns the answer's head."""
    body = json.dumps({"Detach": False, "Tty": False}).encode()
    head = (
        f"POST /v{version}/exec/{exec_id}/start HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
        f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return await reader.readuntil(b"\r\n\r\n")


class Calls:
    """The engine's blocking calls from a coroutine, few at a time: an engine that is flooded answers nobody."""

    _making = threading.Lock()

    def __init__(self, where: str, at_once: int = 8) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.where, self.api = where, connect(where)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="engine")

    async def __call__(self, what: str, call: Any, *args: Any, image: str = "", **words: Any) -> Any:
        """Runs one; `what` it is for is told when it fails."""

        def run() -> Any:
            with told(what, image):
                return call(*args, **words)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)


@functools.cache
def _calls(where: str, pid: int) -> Calls:
    return Calls(where)


def calls() -> Calls:
    """This process's calls to the engine.

    Raises:
        EngineUnavailable: see `connect`.
    """
    with Calls._making:
        return _calls(address(), os.getpid())
