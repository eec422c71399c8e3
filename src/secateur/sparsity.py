"""What pruning is asked for: a fraction of zeros, an N:M pattern, or a table that gives layers the one or the other."""

from collections.abc import Mapping

from .errors import InputError
from .patterns import NM, read_pattern

Sparsity = float | NM | str | Mapping[str, float | NM | str]  # as it may be given
Share = float | NM  # of one layer, as it was read
Wanted = Share | dict[str, Share]  # of all of them; a table is {layer pattern: share}


def read_sparsity(sparsity: Sparsity, where: str = "") -> Wanted:
    """What a fraction, a text such as "0.5", "2:4" or "dense", or a table of them asks for.

    Raises:
        InputError: when it is none of these; `where` says where it stood.

    >>> read_sparsity("2:4"), read_sparsity({"*.fc1": "4:8", "*": "dense"})
    (NM(keep=2, of=4), {'*.fc1': NM(keep=4, of=8), '*': 0.0})
    """
    if isinstance(sparsity, Mapping):
        return {pattern: _read_share(share, f" of {pattern!r}{where}") for pattern, share in sparsity.items()}
    return _read_share(sparsity, where)


def plain(wanted: Wanted) -> float | str | dict[str, float | str]:
    """The same as JSON has it."""
    if isinstance(wanted, dict):
        return {pattern: _plain_share(share) for pattern, share in wanted.items()}
    return _plain_share(wanted)


def _read_share(share: float | NM | str, where: str) -> Share:
    if isinstance(share, NM):
        return share
    if isinstance(share, str):
        if ":" in share:
            return read_pattern(share, where)
        share = _number(share, where)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        hint = f"; did you mean {share / 100:g}?" if isinstance(share, int | float) and 1 < share <= 100 else ""
        raise InputError(f"The sparsity {share!r}{where} is no fraction from 0 to 1{hint or '.'}")
    return share


def _number(text: str, where: str) -> float:
    try:
        return 0.0 if text == "dense" else float(text)
    except ValueError:
        raise InputError(
            f"The sparsity {text!r:.40}{where} is no fraction from 0 to 1, no pattern such as 2:4, and not dense."
        ) from None


def _plain_share(share: Share) -> float | str:
    return str(share) if isinstance(share, NM) else share
