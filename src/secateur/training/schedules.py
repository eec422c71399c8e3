"""Learning rates and sparsities as plain functions of time.

Time and cycles are counted in the same unit, steps or epochs. The cyclic linear rate is the paper's
η(t) = η_max − (η_max − η_min) · (t mod T) / T: small where the next pruning comes, large right after it.
"""

import math
from collections.abc import Sequence

from ..errors import InputError

RATES = ("linear", "cosine", "constant")
RAMPS = ("linear", "cubic")


def learning_rate(
    time: float, shape: str, highest: float, lowest: float, cycle: float, warmup: float = 0, tick: float = 1
) -> float:
    """The rate at `time`; during the warm-up it rises to the highest instead, one tick after another.

    >>> [learning_rate(t, "linear", 4.0, 0.0, cycle=4) for t in range(6)]
    [4.0, 3.0, 2.0, 1.0, 4.0, 3.0]
    """
    if time < warmup:
        return highest * (time + tick) / (warmup + tick)
    if shape == "linear":
        return highest - (highest - lowest) * (time % cycle) / cycle
    if shape == "cosine":
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * (time % cycle) / cycle)) / 2
    return highest


def ramp(shape: str, first: float, last: float, steps: int, through: Sequence[float] = ()) -> tuple[float, ...]:
    """Rising sparsities for so many pruning steps; each of `through` takes the place of the nearest of them.

    The cubic ramp is last − (last − first) · (1 − i / (steps − 1))³: large steps first, small ones at the end.
    Raises:
        InputError: when there are more sparsities to pass through than steps between the first and the last.

    >>> ramp("cubic", 0.4, 0.9, 5, through=[0.75])
    (0.4, 0.75, 0.8375, 0.892188, 0.9)
    """
    if steps == 1:
        return (last,)
    power = {"linear": 1, "cubic": 3}[shape]
    values = [last - (last - first) * (1 - i / (steps - 1)) ** power for i in range(steps)]
    free = set(range(1, steps - 1))
    for target in sorted(set(through) - {first, last}):
        if not free:
            raise InputError(
                f"{steps} pruning steps cannot pass through {', '.join(f'{t:g}' for t in through)} between {first:g}"
                f" and {last:g}; give more steps or fewer sparsities."
            )
        nearest = min(free, key=lambda i: abs(values[i] - target))
        values[nearest] = target
        free = {i for i in free if i > nearest}  # the next target lies above, and so does its place
    return tuple(round(value, 6) for value in values)
