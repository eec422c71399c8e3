"""The two kinds of failure a user can meet; the command line prints either as one sentence and exits with 2."""

import difflib
import importlib.util
from collections.abc import Iterable, Mapping
from numbers import Integral


class InputError(ValueError):
    """What was given cannot be used: says what, where, what was given and what to try."""


class NumericsError(RuntimeError):
    """NaN or infinity was met on the way: names the layer and the batch."""


def nearest(word: str, choices: Iterable[str], count: int = 3) -> str:
    """ " Did you mean a or b?", or nothing when no choice looks like `word`."""
    near = difflib.get_close_matches(word, list(choices), n=count, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def check_whole(least: int = 1, **named: object) -> None:
    """Raise InputError unless each is a whole number from `least`."""
    for name, number in named.items():
        if not isinstance(number, Integral) or isinstance(number, bool) or number < least:
            raise InputError(f"{name} is {number!r}; give a whole number from {least}.")


def check_fraction(**named: object) -> None:
    """Raise InputError unless each is a number from 0 to 1."""
    for name, number in named.items():
        if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number <= 1:
            raise InputError(f"{name} is {number!r}; give a number from 0 to 1.")


def require(packages: Mapping[str, str], extra: str, user: str) -> None:
    """Raise InputError unless all of these {module: package} are installed; `extra` of secateur brings them."""
    for module, package in packages.items():
        if importlib.util.find_spec(module) is None:
            raise InputError(f'{user} needs the package {package}; install it with pip install "secateur[{extra}]".')
