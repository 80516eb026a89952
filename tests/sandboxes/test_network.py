"""A sandbox reaches the addresses on its list, and no others."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator

import pytest
from in_loop import in_loop

from rollenv.sandboxes import MiB, SandboxError, SandboxSpec, create

FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=5).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("no:", error)
"""


class Answer(http.server.BaseHTTPRequestHandler):
    """Says what it was asked for."""

    def do_GET(self) -> None:
        said = f"asked {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """A web server of this machine, on all of its addresses."""
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a network list is served inside another network")


@pytest.mark.usefixtures("root")
@in_loop
async def test_what_is_on_the_list_is_reached_and_nothing_else(containing: str, port: int) -> None:
    spec = SandboxSpec(memory=128 * MiB, disk=4 * MiB, network=(f"localhost:{port}", f"127.0.0.2:{port}"))
    async with await create(spec, backend=containing) as sandbox:
        urls = [f"http://{host}:{port}/{host}?q=1" for host in ("localhost", "127.0.0.2", "127.0.0.3")]
        done = await sandbox.exec(["python3", "-c", FETCH, *urls, f"http://127.0.0.2:{port + 1}/"])
        lines = done.stdout.splitlines()
        assert lines[:2] == ["asked /localhost?q=1", "asked /127.0.0.2?q=1"]
        assert lines[2].startswith(f"403 127.0.0.3:{port} is not in this sandbox's network list")
        assert lines[3].startswith("403 ")
        tunnel = (
            f"exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT {{}}:{port} HTTP/1.1\\r\\n\\r\\n' >&3; head -n 1 <&3"
        )
        for host, status in (("127.0.0.2", "200"), ("127.0.0.3", "403"), ("example.com", "403")):
            assert (await sandbox.exec(tunnel.format(host))).stdout.split()[1] == status


@in_loop
async def test_without_a_list_there_is_no_network_at_all(containing: str, port: int) -> None:
    async with await create(SandboxSpec(memory=128 * MiB, disk=4 * MiB), backend=containing) as sandbox:
        urls = [f"http://127.0.0.1:{port}/", "http://1.1.1.1/", "http://example.com/"]
        done = await sandbox.exec(["python3", "-c", FETCH, *urls])
        assert [line[:3] for line in done.stdout.splitlines()] == ["no:"] * 3
        interfaces = await sandbox.exec("grep -v lo: /proc/net/dev | grep -c :")
        assert interfaces.stdout == "0\n"
        assert "proxy" not in (await sandbox.exec("env")).stdout


@in_loop
async def test_the_backend_that_contains_nothing_refuses_a_list() -> None:
    with pytest.raises(SandboxError, match="cannot bound the network"):
        await create(SandboxSpec(network=("localhost:80",)), backend="subprocess")
