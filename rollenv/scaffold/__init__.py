"""The beginning of a project: a small environment that works, under a name of the user's own.

Invariant: `template/` is itself that project under the name `my-env`; another name takes the place of this one and
nothing else differs.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from rollenv.errors import RollenvError
from rollenv.files import new_folder
from rollenv.registration import load_plugins, registry

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


def new_project(name: str, parent: Path) -> Path:
    """Writes the project `name` into a new folder of that name, whole or not at all, and returns the folder.

    Args:
        name: lower-case words with hyphens between them, such as `my-env`; the package and the environment are called
            the same with underscores.
        parent: where the folder comes to lie.

    Raises:
        RollenvError: the name is none, or is taken; the folder exists already.
    """
    module = module_of(name)
    folder = parent / name
    if folder.exists() or folder.is_symlink():
        raise RollenvError(f"'{folder}' exists already: choose another name, or remove it")
    if not parent.is_dir():
        raise RollenvError(f"'{parent}' is no folder: make it first, or choose another")
    words = {"my_env": module, "my-env": name.replace("_", "-"), "MyEnv": camel(module)}
    with new_folder(folder) as being_made:
        _fill(being_made, files("rollenv.scaffold") / "template", words)
    return folder


def module_of(name: str) -> str:
    """The name of the package of the project `name`.

    Raises:
        RollenvError: it cannot be one, or is another package's or environment's.
    """
    if not _NAME.fullmatch(name):
        raise RollenvError(f"'{name}' is no name for an environment: say lower-case words with hyphens, such as my-env")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise RollenvError(f"'{name}' is a word of Python itself: choose another name")
    load_plugins()
    if any(module == spec.name for spec in registry.values()):
        raise RollenvError(f"there is an environment '{module}' already: choose another name")
    if importlib.util.find_spec(module) is not None:
        raise RollenvError(f"there is a Python module '{module}' already: choose another name")
    return module


def camel(module: str) -> str:
    """The name of a class.

    >>> camel("my_env")
    'MyEnv'
    """
    return "".join(word.capitalize() for word in module.split("_"))


def _fill(folder: Path, template: Traversable, words: dict[str, str]) -> None:
    for item in template.iterdir():
        if item.name == "__pycache__":
            continue
        # A wheel leaves files that begin with a dot out.
        target = folder / (".gitignore" if item.name == "gitignore" else _renamed(item.name, words))
        if item.is_dir():
            target.mkdir()
            _fill(target, item, words)
        else:
            target.write_text(_renamed(item.read_text(encoding="utf-8"), words), encoding="utf-8")


def _renamed(text: str, words: dict[str, str]) -> str:
    return re.sub("|".join(words), lambda found: words[found[0]], text)
