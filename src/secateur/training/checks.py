"""What a value of a recipe must be; a mistake names its key, so that the line of the file can be named."""

from itertools import pairwise

from ..errors import InputError
from ..patterns import read_pattern

Target = float | str  # a fraction of zeros, or a pattern such as "2:4"


class Refused(InputError):
    """A value that cannot be used; `key` says which, so that the file's line can be named."""

    def __init__(self, key: str, message: str):
        super().__init__(message)
        self.key = key


def check_wholes(least: int = 1, **named: int | None) -> None:
    for key, value in named.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise Refused(key, f"{key} is {value!r}; give a whole number from {least}.")


def check_choice(owner: object, key: str, choices: tuple[str, ...]) -> None:
    if getattr(owner, key) not in choices:
        raise Refused(key, f"{key} is {getattr(owner, key)!r}; give {', '.join(choices[:-1])} or {choices[-1]}.")


def check_rising(key: str, targets: tuple[Target, ...]) -> None:
    """Fractions from 0 to 1 that rise, and patterns such as 2:4, which may repeat a sparsity but not fall below it."""
    for before, after in pairwise([(target, _fraction(key, target)) for target in targets]):
        repeated = after[1] == before[1] and not isinstance(before[0], str) and not isinstance(after[0], str)
        if after[1] < before[1] or repeated:
            raise Refused(key, f"The sparsities must rise: {after[0]} follows {before[0]}.")


def _fraction(key: str, target: Target) -> float:
    """The zeros that a target asks for, of a layer that can take it."""
    if isinstance(target, str):
        try:
            return read_pattern(target).sparsity
        except InputError as error:
            raise Refused(key, str(error)) from None
    if not 0 <= target <= 1:
        hint = f"; did you mean {target / 100:g}?" if 1 < target <= 100 else "; give fractions from 0 to 1."
        raise Refused(key, f"The sparsity {target:g} is no fraction{hint}")
    return target
