"""A thousand sessions, while clients are killed, the server is killed, and others do what nobody should."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from server.serving import until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

TESTS = Path(__file__).resolve().parents[1]
ROLLENV = [sys.executable, "-m", "rollenv"]
TOKEN, MESSAGE_BYTES, LEASE = "secret", 1 << 16, 2
HUGE = 100 << 20
CLIENTS, SESSIONS = 5, 200


class Server:
    """`rollenv serve` in a process, which can be killed and begun again at the same port."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.root = f"http://127.0.0.1:{self.port}"
        self.address = f"{self.root}/colours"
        self.begin()

    def begin(self) -> None:
        words = ["--import", str(TESTS / "cli" / "colours_env.py"), "--env", "colours", "--port", str(self.port)]
        words += ["--sessions", str(CLIENTS * SESSIONS + 50), "--lease", str(LEASE), "--ping-seconds", "2"]
        words += ["--message-bytes", str(MESSAGE_BYTES), "--token", TOKEN, "--drain", "1"]
        self.process = subprocess.Popen([*ROLLENV, "serve", *words], stdout=subprocess.DEVNULL)
        until(self.answers, 60)

    def answers(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.root}/health").status_code == 200
        return False

    def figure(self, name: str) -> int:
        """What `/metrics` says of it."""
        text = httpx.get(f"{self.root}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60).text
        return int(float(re.findall(rf'^rollenv_{name}{{env="colours"}} (\S+)$', text, re.MULTILINE)[0]))

    def held(self) -> tuple[int, int, int]:
        """Connections, threads and children of the process."""
        process = psutil.Process(self.process.pid)
        established = [one for one in process.net_connections("tcp") if one.status != psutil.CONN_LISTEN]
        return len(established), process.num_threads(), len(process.children(recursive=True))


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.kill()
    server.process.wait()


@contextlib.contextmanager
def crowds(address: str, episodes: int, pause: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Clients, each of so many sessions; when they are here, all play."""
    command = [sys.executable, str(TESTS / "server" / "crowd.py"), address, TOKEN]
    numbers = [str(SESSIONS), str(episodes), str(pause)]
    clients = [
        subprocess.Popen([*command, str(seed), *numbers], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        for seed in range(CLIENTS)
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            said = client.stdout.readline()
            assert said == "playing\n", said + (client.stderr.read() if client.stderr else "")
        yield clients
    finally:
        for client in clients:
            client.kill()
            client.wait()


def raw(server: Server, content: bytes) -> socket.socket:
    """A connection on which that was sent, and nothing else is."""
    there = urlsplit(server.root)
    link = socket.create_connection((there.hostname, there.port))
    link.sendall(content)
    return link


def upgrade(server: Server, token: str = TOKEN) -> bytes:
    return (
        f"GET /colours/ws?session=half&token={token} HTTP/1.1\r\nHost: x\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


def abuse(server: Server) -> list[socket.socket]:
    """Whatever nobody should do, with the answers that it should have; returns connections that are half-open."""
    right = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{server.address.replace('http', 'ws', 1)}/ws"
    # Wrong tokens.
    for headers in ({}, {"Authorization": "Bearer other"}):
        assert httpx.post(f"{server.address}/reset", json={}, headers=headers).status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{url}?token=other")
    assert refused.value.response.status_code == 403
    # Messages of 100 MB: a body, and a frame.
    with contextlib.suppress(httpx.TransportError):  # it may be refused while it is still being sent
        body = b'{"task": "' + b"x" * HUGE + b'"}'
        assert httpx.post(f"{server.address}/reset", content=body, headers=right, timeout=60).status_code == 413
    with connect(f"{url}?token={TOKEN}", max_size=None) as link:
        with contextlib.suppress(ConnectionClosed):  # it may be refused while it is still being sent
            link.send("x" * HUGE)
        with pytest.raises(ConnectionClosed) as closed:
            link.recv(60)
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    # Messages that are none.
    with connect(f"{url}?token={TOKEN}") as link:
        for frame in ("{", "7", '{"type": "jump"}', '{"type": "step", "data": []}', b"\x00\xff"):
            link.send(frame)
            assert json.loads(link.recv(60))["type"] == "error"
        link.send('{"type": "reset", "data": {}}')
        assert json.loads(link.recv(60))["type"] == "observation"
    # Frames that are none: a reserved opcode, and one that is not masked.
    for frame in (b"\x83\x80\x00\x00\x00\x00", b"\x81\x02{}"):
        with raw(server, upgrade(server)) as broken:
            assert b" 101 " in broken.recv(1 << 12)
            broken.sendall(frame)
            broken.settimeout(60)
            while broken.recv(1 << 12):
                pass  # a close frame, and the end
    # A request that never ends, one that comes byte by byte, and a session that answers no pings.
    half = [raw(server, b"POST /colours/reset HTTP/1.1\r\nHost: x\r\nContent-Le"), raw(server, upgrade(server))]
    slow = raw(server, b"")
    for byte in b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":
        slow.sendall(bytes([byte]))
        time.sleep(0.002)
    slow.settimeout(60)
    assert slow.recv(1 << 12).startswith(b"HTTP/1.1 200")
    slow.close()
    return half


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_sessions_outlive_what_others_do_and_nothing_is_left(server: Server) -> None:
    draw = random.Random(0)
    alone = server.held()
    with crowds(server.address, episodes=3, pause=4.0) as clients:
        assert server.figure("sessions") > CLIENTS * SESSIONS * 0.9
        half = abuse(server)
        for client in draw.sample(clients, 2):
            time.sleep(draw.random())
            client.send_signal(signal.SIGKILL)
        # Whoever is killed leaves nothing behind, and whoever lives does not notice.
        until(lambda: server.figure("sessions") <= (CLIENTS - 2) * SESSIONS, 60)
        server.process.kill()
        server.process.wait()
        server.begin()
        half += abuse(server)
        living = [client for client in clients if client.poll() != -signal.SIGKILL]
        assert len(living) == CLIENTS - 2
        for client in living:
            said, complaints = client.communicate("finish\n", timeout=300)
            assert client.returncode == 0, complaints
            word, broken = said.split()
            assert word == "done"
            assert int(broken) >= SESSIONS // 2, "most of them were at an episode when the server was killed"
    until(lambda: server.figure("sessions") == 0, 60)
    for link in half[2:]:  # the others were the first server's
        link.close()
    until(lambda: server.held()[0] <= alone[0] + 1, 60)  # the connection of the last question may still close
    _, threads, children = server.held()
    assert children == alone[2]
    assert threads <= alone[1] + 32, "a pool of threads that grows on demand, to some bound"
    assert server.figure("sessions_opened_total") >= (CLIENTS - 2) * SESSIONS
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
