"""Progress is a function wrapped around an iterable, so that any bar fits: rich's, tqdm's, or none."""

from collections.abc import Iterable, Sized
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Track(Protocol):
    """Yields the items of `iterable` and shows how far it has come."""

    def __call__(self, iterable: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]: ...


def length(iterable: Iterable) -> int | None:
    """How many items there will be, where that is known."""
    try:
        return len(iterable) if isinstance(iterable, Sized) else None
    except TypeError:  # a DataLoader over an iterable dataset has a length that it does not know
        return None


def silent(iterable: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
    """The default: show nothing."""
    return iterable
