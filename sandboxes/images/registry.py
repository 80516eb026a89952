"""How large an image is that a registry has, without pulling it (the OCI distribution specification)."""

from __future__ import annotations

import json
import platform
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from rollenv.sandboxes.errors import SandboxError

_SECONDS = 5.0
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class RegistryError(SandboxError):
    """A registry that does not answer, or has no such image."""


def remote_bytes(image: str) -> int:
    """Bytes that a registry would send for an image, all of its layers together.

    Raises:
        RegistryError: it does not answer or has no such image.
    """
    host, repository, reference = parse(image)
    scheme = "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
    base = f"{scheme}://{host}/v2/{repository}/manifests/"
    try:
        manifest, token = _get(base + reference, "")
        if "manifests" in manifest:  # one for each kind of machine
            machine = _MACHINES.get(platform.machine(), platform.machine())
            ours = (m["digest"] for m in manifest["manifests"] if m.get("platform", {}).get("architecture") == machine)
            digest = next(ours, None)
            if digest is None:
                raise RegistryError(f"image '{image}' is not made for {machine} machines")
            manifest, _ = _get(base + digest, token)
        return sum(int(layer["size"]) for layer in manifest["layers"])
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404):
            raise RegistryError(f"the registry {host} has no image '{image}', or only for those who log in") from error
        raise RegistryError(
            f"the registry {host} answers {error.code} about image '{image}': try again later"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RegistryError(f"no registry answers at {host} for image '{image}'") from error


def parse(image: str) -> tuple[str, str, str]:
    """Host, repository and tag or digest of an image's name.

    >>> parse("python:3.11")
    ('registry-1.docker.io', 'library/python', '3.11')
    >>> parse("localhost:5000/a/b@sha256:12")
    ('localhost:5000', 'a/b', 'sha256:12')
    """
    first, slash, rest = image.partition("/")
    if not slash or not (re.search(r"[.:]", first) or first == "localhost"):
        first, rest = "registry-1.docker.io", image if slash else f"library/{image}"
    if first == "docker.io":
        first = "registry-1.docker.io"
    path, at, digest = rest.partition("@")
    name, colon, tag = path.rpartition(":")
    if not colon:
        name, tag = path, "latest"
    return first, name, digest if at else tag


def _get(url: str, token: str) -> tuple[Any, str]:
    """A JSON document and the token that opened it; a token is asked for where the registry wants one."""
    headers = {"Accept": ", ".join(_KINDS)} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_SECONDS) as answer:
            return json.load(answer), token
    except urllib.error.HTTPError as error:
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', error.headers.get("WWW-Authenticate") or ""))
        if error.code != 401 or token or "realm" not in wanted:
            raise
        query = urllib.parse.urlencode({key: value for key, value in wanted.items() if key != "realm"})
        with urllib.request.urlopen(f"{wanted['realm']}?{query}", timeout=_SECONDS) as answer:
            said = json.load(answer)
        return _get(url, said.get("token") or said["access_token"])
