"""`rollenv new`: what it writes is a project that works, under the name that was asked for."""

from __future__ import annotations

import json
import os
import re
import shlex
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollenv.cli import main

VERB = ["-m", "rollenv"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A new project, installed into an environment that sees this one's packages; and that environment's Python."""
    parent = tmp_path_factory.mktemp("new")
    assert main(["new", "red-courier", "--in", str(parent)]) == 0
    venv.create(parent / "venv", with_pip=False)
    python = parent / "venv" / "bin" / "python"
    inside = next((parent / "venv" / "lib").glob("python3*/site-packages"))
    seen = [folder for folder in sys.path if folder.endswith("site-packages")] or site.getsitepackages()
    (inside / "seen.pth").write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in seen))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-build-isolation",
        "-e",
        ".",
    ]
    done = subprocess.run(pip, cwd=parent / "red-courier", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return parent / "red-courier", python


def said(python: Path, folder: Path, *words: str) -> str:
    """What a command of the new project's environment prints."""
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # meant for these tests
    done = subprocess.run([python, *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_passes_its_own_tests(project: Any) -> None:
    folder, python = project
    assert re.search(r"^\d+ passed", said(python, folder, "-m", "pytest", "-q", "-p", "no:cacheprovider"), re.MULTILINE)


def test_nothing_of_the_template_name_is_left(project: Any) -> None:
    folder, _ = project
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "Dockerfile", ".gitignore", "red_courier/env.py", "tests/test_env.py"} <= set(files)
    for name, path in files.items():
        if "__pycache__" not in name:
            assert not re.search(r"my[-_]?env", name + path.read_text(errors="replace"), re.IGNORECASE), name


def test_its_oracle_solves_the_test_tasks(project: Any) -> None:
    folder, python = project
    assert "success  100.0%" in said(
        python, folder, *VERB, "eval", "--env", "red_courier", "--agent", "oracle", "-n", "5"
    )


def test_the_command_of_its_dockerfile_serves_it(project: Any) -> None:
    folder, python = project
    lines = (folder / "Dockerfile").read_text().splitlines()
    command = json.loads(next(line for line in lines if line.startswith("CMD")).removeprefix("CMD"))
    assert command[0] == "rollenv"
    words = [{"0.0.0.0": "127.0.0.1", "8000": "0"}.get(word, word) for word in command[1:]]
    with subprocess.Popen([python, *VERB, *words], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" at ")[1].strip()
            begun = httpx.post(f"{address}/reset", json={"task": "a1-b1-b2"}, timeout=60).json()
            assert begun["observation"]["text"] == "The parcel is east."
        finally:
            server.terminate()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_as_its_readme_says_lifts_success(project: Any) -> None:
    """Less than half of its steps do, already."""
    folder, python = project
    said(
        python, folder, *VERB, "train", "--env", "red_courier", "--model", "scratch", "--out", "whole", "--steps", "12"
    )
    lines = map(json.loads, (folder / "whole" / "metrics.jsonl").read_text().splitlines())
    success = [line["eval_success"] for line in lines if "eval_success" in line]
    assert success[-1] >= success[0] + 0.15


def commands_of(text: str) -> list[list[str]]:
    """The commands of rollenv in the first block of a Markdown text."""
    block = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[0]
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("rollenv")]


def test_the_commands_of_its_readme_and_the_how_to_train_it(project: Any, root: Path) -> None:
    """As they stand there, with fewer episodes and steps."""
    folder, python = project
    how_to = (root / "docs" / "how-to-environment.md").read_text().replace("my_env", "red_courier")
    commands = commands_of((folder / "README.md").read_text())
    assert [command[0] for command in commands] == ["play", "eval", "train", "eval", "serve"]
    assert commands_of(how_to) == [["new", "my-env"], *commands]
    fewer = ["rollout.groups=2", "rollout.group_size=2", "eval.episodes=4", "threads=1"]
    (folder / "red_courier" / "imitate.toml").write_text(
        "episodes = 20\nepochs = 1\n[agent]\nsystem = ''\nlist_actions = false\n[eval]\nepisodes = 4\n"
        "[shape]\nhidden = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nmlp = 32\nvocabulary = 300\ncontext = 512\n"
    )
    said(python, folder, *VERB, *commands[2], "--steps", "1", *fewer)
    assert "4 episodes" in said(python, folder, *VERB, *commands[3], "-n", "4", "threads=1")
    script = next(
        block for block in re.findall(r"```python\n(.*?)```", how_to, re.DOTALL) if block.startswith("# run.py")
    )
    words = ", ".join(f'"{word}"' for word in ["steps=1", *fewer])
    assert 0.0 <= float(said(python, folder, "-c", script.replace('"steps=15"', words)).split()[-1]) <= 1.0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Bad", "no name for an environment"),
        ("../up", "no name for an environment"),
        ("3d", "no name for an environment"),
        ("a--b", "no name for an environment"),
        ("webshop", "an environment 'webshop' already"),
        ("json", "a Python module 'json' already"),
        ("pytest-timeout", "a Python module 'pytest_timeout' already"),
        ("lambda", "a word of Python"),
    ],
)
def test_a_name_that_will_not_do_is_refused(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name, "--in", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err
    assert not os.listdir(tmp_path)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "blue-courier" / "kept.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    assert main(["new", "blue-courier", "--in", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (kept.read_text(), os.listdir(kept.parent)) == ("mine", ["kept.txt"])
    assert main(["new", "blue-courier", "--in", str(tmp_path / "nowhere")]) == 2
    assert "is no folder" in capsys.readouterr().err
