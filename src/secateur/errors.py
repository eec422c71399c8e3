"""The two kinds of failure a user can meet; the command line prints either as one sentence and exits with 2."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """What was given cannot be used: says what, where, what was given and what to try."""


class NumericsError(RuntimeError):
    """NaN or infinity was met on the way: names the layer and the batch."""


def nearest(word: str, choices: Iterable[str], count: int = 3) -> str:
    """ " Did you mean a or b?", or nothing when no choice looks like `word`."""
    near = difflib.get_close_matches(word, list(choices), n=count, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
