"""The launch recipes: shells can read them, and the settings that they name exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

from rollenv.config import TrainConfig, load_config  # noqa: E402


@pytest.fixture
def recipes(root: Path) -> Path:
    return root / "docs" / "recipes"


def words(text: str) -> list[str]:
    """The settings in a command line."""
    return re.findall(r"\b(?:runtime|ray\.\w+|devices\.\w+|rollout\.\w+|vllm\.\w+)=[^\s\\\"$`]+", text)


@pytest.mark.parametrize("name", ["slurm.sbatch", "ray-cluster.sh", "vllm-cpu.sh"])
def test_shells_can_read_it(recipes: Path, name: str) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n", str(recipes / name)], check=True)


@pytest.mark.parametrize("name", ["slurm.sbatch", "ray-cluster.sh", "kuberay.yaml", "../cluster.md", "../inference.md"])
def test_every_setting_that_it_names_exists(recipes: Path, name: str) -> None:
    text = (recipes / name).read_text()
    found = [word for word in words(text) if not word.startswith("devices.share")]
    assert found or name == "ray-cluster.sh"
    for word in found:
        load_config(TrainConfig, "webshop", None, ["runtime=ray", "rollout.engine=vllm", word])


def test_slurm_gives_every_machine_one_task_and_time_to_stop(recipes: Path) -> None:
    lines = (recipes / "slurm.sbatch").read_text().splitlines()
    options = dict(line.removeprefix("#SBATCH --").split("=", 1) for line in lines if line.startswith("#SBATCH"))
    assert options["ntasks-per-node"] == "1"
    assert re.fullmatch(r"B:INT@\d+", options["signal"]), "the run stops at a boundary when it is told to"
    assert lines[0] == "#!/bin/bash"
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(not line.startswith("#SBATCH") for line in lines[first:]), "sbatch reads no options beyond that line"


def test_kubernetes_gets_a_ray_job_with_the_devices_of_its_command(recipes: Path) -> None:
    job = yaml.safe_load((recipes / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"]) * workers["replicas"]
    command = job["spec"]["entrypoint"]
    config = load_config(TrainConfig, "webshop", None, words(command))
    from rollenv.cluster.devices import device_map

    assert device_map(config.devices, gpus).layout == "disjoint"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in workers["template"]["spec"]["volumes"]}
    assert cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] == container["image"]
