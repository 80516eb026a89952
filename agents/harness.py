"""Harness: the agent is somebody else's program, inside the sandbox, that asks the model by OpenAI's API.

It says which program and how it is begun. `rollenv.gateway.harness` plays such episodes: it answers what the program
asks, and keeps every token.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.agents.swe import SUBMIT
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.config.rollout import RolloutConfig

FOLDER = "/tmp/rollenv-harness"
"""In the sandbox: the task as `task.md`, and the program's own files, if it brings any."""
FILES_LIMIT = 8 << 20
"""Bytes that a program's files may have, packed; what is larger belongs into an image."""
OUR_STEPS = 8
"""More than are made around a program."""
SPARE_SECONDS = 60.0
"""What a step has beyond the program's own time."""


class Harness:
    """A command line agent that works in the sandbox, in the repository's folder, until it ends.

    It finds the task in the file that `$ROLLENV_TASK` names, and the model where OpenAI's clients look for one:
    `OPENAI_BASE_URL`, `OPENAI_API_BASE`, `OPENAI_API_KEY`, `OPENAI_MODEL`. When it ends, its work is judged, whatever
    its exit code.

    Args:
        command: the program and its arguments, for the sandbox's shell, such as `python3 $ROLLENV_FILES/agent.py`.
        files: a file or folder of this machine that `$ROLLENV_FILES` is a copy of; None: the image has all it needs.
        seconds: after so long it is ended, and its work is judged as it stands.

    Raises:
        RollenvError: an argument makes no sense, or the files cannot be read or are too large.
    """

    def __init__(self, command: str, files: str | None = None, seconds: float = 1800.0) -> None:
        if not isinstance(command, str) or not command.strip():
            raise RollenvError("agent.command must say which program is the agent, such as 'python3 agent.py'")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise RollenvError(f"agent.seconds must be more than 0, not {seconds!r}")
        self.command, self.seconds = command, float(seconds)
        self._packed, self._files = ("", "") if files is None else _packed(Path(files))

    def environment(self, arguments: Mapping[str, Any], port: int) -> dict[str, Any]:
        """What the environment is made with, so that the program can reach this machine's `port`, and has time.

        What bounds an agent of the environment's own does not bound our few steps around a program.

        Args:
            arguments: what it is made with otherwise; what they let the program reach stays.
            port: where the model is.

        Raises:
            RollenvError: they bound an agent of the environment's own.
        """
        bounds = {"command_timeout": self.seconds, "max_steps": OUR_STEPS, "max_tokens": None, "max_seconds": None}
        if taken := [name for name in bounds if name in arguments]:
            raise RollenvError(
                f"{', '.join(taken)}: this bounds agents of the environment's own; a program in the sandbox is bounded "
                "by agent.seconds: leave it out"
            )
        given = arguments.get("network") or ()
        network = [*([given] if isinstance(given, str) else given), f"localhost:{port}"]
        return {**arguments, "network": network, **bounds}

    def patience(self, rollout: RolloutConfig) -> RolloutConfig:
        """How episodes are played, with time for a program in one step."""
        return rollout.model_copy(update={"step_seconds": max(rollout.step_seconds, self.seconds + SPARE_SECONDS)})

    @property
    def sha256(self) -> str:
        """Of the program as it is: its command and its files."""
        return hashlib.sha256(f"{self.command}\n{self._files}".encode()).hexdigest()

    def actions(self, task: str, address: str, key: str) -> Iterator[str]:
        """What is done in an episode; the program runs in the last action but one, `submit` is the last.

        Args:
            task: what the environment shows first.
            address: where the model is, as seen from the sandbox.
            key: what the model wants as API key.
        """
        yield _call("create", path=f"{FOLDER}/task.md", content=task)
        if self._packed:
            into = f"mkdir -p {FOLDER}/files && base64 -d <<'END' | tar -xzo -C {FOLDER}/files"
            yield _call("bash", command=f"{into}\n{self._packed}\nEND")
        variables: Mapping[str, str] = {
            "ROLLENV_TASK": f"{FOLDER}/task.md",
            "ROLLENV_FILES": f"{FOLDER}/files",
            "OPENAI_BASE_URL": address,
            "OPENAI_API_BASE": address,
            "OPENAI_API_KEY": key,
            "OPENAI_MODEL": "policy",
        }
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        yield _call("bash", command=f"(\nexport {exports}\n{self.command}\n)")
        yield SUBMIT


def _call(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def _packed(path: Path) -> tuple[str, str]:
    """A file, or what is in a folder, as an archive in base64; and a hash over names and contents."""
    if not path.exists():
        raise RollenvError(f"agent.files: there is no '{path}'")
    found = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    root = path if path.is_dir() else path.parent
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in found:
            archive.add(file, arcname=str(file.relative_to(root)), recursive=False)
    if packed.tell() > FILES_LIMIT:
        raise RollenvError(
            f"agent.files: '{path}' is larger than {FILES_LIMIT >> 20} MiB when packed: put it into an image "
            "('rollenv images build NAME --from TAR --base IMAGE')"
        )
    digest = hashlib.sha256()
    for file in found:
        digest.update(f"\n{file.relative_to(root)} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return base64.encodebytes(packed.getvalue()).decode().strip(), digest.hexdigest()
