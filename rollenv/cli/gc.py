"""`rollenv gc`: removes the sandboxes that dead runs left. Every run does the same when it makes its first one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was removed as JSON.")] = False,
) -> None:
    """Remove containers, control groups and folders that dead runs left; never what anybody else made."""
    from rollenv.sandboxes.ledger import reap, summary

    removed = reap(dry=dry_run)
    if as_json:
        print(json.dumps([asdict(entry) for entry in removed], indent=1))
        return
    for entry in removed:
        print(f"{entry.kind:<10} {entry.name}  (run {entry.run})")
    print(f"{'would remove' if dry_run else 'removed'} {summary(removed)}")
