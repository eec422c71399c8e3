"""The values of a command's options: from the command line, over a YAML file, over the defaults; types and bounds."""

import argparse
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..errors import InputError, nearest
from .options import flag_of, kind_of, number_or_text, required

IN_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    float | str: "a number or text",
}


def read_options(options: type, parsed: argparse.Namespace, command: str) -> Any:
    """The dataclass from the command line, over the configuration file, over the defaults.

    Raises:
        InputError: for a key or a value that the command does not take, and for what is missing.
    """
    given = vars(parsed)
    names = {item.name for item in fields(options)}
    values = _read_file(Path(given["config"]), options, command) if given.get("config") else {}
    values |= {name: value for name, value in given.items() if name in names}
    for item in required(options):
        if item.name not in values:
            raise InputError(f"`secateur {command}` needs {flag_of(item)}: {item.metadata['help']}.")
    for item in fields(options):
        _check(item, values.get(item.name))
    implied = options.implied(values) if hasattr(options, "implied") else {}
    return options(**{**implied, **values})


def _check(item: Field, value: Any) -> None:
    """Refuse what is out of bounds or not among the choices."""
    about = item.metadata
    for one in [] if value is None else value if isinstance(value, list) else [value]:
        if about["choices"] and one not in about["choices"]:
            raise InputError(f"{flag_of(item)} is {one!r}; give {' or '.join(about['choices'])}.")
        if about["most"] is not None and not about["least"] <= one <= about["most"]:
            raise InputError(f"{flag_of(item)} is {one}; give a number from {about['least']} to {about['most']}.")
        if about["least"] is not None and not one >= about["least"]:
            raise InputError(f"{flag_of(item)} is {one}; give {about['least']} or more.")


def _read_file(path: Path, options: type, command: str) -> dict:
    values = read_yaml(path, "configuration")
    if not isinstance(values, dict):
        raise InputError(f"The configuration {path} holds no `option: value` lines.")
    hints = get_type_hints(options)
    result = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in hints:
            raise InputError(f"{path} sets {key!r}, which `secateur {command}` does not have.{nearest(name, hints)}")
        result[name] = _of_type(value, hints[name], f"{key} in {path}")
    return result


def read_yaml(path: str | Path, what: str) -> Any:
    """What a YAML file holds; InputError when it cannot be read."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Without numbers of base 60: 2:4 is text, not 124."""

        def resolve(self, kind, value, implicit):
            tag = super().resolve(kind, value, implicit)
            number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            return self.DEFAULT_SCALAR_TAG if number and ":" in value else tag

    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: no UTF-8, or a path that is none
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"The {what} {path} cannot be read: {reason}.") from None


def _of_type(value: Any, hint: Any, where: str) -> Any:
    kind, many = kind_of(hint)
    if value is None and type(None) in get_args(hint):
        return None
    if many:
        if value == []:
            raise InputError(f"{where} is empty; give at least one value, or leave the line out.")
        return [_of_type(v, kind, where) for v in (value if isinstance(value, list) else [value])]
    if kind == float | str and isinstance(value, int | float | str) and not isinstance(value, bool):
        return number_or_text(str(value))
    if kind is float and isinstance(value, str):  # YAML takes 1e-3 for text: it wants a point, 1.0e-3
        try:
            return float(value)
        except ValueError:
            pass
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (kind is not bool and isinstance(value, bool)):
        raise InputError(f"{where} is {value!r}; it must be {IN_WORDS[kind]}.")
    return kind(value)
