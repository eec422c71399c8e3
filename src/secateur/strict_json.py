"""JSON without NaN or infinity, and JSON that a stranger may have made."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import InputError
from .units import readable

JSON_LIMIT = 64 * 2**20  # bytes; the manifest of a model of 1000 layers takes 0.2 MiB


def json_bytes(value: Any) -> bytes:
    """Indented UTF-8 JSON; NaN and infinity become null, paths text, numpy and torch scalars plain numbers.

    Raises:
        InputError: when `value` holds something JSON has no word for.
    """
    return (json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: str | Path, limit: int | None = None) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes (JSON_LIMIT where none is given) that may come from anywhere.

    Raises:
        InputError: when the file is missing, too large, or holds no strict JSON object.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    most = JSON_LIMIT if limit is None else limit
    if path.stat().st_size > most:
        raise InputError(f"{path} is larger than {readable(most)}: too large to be ours.")
    try:
        value = json.loads(path.read_bytes().decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}.") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} should hold a JSON object, and holds a {type(value).__name__}.")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # numpy and torch scalars
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"A {type(value).__name__} cannot be written as JSON: {value!r:.80}; pass text or numbers.")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
