"""`rollenv images`: what sandboxes see as their root. Build it, say beforehand what it takes, list what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.sandboxes.images.plan import Plan

images = typer.Typer(help="Images of sandboxes: build, plan, list.", no_args_is_help=False)

Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="docker or bubblewrap; both that can be used here if not said."),
]


@images.command()
def build(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Of the image; the default one if not said.", show_default=False),
    ] = None,
    backend: Backend = None,
    archive: Annotated[
        Path | None,
        typer.Option("--from", metavar="TAR", help="Make it of this archive of a root folder, or of a layer."),
    ] = None,
    base: Annotated[str, typer.Option("--base", metavar="IMAGE", help="The archive is a layer over this image.")] = "",
    source: Annotated[
        str,
        typer.Option(
            "--source", help="Of the default image: registry, packages (this machine's), or auto: what works."
        ),
    ] = "auto",
) -> None:
    """Make an image: the default one (python3, git, pytest), or one from an archive."""
    from rollenv.sandboxes.images.build import make
    from rollenv.sandboxes.spec import DEFAULT_IMAGE

    if archive is None and (base or name not in (None, DEFAULT_IMAGE)):
        raise RollenvError(f"image '{name or DEFAULT_IMAGE}' is made of an archive: say --from TAR")
    for chosen in _backends(backend):
        print(make(name or DEFAULT_IMAGE, chosen, archive=archive, base=base, source=source))


@images.command()
def plan(
    names: Annotated[list[str] | None, typer.Argument(metavar="[IMAGE]...", show_default=False)] = None,
    tasks: Annotated[
        Path | None, typer.Option("--tasks", metavar="JSONL", help="Tasks, one a line, whose 'image' is needed.")
    ] = None,
    backend: Backend = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what would be pulled or built, how large it is, and whether the disk has room (exit code 1: it cannot be)."""
    from rollenv.sandboxes.images.plan import plan as make_plan
    from rollenv.sandboxes.spec import DEFAULT_IMAGE

    wanted = [*(names or []), *(_images_of(tasks) if tasks else [])] or [DEFAULT_IMAGE]
    plans = [make_plan(wanted, chosen) for chosen in _backends(backend)]
    if as_json:
        from dataclasses import asdict

        print(json.dumps([asdict(one) | {"needed": one.needed, "fits": one.fits} for one in plans], indent=1))
    else:
        for one in plans:
            _tell(one)
    if any(one.missing or not one.fits for one in plans):
        raise typer.Exit(1)


@images.command("list")
def list_images() -> None:
    """List the images that bubblewrap's sandboxes can have; 'docker images' lists an engine's."""
    from rollenv.sandboxes.images.store import ImageStore

    store = ImageStore()
    for name in store.names():
        print(f"{name:<40} {_mib(store.find(name).bytes):>10}")


def _backends(name: str | None) -> list[str]:
    from rollenv.sandboxes import available

    if name is not None:
        return [name]
    found: list[str] = available()
    if not found:
        raise RollenvError("neither docker nor bubblewrap can be used here: apt-get install -y bubblewrap")
    return found


def _images_of(tasks: Path) -> list[str]:
    found = []
    try:
        lines = tasks.read_text().splitlines()
    except OSError as error:
        raise RollenvError(f"cannot read the tasks in '{tasks}': {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            task = json.loads(line)
            found.append(str(task.get("image") or task["image_name"]))
        except (ValueError, KeyError, AttributeError) as error:
            raise RollenvError(f"'{tasks}', line {number}: a task is a JSON object with a key 'image'") from error
    return found


def _tell(plan: Plan) -> None:
    print(f"{plan.backend}:")
    for image in plan.images:
        sizes = f"{_mib(image.disk):>10}" + (f", {_mib(image.transfer)} to fetch" if image.transfer else "")
        print(f"  {image.action:<8} {image.image:<40} {sizes}  {image.note}".rstrip())
    room = "which is there" if plan.fits else "which is NOT there"
    print(f"  needs {_mib(plan.needed)} of disk, {room}: {_mib(plan.free)} free")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
