"""Memory given away for a while: what tensors hold goes to the host or to a file, and comes back to the same tensors.

Invariant: `bring_back` restores every bit; whatever viewed the tensors' storages sees them again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import IO, Literal

import numpy as np
import torch
from numpy.typing import NDArray

Where = Literal["host", "disk"]


class Parked:
    """What some tensors held. Until `bring_back` nobody may look at them.

    Args:
        tensors: on any device; several may share a storage.
        to: `host`: its memory (tensors that are there stay as they are); `disk`: a file that has no name, and is gone
            with this object.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], to: Where) -> None:
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        free = [s for s in storages.values() if s.nbytes() and s.resizable()]
        wanted = [s for s in free if to == "disk" or s.device.type != "cpu"]
        self.nbytes = sum(storage.nbytes() for storage in wanted)
        """Bytes that are free meanwhile."""
        self._sizes = [storage.nbytes() for storage in wanted]
        self._storages, self._copies = wanted, list[torch.UntypedStorage]()
        self._file: IO[bytes] | None = None
        if to == "disk" and wanted:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this does
            for storage in wanted:
                self._file.write(_bytes(storage).data)
        else:
            self._copies = [storage.cpu() for storage in wanted]  # type: ignore[no-untyped-call]
        for storage in wanted:
            storage.resize_(0)

    def bring_back(self) -> None:
        """Gives the tensors back what they held; once."""
        if self._file is not None:
            self._file.seek(0)
        for i, (storage, size) in enumerate(zip(self._storages, self._sizes, strict=True)):
            storage.resize_(size)
            if self._file is None:
                storage.copy_(self._copies[i])
            else:
                storage.copy_(torch.UntypedStorage.from_buffer(self._file.read(size), dtype=torch.uint8))
        if self._file is not None:
            self._file.close()
        self._storages, self._copies = [], []


def _bytes(storage: torch.UntypedStorage) -> NDArray[np.uint8]:
    # A copy, also on the CPU: a storage that numpy has looked at cannot be resized any more.
    copied = torch.empty(storage.nbytes(), dtype=torch.uint8).untyped_storage().copy_(storage)
    array: NDArray[np.uint8] = torch.empty(0, dtype=torch.uint8).set_(copied).numpy()
    return array
