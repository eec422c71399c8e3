"""Samples averaged into gradients: m consecutive ones each, whatever the size of the batches they arrive in."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import NumericsError

Sink = Callable[[str, Tensor], None]  # (layer, gradients (gradients of this batch, out, in))


class Groups:
    """Averages samples into gradients across the borders of batches, and hands complete ones to the sink."""

    def __init__(self, sink: Sink, size: int):
        self.sink, self.size = sink, size
        self.samples = 0  # of all batches before this one
        self.started: dict[str, Tensor] = {}  # the sum of a group that began in an earlier batch
        self.taken: set[str] = set()  # the layers this batch reached

    @property
    def complete(self) -> int:
        return self.samples // self.size

    def start_batch(self, number: int, samples: int) -> None:
        self.batch, self.batch_samples = number, samples
        self.taken.clear()

    def end_batch(self) -> None:
        for name in set(self.started) - self.taken:  # the batch did not reach it: its group goes on
            self.take(name, self.started[name].new_zeros(len(self.slices()), *self.started[name].shape))
        self.samples += self.batch_samples

    def slices(self) -> list[slice]:
        """The runs of this batch's samples that belong to one gradient each."""
        first = -(self.samples % self.size)
        edges = [max(e, 0) for e in range(first, self.batch_samples, self.size)] + [self.batch_samples]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]

    def take(self, name: str, sums: Tensor) -> None:
        """`sums` (slices or samples, out, in): the gradients summed over each slice."""
        self.taken.add(name)
        if not torch.isfinite(sums.sum()):
            raise NumericsError(
                f"The gradient of {name} is not finite in batch {self.batch}; look at that batch's images and labels,"
                " or run the model in float32."
            )
        if self.size > 1:  # means take more digits than bfloat16 has
            sums = sums.to(torch.promote_types(sums.dtype, torch.float32))
            sums = self._whole_groups(name, sums)
        if len(sums):
            self.sink(name, sums)

    def _whole_groups(self, name: str, sums: Tensor) -> Tensor:
        if name in self.started:
            sums[0] += self.started.pop(name)
        if (self.samples + self.batch_samples) % self.size:
            self.started[name] = sums[-1].clone()
            sums = sums[:-1]
        return sums / self.size
