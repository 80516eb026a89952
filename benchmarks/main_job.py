"""The main job: `rollenv train --env webshop`, from the seed policy's success to that after training, seed by seed.

Success is measured on the panel of the environment's settings (WebShop: the first 200 test goals of the generated
store; ALFWorld: the 180 games of valid_unseen), before the first and after the last step, by the run itself. Minutes
are those of the whole command; beside them those that it computed, on all cores together: on a busy machine they tell
more.

    python benchmarks/main_job.py --seeds 0 1 2
    python benchmarks/main_job.py --env alfworld --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(env: str, seed: int, folder: Path, words: list[str]) -> dict[str, float]:
    """Trains with one seed and returns its figures."""
    command = [str(Path(sys.executable).parent / "rollenv"), "train", "--env", env, "--seed", str(seed)]
    began, computed = time.perf_counter(), cpu_seconds()
    subprocess.run([*command, "--out", str(folder), *words], check=True)
    minutes = (time.perf_counter() - began) / 60
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    panels = [line for line in lines if "eval_success" in line]
    steps = [line for line in lines if line["step"] > 0]
    return {
        "seed": seed,
        "before": panels[0]["eval_success"],
        "after": panels[-1]["eval_success"],
        "reward_before": panels[0]["eval_reward"],
        "reward_after": panels[-1]["eval_reward"],
        "steps": len(steps),
        "episodes": sum(line["episodes"] for line in steps),
        "minutes": minutes,
        "cpu_minutes": (cpu_seconds() - computed) / 60,
    }


def cpu_seconds() -> float:
    """What finished child processes have computed so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="webshop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.out or Path(temporary)
        figures = [run(args.env, seed, root / f"seed-{seed}", words) for seed in args.seeds]
    for line in figures:
        print(
            f"seed {line['seed']}: success {line['before']:.1%} -> {line['after']:.1%}, "
            f"score {line['reward_before']:.3f} -> {line['reward_after']:.3f}, "
            f"{line['steps']:.0f} steps, {line['episodes']:.0f} episodes, "
            f"{line['minutes']:.1f} minutes ({line['cpu_minutes']:.1f} computing)"
        )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
