"""pyproject.toml lists every folder, module, data file and entry point there is, and nothing else."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]


def folder_of(package: str) -> Path:
    """Where setuptools looks for a package: under the longest name that is mapped."""
    parent = package
    while parent not in FOLDERS:
        parent = parent.rpartition(".")[0]
    return ROOT.joinpath(FOLDERS[parent], *package.removeprefix(parent).strip(".").split("."))


def package_of(folder: Path) -> str:
    """The import name of a folder."""
    top, *rest = folder.relative_to(ROOT).parts
    names = {mapped: name for name, mapped in FOLDERS.items()}
    return ".".join([names[top], *rest])


def tracked_or_new() -> list[Path]:
    """Files that git has or would take, in the mapped folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *FOLDERS.values()]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / line for line in listed if (ROOT / line).is_file()]


def test_every_folder_with_python_in_it_is_a_listed_package() -> None:
    found = {package_of(path.parent) for path in tracked_or_new() if path.suffix == ".py" and not _is_data(path)}
    assert found == set(SETUPTOOLS["packages"])
    assert SETUPTOOLS["packages"] == sorted(SETUPTOOLS["packages"])


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_a_package_is_imported_from_its_folder(package: str) -> None:
    folder = folder_of(package)
    assert (folder / "__init__.py").is_file()
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).resolve() == folder / "__init__.py"


def test_every_other_file_is_package_data() -> None:
    left_out = [
        str(path.relative_to(ROOT))
        for path in tracked_or_new()
        if path.suffix != ".py" and path.name != "README.md" and not _is_data(path)
    ]
    assert left_out == []


def _is_data(path: Path) -> bool:
    return any(
        path.is_relative_to(folder_of(package))
        and fnmatch.fnmatch(path.relative_to(folder_of(package)).as_posix(), pattern)
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
    )


ENTRY_POINTS = [
    (group, name, value)
    for group, entries in {
        "console_scripts": PYPROJECT["project"]["scripts"],
        **PYPROJECT["project"]["entry-points"],
    }.items()
    for name, value in entries.items()
]


@pytest.mark.parametrize(("group", "name", "value"), ENTRY_POINTS)
def test_every_entry_point_loads(group: str, name: str, value: str) -> None:
    module, _, attribute = value.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute)), f"{group}: {name}"


def test_the_version_is_the_packages_own() -> None:
    import rollenv

    assert rollenv.__version__ == PYPROJECT["project"]["version"]
