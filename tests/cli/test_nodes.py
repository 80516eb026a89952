"""A run on a cluster of several nodes, from the command line, while nodes go away: killed, or told to leave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import psutil
from toys import warm_policy

from rollenv.cluster.ray_runtime import AS_NICE_AS_US
from rollenv.rollout.ledger import Ledger
from rollenv.trainers import checkpoint
from rollenv.trainers.metrics import read_metrics

pytestmark = pytest.mark.timeout(600)  # a node is several processes that all load torch

IMPORT = ["--import", str(Path(__file__).parent / "colours_env.py")]
ROLLENV = [sys.executable, "-X", "faulthandler", "-m", "rollenv"]
SMALL = ["agent.system=", "agent.list_actions=false", "rollout.groups=2", "rollout.group_size=4", "threads=1"]
SMALL += ["sampling.max_tokens=8", "eval.episodes=4", "eval.every=0", "checkpoint.every=0"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm") / "model"
    warm_policy().save(folder)
    return folder


@pytest.fixture
def nodes() -> Iterator[Any]:
    """Device 0 and 1 on the head, 2 and 3 on a node each, whichever comes first."""
    from ray.cluster_utils import Cluster

    head = {"num_gpus": 2, "num_cpus": 2, "include_dashboard": False, "_system_config": AS_NICE_AS_US}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_gpus=1, num_cpus=1)
        yield cluster
    finally:
        while Run.begun:
            Run.begun.pop().end_now()
        cluster.shutdown()


class Run:
    """`rollenv train` on a cluster, and what it says."""

    begun: ClassVar[list[Run]] = []

    def __init__(self, model: Path, out: Path, cluster: Any, *words: str) -> None:
        command = ["train", *IMPORT, "--env", "colours", "--model", str(model), "--out", str(out), *SMALL]
        command += ["runtime=ray", f"ray.address={cluster.address}", *words]
        self.process = subprocess.Popen(
            [*ROLLENV, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.begun.append(self)
        self.said: list[str] = []

    def until(self, seen: Callable[[str], bool]) -> None:
        """Reads on until a line is `seen`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            print(line, end="")  # shown when the test fails, also when its time is up
            if seen(line):
                return
        raise AssertionError("".join(self.said))

    def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        self.said += self.process.stdout
        return self.process.wait(), "".join(self.said)

    def end_now(self) -> None:
        """What a failed test has left ends, and says where it was."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            print(self.process.communicate()[0])


def step(n: int) -> Callable[[str], bool]:
    return lambda line: line.split()[:1] == ["step"] and line.split()[1].startswith(f"{n}/")


def node_of(device: int, cluster: Any) -> Any:
    """The node of device 2 or 3: they are numbered by the nodes' ids."""
    alone = sorted(cluster.worker_nodes, key=lambda node: str(node.node_id))
    return alone[device - 2]


def node_in_use(cluster: Any) -> Any:
    """The only node of one device that has given it away: Ray takes any of those that are alike."""
    ask = (
        "import json, ray, sys; ray.init(sys.argv[1], logging_level='ERROR', log_to_driver=False);"
        "print(json.dumps(ray._private.state.available_resources_per_node()))"
    )
    command = [sys.executable, "-c", ask, cluster.address]
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env).stdout
    free = json.loads(said.splitlines()[-1])
    (node,) = (node for node in cluster.worker_nodes if not free[str(node.node_id)].get("GPU"))
    return node


def tell_to_leave(node: Any, cluster: Any) -> None:
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

    client = GcsClient(address=cluster.address)
    accepted, why = client.drain_node(node.node_id, DRAIN_NODE_REASON_PREEMPTION, "preempted", 0)
    assert accepted, why


def workers(cluster: Any) -> list[int]:
    """Processes of Ray workers of any run on this cluster, or that no cluster has: other tests may have theirs."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            said = " ".join(parent.cmdline()) if parent is not None else ""
            theirs = "raylet" in said and str(cluster.address) not in said
            if "".join(process.cmdline()[:1]).startswith("ray::_Actor") and not theirs:
                found.append(process.pid)
    return found


def assert_whole(out: Path, steps: int, cluster: Any) -> None:
    """Every step is there, the ledger is balanced, and no worker is left."""
    assert [line["step"] for line in read_metrics(out)] == list(range(steps + 1))
    last = checkpoint.newest(out)
    assert last is not None
    assert Ledger.from_dict(last.state()["ledger"]).balanced
    for _ in range(100):
        if not workers(cluster):
            break
        time.sleep(0.1)
    assert workers(cluster) == []


def test_a_node_that_is_killed_costs_no_step(model: Path, tmp_path: Path, nodes: Any) -> None:
    out = tmp_path / "run"
    run = Run(model, out, nodes, "devices.policy=0", "devices.rollout=1-3", "--steps", "8")
    run.until(step(2))
    assert len(workers(nodes)) >= 4, "a rank and three engines are seen while they are there"
    nodes.remove_node(node_of(3, nodes), allow_graceful=False)
    code, said = run.end()
    assert code == 0, said
    assert_whole(out, 8, nodes)


def test_engines_leave_a_node_that_is_told_to_leave_before_it_goes(model: Path, tmp_path: Path, nodes: Any) -> None:
    out = tmp_path / "run"
    run = Run(model, out, nodes, "devices.policy=0", "devices.rollout=1-3", "--steps", "100000")
    run.until(step(2))
    leaving = node_of(3, nodes)
    tell_to_leave(leaving, nodes)
    run.until(lambda line: "is on a machine that leaves" in line)
    run.until(lambda line: line.startswith("step"))
    nodes.remove_node(leaving, allow_graceful=False)
    assert_whole(out, interrupted_later(run, out), nodes)
    assert "died" not in "".join(run.said)


def test_ranks_move_from_a_node_that_is_told_to_leave(model: Path, tmp_path: Path, nodes: Any) -> None:
    """To a node that is like it, from a checkpoint that is written for it."""
    out = tmp_path / "run"
    run = Run(model, out, nodes, "devices.policy=2", "devices.rollout=0-1", "--steps", "100000")
    run.until(step(2))
    tell_to_leave(node_in_use(nodes), nodes)
    run.until(lambda line: "training rank 'rank-0' is on a machine that leaves" in line)
    assert_whole(out, interrupted_later(run, out), nodes)


def interrupted_later(run: Run, out: Path) -> int:
    """Lets the run make three more steps and interrupts it; returns how many it has made."""
    for _ in range(3):
        run.until(lambda line: line.startswith("step"))
    run.process.send_signal(signal.SIGINT)
    code, said = run.end()
    assert code == 130, said
    last = checkpoint.newest(out)
    assert last is not None
    assert last.state()["ledger"]["failed"] == 0
    return last.step
