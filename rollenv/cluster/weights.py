"""Weights on their way to workers: each version is put once, however many ask for it.

`rollenv.inference.buckets` packs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rollenv.inference.buckets import Manifest, packed, unpacked

__all__ = ["Manifest", "Publisher", "packed", "unpacked"]


class Publisher:
    """Puts each version of the weights where workers can reach it, once, however many of them ask.

    Args:
        put: what makes a reference of a buffer (`Runtime.put`).
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._version: int | None = None
        self._source: Mapping[str, Tensor] | None = None
        self._published: tuple[Manifest, list[Any]] = ((), [])

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> tuple[Manifest, list[Any]]:
        """Manifest and references of the buffers. The same version and mapping as last time is not put again."""
        with self._lock:
            if self._version != version or self._source is not tensors:
                manifest, buffers = packed(tensors)
                self._published = manifest, [self._put(buffer) for buffer in buffers]
                self._version, self._source = version, tensors
            return self._published
