"""The viewer's page: one HTML file that needs nothing from elsewhere, with or without the data of a run inside.

Whatever an episode says is data: it stands in a block that cannot be ended by it, and the page's policy lets no script
run but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.resources import files
from typing import Any

from rollenv.viewer.runs import as_json

SCRIPTS = ("dom.js", "source.js", "list.js", "episode.js", "group.js", "curves.js", "main.js")
"""In the order in which they need each other."""


def page(data: Any = None) -> str:
    """The page.

    Args:
        data: what `rollenv.viewer.export.gathered` gives; None for a page that asks its server.
    """
    script, style = _script(), _text("page.css")
    parts = {"policy": content_security_policy(), "style": style, "script": script, "data": in_script(as_json(data))}
    return re.sub(r"\{(policy|style|script|data)\}", lambda match: parts[match[1]], _text("page.html"))


def in_script(json: str) -> str:
    """JSON that can stand in a `<script>` element: no text in it ends that, or begins a comment."""
    return json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def content_security_policy() -> str:
    """What the page may do: run its own script, have its own style, ask its own server."""
    return (
        f"default-src 'none'; script-src '{_digest(_script())}'; style-src '{_digest(_text('page.css'))}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _script() -> str:
    return "\n".join(_text(name) for name in SCRIPTS)


@functools.cache
def _text(name: str) -> str:
    return files("rollenv.viewer").joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
