"""Tensors that wait on the disk: written once, read when asked for, gone with the object that holds them."""

import errno
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import InputError


class Spill(Mapping[str, Tensor]):
    """{name: tensor} in a temporary folder below `folder`; a tensor is read anew each time."""

    def __init__(self, folder: Path):
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="secateur-", dir=folder))
        except OSError as error:
            raise InputError(f"{folder} cannot be spilled to: {error.strerror or error}.") from error
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)  # at the latest when Python ends
        self._files: dict[str, tuple[Path, torch.Size, torch.device]] = {}

    def put(self, name: str, tensor: Tensor) -> None:
        """Write a float32 or float64 tensor.

        Raises:
            InputError: when the disk is full or fails.
        """
        path = self._folder / f"{len(self._files)}.bin"
        try:
            tensor.cpu().numpy().tofile(path)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, None) else error.strerror
            raise InputError(
                f"The Fisher of {name} cannot wait in {self._folder.parent} ({reason}); name a folder with more room"
                " to spill to."
            ) from error
        self._files[name] = (path, tensor.shape, tensor.device)
        self._dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))

    def __getitem__(self, name: str) -> Tensor:
        path, shape, device = self._files[name]
        return torch.from_numpy(np.fromfile(path, self._dtype)).view(shape).to(device)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
