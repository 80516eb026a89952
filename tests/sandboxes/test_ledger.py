"""The ledger knows what there is, whoever made it dies as it may, and reaping touches nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rollenv.cli import main
from rollenv.errors import RollenvError
from rollenv.sandboxes import cgroups, engine
from rollenv.sandboxes.ledger import Ledger, folders_of, reap, state_folder

OWNER = Path(__file__).with_name("owner.py")


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledgers"


def die(ledger: Ledger) -> None:
    """Lets go of the lock, as the kernel does for a dead process, and of nothing else."""
    os.close(ledger._fd)
    ledger._fd = -1


def test_what_a_dead_owner_left_is_reaped_and_its_ledger_with_it(ledgers: Path) -> None:
    owner = Ledger(ledgers, run="run-1")
    folder = owner.new_folder()
    (folder / "file").write_text("x")
    die(owner)
    reaped = reap(ledgers)
    assert [(entry.kind, entry.name, entry.run) for entry in reaped] == [("folder", str(folder), "run-1")]
    assert not folder.exists()
    assert list(ledgers.iterdir()) == []
    assert reap(ledgers) == []


def test_what_a_living_owner_has_is_left_alone(ledgers: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rollenv.sandboxes.ledger import Ledger\n"
        "print(Ledger(Path(sys.argv[1])).new_folder(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(ledgers)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        try:
            assert reap(ledgers) == []
            assert folder.is_dir()
        finally:
            owner.kill()
    assert [entry.name for entry in reap(ledgers)] == [str(folder)]


def test_a_forked_child_does_not_keep_its_parents_things_alive(ledgers: Path) -> None:
    owner = Ledger(ledgers)
    folder = owner.new_folder()
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    try:
        die(owner)
        assert [entry.name for entry in reap(ledgers)] == [str(folder)]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_was_written_down_and_never_made_is_no_hindrance(ledgers: Path) -> None:
    owner = Ledger(ledgers)
    owner.record("folder", str(folders_of(ledgers) / owner.new_name()))
    owner.record("cgroup", owner.new_name())
    die(owner)
    assert len(reap(ledgers)) == 2
    assert list(ledgers.iterdir()) == []


def test_what_was_crossed_out_is_not_looked_for(ledgers: Path) -> None:
    owner = Ledger(ledgers)
    kept, gone = owner.new_folder(), owner.new_folder()
    owner.remove_folder(gone)
    assert [entry.name for entry in owner.live()] == [str(kept)]
    die(owner)
    assert [entry.name for entry in reap(ledgers)] == [str(kept)]


def test_half_a_line_at_the_end_was_never_acted_upon(ledgers: Path) -> None:
    owner = Ledger(ledgers)
    folder = owner.new_folder()
    os.write(owner._fd, b'{"kind": "folder", "na')
    die(owner)
    assert [entry.name for entry in reap(ledgers)] == [str(folder)]


def test_names_that_are_not_the_owners_are_never_removed(ledgers: Path, tmp_path: Path) -> None:
    precious = [tmp_path / "precious", folders_of(ledgers) / "rollenv-another-owner-0", Path("/sys/fs/cgroup/memory")]
    for folder in precious[:2]:
        folder.mkdir(parents=True)
    owner = Ledger(ledgers)
    for folder in precious:
        owner.record("folder", str(folder))
    owner.record("folder", f"{folders_of(ledgers)}/{owner.new_name()}/../../../precious")
    owner.record("cgroup", "rollenv-another-owner-0")
    owner.record("cgroup", f"{owner.new_name()}/../precious")
    die(owner)
    reap(ledgers)
    assert all(folder.exists() for folder in precious if folder != precious[2] or folder.parent.exists())


def test_links_in_a_folder_are_removed_and_not_followed(ledgers: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    owner = Ledger(ledgers)
    (owner.new_folder() / "link").symlink_to(tmp_path / "precious")
    die(owner)
    assert len(reap(ledgers)) == 1
    assert (tmp_path / "precious" / "file").read_text() == "x"


def test_a_dry_run_removes_nothing(ledgers: Path) -> None:
    owner = Ledger(ledgers)
    folder = owner.new_folder()
    die(owner)
    assert [entry.name for entry in reap(ledgers, dry=True)] == [str(folder)]
    assert folder.is_dir()


def test_things_of_an_engine_that_is_down_wait_for_it(ledgers: Path, caplog: pytest.LogCaptureFixture) -> None:
    owner = Ledger(ledgers)
    owner.record("container", owner.new_name(), "unix:///no/such/engine.sock")
    folder = owner.new_folder()
    die(owner)
    assert [entry.name for entry in reap(ledgers)] == [str(folder)]
    assert len(list(ledgers.iterdir())) == 1
    assert "cannot remove container" in caplog.text


def test_a_state_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RollenvError, match="set ROLLENV_STATE"):
        Ledger(tmp_path / "file" / "ledgers")


# -- kill -9 ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """What a killed owner leaves behind: whatever carries its name, and its sandboxes' processes."""

    owner: int
    processes: list[psutil.Process]

    def things(self) -> dict[str, set[str]]:
        """What there still is of it. Other owners' things come and go meanwhile."""
        own, ledger = f"rollenv-{self.owner}-", f"{self.owner}-"
        groups = [top for top in (cgroups.MOUNT, *(cgroups.MOUNT / name for name in cgroups._NEEDED)) if top.is_dir()]
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        found = {
            "mounts": {mount for mount in mounts if own in mount},
            "groups": {str(path) for top in groups for path in top.glob(f"{own}*")},
            "processes": {str(process.pid) for process in self.processes if alive(process)},
            "folders": {str(path) for path in state_folder().rglob("*") if path.name.startswith((own, ledger))},
        }
        return {kind: names for kind, names in found.items() if names}

    def settled(self, seconds: float = 20.0) -> dict[str, set[str]]:
        """What there is once nothing is left or time is over: the kernel takes down namespaces by and by."""
        deadline = time.monotonic() + seconds
        while (there := self.things()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return there


def alive(process: psutil.Process) -> bool:
    """Whether it is that process still, and not one that ended and that nobody asked for."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def with_children(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.fixture
def killed_owner(tmp_path: Path) -> Iterator[Callable[[str, int], Left]]:
    """Starts an owner of so many sandboxes, and kills it when all are at work."""

    def start_and_kill(backend: str, number: int) -> Left:
        command = [sys.executable, str(OWNER), backend, str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            try:
                assert owner.stdout.readline().strip() == "ready"
                processes = with_children(owner.pid)
                if backend == "docker":
                    for container in containers(owner.pid):
                        first = engine.connect().inspect_container(container)["State"]["Pid"]
                        processes += with_children(first)
            finally:
                owner.send_signal(signal.SIGKILL)
        assert len(processes) > number
        return Left(owner.pid, processes)

    yield start_and_kill
    reap()


def test_twenty_bubblewrap_sandboxes_of_a_killed_owner_are_gone(
    bubblewrap: str, killed_owner: Callable[[str, int], Left], capsys: pytest.CaptureFixture[str]
) -> None:
    Ledger.current()
    reap()  # what earlier tests' owners left
    left = killed_owner(bubblewrap, 20)
    assert left.things()
    assert main(["gc"]) == 0
    if cgroups.hierarchies() is not None:
        assert "removed 20 cgroups" in capsys.readouterr().out
    assert left.settled() == {}


@pytest.fixture
def bystander(docker: str) -> Iterator[Any]:
    """A container that looks much like ours, and is not."""
    api = engine.connect()
    made = api.create_container(
        "rollenv/default", ["sleep", "600"], name="rollenv-1-bystander-0", labels={"rollenv.owner": "1-bystander"},
        host_config=api.create_host_config(network_mode="none"),
    )  # fmt: skip
    api.start(made["Id"])
    yield made["Id"]
    api.remove_container(made["Id"], force=True)


def containers(owner: int | None = None) -> set[str]:
    """An owner's; None: all but this process's own, since pools that earlier tests warmed grow and shrink."""
    found = {one["Id"]: one["Names"] or () for one in engine.connect().containers(all=True)}
    prefix = f"/rollenv-{os.getpid() if owner is None else owner}-"
    owned = {id for id, names in found.items() if any(name.startswith(prefix) for name in names)}
    return found.keys() - owned if owner is None else owned


@pytest.mark.slow
def test_twenty_containers_of_a_killed_owner_are_reaped_and_nothing_else(
    docker: str, bystander: str, killed_owner: Callable[[str, int], Left]
) -> None:
    Ledger.current()
    there = containers()
    left = killed_owner(docker, 20)
    assert len(containers(left.owner)) == len(containers() - there) == 20
    reaped = reap()  # what the first sandbox of every later run does
    assert [entry.kind for entry in reaped] == ["container"] * 20
    assert containers() == there
    assert bystander in containers()
    assert left.settled() == {}


def test_a_container_of_another_owner_is_not_removed_under_any_name(docker: str, bystander: str, ledgers: Path) -> None:
    owner = Ledger(ledgers)
    owner.record("container", "rollenv-1-bystander-0", engine.address())
    owner.record("container", bystander, engine.address())
    die(owner)
    reap(ledgers)
    assert bystander in containers()
