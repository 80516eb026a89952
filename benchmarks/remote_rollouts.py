"""What it costs to play on a server of environments: training steps with remote rollouts beside those with local ones.

WebShop's default job (seed policy, settings) on an environment whose steps sleep (slow_shop.py; 50 ms in the mean), in
this process and on `rollenv serve` as a process of its own on the same machine; both meet the same latencies, and train
the same episodes, so that the same steps are the slow ones. Local and remote take turns; the first step of each, in
which pipelines fill, is left out. Printed: the mean seconds of a training step both ways, and their ratio; and the
median of the ratios step by step.

Usage: python benchmarks/remote_rollouts.py [--steps 8] [--rounds 3] [--latency 0.05] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import slow_shop

from rollenv.config import TrainConfig, load_config
from rollenv.server.remote import play_remotely
from rollenv.trainers.run import TrainRun

SERVER = """
import sys
sys.path.insert(0, {here!r})
import slow_shop
slow_shop.register({latency})
from rollenv.cli import main
sys.exit(main(["serve", "--env", "slowshop", "--port", "0"]))
"""


@contextlib.contextmanager
def server(latency: float) -> Iterator[str]:
    """The address of the slow shop on a server of its own."""
    code = SERVER.format(here=str(Path(__file__).parent), latency=latency)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def play(steps: int, folder: Path) -> list[dict[str, Any]]:
    """Trains, and returns the figures of all steps but the first."""
    words = [f"steps={steps}", "eval.episodes=1", "eval.every=0", "checkpoint.every=0", f"out={folder}"]
    config: TrainConfig = load_config(TrainConfig, "slowshop", None, words)
    lines: list[dict[str, Any]] = []

    def on_figures(kind: str, figures: dict[str, Any]) -> None:
        if kind == "step":
            lines.append(figures)

    asyncio.run(TrainRun(config, slow_shop.SEED_POLICY, None, on_figures).train())
    return lines[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.05, help="mean seconds of an environment's step")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    lines: dict[str, list[dict[str, Any]]] = {"local": [], "remote": []}
    with tempfile.TemporaryDirectory() as temporary, server(options.latency) as address:
        for n in range(options.rounds):
            slow_shop.register(options.latency)
            lines["local"] += play(options.steps, Path(temporary) / f"local-{n}")
            play_remotely(address)
            lines["remote"] += play(options.steps, Path(temporary) / f"remote-{n}")
    means = {way: statistics.mean(line["seconds"] for line in ours) for way, ours in lines.items()}
    for way, ours in lines.items():
        training = statistics.mean(line["train_seconds"] for line in ours)
        reward = statistics.mean(line["reward"] for line in ours)
        print(f"{way:>6}: {means[way]:.2f} s/step, of which training {training:.2f}; mean reward {reward:.4f}")
    ratio = means["remote"] / means["local"]
    pairs = zip(lines["remote"], lines["local"], strict=True)
    median = statistics.median(remote["seconds"] / local["seconds"] for remote, local in pairs)
    print(f"remote against local: {ratio:.3f} times the seconds (goal 1.15); step by step {median:.3f} in the median")
    if options.json:
        options.json.write_text(json.dumps({"seconds": means, "ratio": ratio, "median": median}, indent=1))


if __name__ == "__main__":
    main()
