"""The processes that train or prune together, and what they tell one another.

They meet in a group of their own that waits for days, so that no step, however long one of them takes for it, runs into
the timeout of a collective; what they exchange on a device then follows at once. Alone, everything here does nothing.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Processes:
    """This process among those that torch.distributed has joined; by itself by default."""

    rank: int = 0
    count: int = 1
    _patient: Any = None  # a gloo group

    def wait(self) -> None:
        """Until all of them are here."""
        if self.count > 1:
            dist.barrier(group=self._patient)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The tensor becomes the sum of everybody's."""
        if self.count > 1:
            self.wait()
            dist.all_reduce(tensor, group=self._group(tensor))
        return tensor

    def copy_(self, tensor: Tensor) -> Tensor:
        """The tensor becomes the first process's."""
        if self.count > 1:
            self.wait()
            dist.broadcast(tensor, 0, group=self._group(tensor))
        return tensor

    def joined(self, tensor: Tensor) -> Tensor:
        """Everybody's rows, in the order of the processes; they may be of different number."""
        if self.count == 1:
            return tensor
        rows = torch.zeros(self.count, dtype=torch.int64, device=tensor.device)
        rows[self.rank] = len(tensor)
        most = int(self.sum_(rows).max())
        padded = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])]).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(parts, padded, group=self._group(tensor))
        return torch.cat([part[:n] for part, n in zip(parts, rows.tolist(), strict=True)])

    def agreed(self, value: Any) -> Any:
        """The first process's value, of what JSON has words for."""
        if self.count == 1:
            return value
        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        size = self.copy_(torch.tensor([len(data)]))
        data = data if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        return json.loads(bytes(self.copy_(data).tolist()))

    def part(self, count: int) -> slice:
        """Which of `count` things in a row are this process's."""
        return slice(count * self.rank // self.count, count * (self.rank + 1) // self.count)

    def _group(self, tensor: Tensor) -> Any:
        return self._patient if tensor.device.type == "cpu" else None


ALONE = Processes()


def joined_processes() -> Processes:
    """All processes, where there are several; every one of them has to call this."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    return Processes(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=PATIENCE))
