"""Images come from packages, archives and registries; layers are shared, and plans touch nothing."""

from __future__ import annotations

import http.server
import io
import json
import platform
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_loop import in_loop

from rollenv.cli import main
from rollenv.sandboxes import MiB, SandboxError, SandboxSpec, UnknownImage, create, engine
from rollenv.sandboxes.images import packages as deb
from rollenv.sandboxes.images.build import make, store_archive
from rollenv.sandboxes.images.plan import plan
from rollenv.sandboxes.images.registry import RegistryError, parse, remote_bytes
from rollenv.sandboxes.images.store import ImageStore

STATUS = """Package: tool
Status: install ok installed
Architecture: amd64
Version: 1.2
Installed-Size: 10
Depends: libtool1 (>= 1), helper | other, python3:any

Package: libtool1
Status: install ok installed
Architecture: amd64
Version: 1
Pre-Depends: base

Package: provider
Status: install ok installed
Architecture: all
Version: 1
Provides: helper (= 1)

Package: base
Status: install ok installed
Architecture: all
Version: 1
Essential: yes

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: python3
Status: install ok installed
Architecture: amd64
Version: 3
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with a handful of packages, whose `/bin` is a link, as Debian's is."""
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    for folder in ("usr/bin", "usr/sbin", "usr/share/doc/tool", "usr/lib/tool", "etc/alternatives"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    for file in ("usr/bin/tool", "usr/share/doc/tool/README", "usr/lib/tool/a.py"):
        (tmp_path / file).write_text(file)
    (info / "tool:amd64.list").write_text(
        "/.\n/bin\n/bin/tool\n/usr/share/doc/tool/README\n/usr/lib/tool/a.py\n/gone\n"
    )
    return tmp_path


def test_what_a_package_needs_comes_along(machine: Path) -> None:
    dpkg = deb.Dpkg(machine)
    assert [p.name for p in dpkg.closure(["tool"])] == ["base", "libtool1", "provider", "python3", "tool"]
    with pytest.raises(SandboxError, match="apt-get install -y --no-install-recommends missing removed"):
        dpkg.closure(["tool", "missing", "removed"])


def test_files_are_found_where_they_lie_without_their_documentation(machine: Path) -> None:
    (machine / "usr/lib/tool/__pycache__").mkdir()
    (machine / "usr/lib/tool/__pycache__/a.cpython-311.pyc").write_text("")
    dpkg = deb.Dpkg(machine)
    files = dpkg.files(dpkg.closure(["tool"]))
    assert "/usr/bin/tool" in files
    assert "/bin" in files
    assert "/usr/lib/tool/__pycache__/a.cpython-311.pyc" in files
    assert not {"/gone", "/bin/tool", "/usr/share/doc/tool/README"} & set(files)


def test_the_same_packages_name_the_same_content(machine: Path) -> None:
    packages = deb.Dpkg(machine).closure(["tool"])
    assert deb.digest(packages) == deb.digest(deb.Dpkg(machine).closure(["tool"]))
    assert deb.digest(packages) != deb.digest(packages[:-1])


def test_a_machine_without_packages_says_what_else_there_is(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="--from TAR"):
        deb.Dpkg(tmp_path)


def archive(path: Path, **files: str) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_layers_are_shared_and_go_with_their_last_image(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    store_archive("base", archive(tmp_path / "base.tar", etc__a="1"), store=store)
    one = store_archive("one", archive(tmp_path / "one.tar", repo__x="1"), "base", store)
    two = store_archive("two", archive(tmp_path / "two.tar", repo__x="2"), "base", store)
    assert one.layers[0] == two.layers[0]
    assert one.layers[1] != two.layers[1]
    assert set(one.top()) == {"etc", "repo"}
    assert store.names() == ["base", "one", "two"]
    store.remove("two")
    assert not two.layers[1].exists()
    assert one.layers[0].exists()
    with pytest.raises(UnknownImage, match="did you mean 'one'"):
        store.find("onee")


def test_a_broken_archive_leaves_no_image(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    (tmp_path / "x.tar").write_text("nonsense" * 1000)
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        store_archive("x", tmp_path / "x.tar", store=store)
    assert store.names() == []
    assert list((store.folder / "layers").iterdir()) == []


@in_loop
async def test_a_repositorys_layer_is_seen_and_can_be_written(containing: str, tmp_path: Path) -> None:
    tar = archive(tmp_path / "layer.tar", testbed__a__txt="from the layer")
    make(f"demo/{containing}", containing, archive=tar, base="rollenv/default")
    spec = SandboxSpec(image=f"demo/{containing}", workdir="/testbed", memory=128 * MiB, disk=8 * MiB, user="root")
    async with await create(spec, backend=containing) as sandbox:
        assert (await sandbox.exec("cat a/txt; git --version")).stdout.startswith("from the layergit version")
        assert (await sandbox.exec("echo more >>a/txt && cat a/txt")).stdout == "from the layermore\n"
        await sandbox.restore()
        assert await sandbox.read("a/txt") == b"from the layer"
    if containing == "docker":
        engine.connect().remove_image(f"demo/{containing}")
    else:
        ImageStore().remove(f"demo/{containing}")


# -- registries and plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("python", ("registry-1.docker.io", "library/python", "latest")),
        ("swebench/x:v1", ("registry-1.docker.io", "swebench/x", "v1")),
        ("docker.io/a/b", ("registry-1.docker.io", "a/b", "latest")),
        ("ghcr.io/a/b:c", ("ghcr.io", "a/b", "c")),
        ("localhost:5000/a", ("localhost:5000", "a", "latest")),
        ("a/b@sha256:12", ("registry-1.docker.io", "a/b", "sha256:12")),
    ],
)
def test_names_are_taken_apart(name: str, parts: tuple[str, str, str]) -> None:
    assert parse(name) == parts


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry with one image for two kinds of machines, for those who have fetched a token."""

    def do_GET(self) -> None:
        host = self.headers["Host"]
        ours = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        index = {"manifests": [{"digest": f"sha256:{m}", "platform": {"architecture": m}} for m in ("other", ours)]}
        documents = {
            "/v2/a/b/manifests/v1": index,
            f"/v2/a/b/manifests/sha256:{ours}": {"layers": [{"size": 1000}, {"size": 234}]},
        }
        if self.path.startswith("/token?"):
            return self.answer(200, {"token": "t"})
        if self.headers.get("Authorization") != "Bearer t":
            return self.answer(401, {}, f'Bearer realm="http://{host}/token",service="s",scope="repository:a/b:pull"')
        return self.answer(200, documents[self.path]) if self.path in documents else self.answer(404, {})

    def answer(self, status: int, document: object, challenge: str = "") -> None:
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_registry_tells_how_much_it_would_send(registry: str) -> None:
    assert remote_bytes(f"{registry}/a/b:v1") == 1234
    with pytest.raises(RegistryError, match="has no image"):
        remote_bytes(f"{registry}/a/b:v2")


def test_a_plan_says_what_is_there_what_comes_and_what_cannot(docker: str, registry: str) -> None:
    names = ["rollenv/default", f"{registry}/a/b:v1", f"{registry}/a/b:v2", "rollenv/default"]
    made = plan(names, docker)
    assert {image.image: image.action for image in made.images} == dict(
        zip(names, ("there", "pull", "missing", "there"), strict=True)
    )
    assert made.missing == [f"{registry}/a/b:v2"]
    assert made.needed == int(1234 * 2.5)
    assert made.fits


def test_a_plan_of_tasks_touches_nothing(
    bubblewrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLENV_IMAGES", str(tmp_path / "images"))
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"image": "rollenv/default"}\n{"image": "rollenv/default"}\n')
    assert main(["images", "plan", "--tasks", str(tasks), "--backend", bubblewrap, "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert [image["action"] for image in said["images"]] == ["build"]
    assert 50 * MiB < said["needed"] < 1000 * MiB
    assert not (tmp_path / "images").exists()
    tasks.write_text('{"image": "no/such"}\n')
    assert main(["images", "plan", "--tasks", str(tasks), "--backend", bubblewrap]) == 1
    tasks.write_text("{}\n")
    assert main(["images", "plan", "--tasks", str(tasks), "--backend", bubblewrap]) == 2
    assert "line 1" in capsys.readouterr().err
