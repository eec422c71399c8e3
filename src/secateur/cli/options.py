"""Flags from dataclasses: a field is a flag, its default and its help; YAML files use the same names.

samples: int = option(4096, "images that the Fisher is made of")    ->    --samples 2048, or `samples: 2048`
"""

import argparse
import sys
import types
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..errors import InputError, nearest


def option(default: Any, help: str, *, positional: bool = False, choices: Sequence[str] = (), metavar: str = "") -> Any:
    """A dataclass field that is a flag; required when `default` is `...`."""
    about = {"help": help, "positional": positional, "choices": choices, "metavar": metavar}
    if default is ...:
        return field(kw_only=True, metadata=about)
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), kw_only=True, metadata=about)
    return field(default=default, kw_only=True, metadata=about)


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one sentence."""

    def error(self, message: str) -> Any:
        print(f"{self.prog}: {message}. `{self.prog} --help` lists what it takes.", file=sys.stderr)
        sys.exit(2)


def add_flags(parser: argparse.ArgumentParser, options: type) -> None:
    """One flag for every field of the dataclass, and --config for a file of them."""
    hints = get_type_hints(options)
    for item in fields(options):
        _add_flag(parser, item, hints[item.name])
    parser.add_argument("--config", metavar="FILE", help="YAML file of these options; flags override it")


def _add_flag(parser: argparse.ArgumentParser, item: Field, hint: Any) -> None:
    about = item.metadata
    kind, many = _kind(hint)
    words: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(item)}
    if kind is bool:
        words["action"] = argparse.BooleanOptionalAction if item.default is not False else "store_true"
    else:
        words |= {"type": kind, "metavar": about["metavar"] or kind.__name__.upper()}
        if about["choices"]:
            words |= {"choices": about["choices"], "metavar": None}
        if many:
            words["nargs"] = "+"
    if about["positional"]:
        words["nargs"] = "?"  # it may come from the configuration file
        words["metavar"] = about["metavar"] or item.name.upper()
        parser.add_argument(item.name, **words)
    else:
        parser.add_argument(f"--{item.name.replace('_', '-')}", **words)


def _help(item: Field) -> str:
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    if default is MISSING:
        note = " (required)"
    elif default in (None, "", False) or default == []:
        note = ""
    else:
        note = f" (default: {' '.join(map(str, default)) if isinstance(default, list) else default})"
    return (item.metadata["help"] + note).replace("%", "%%")


def _kind(hint: Any) -> tuple[type, bool]:
    """(type of one value, whether there may be several) of `int`, `list[float]`, `str | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(h for h in get_args(hint) if h is not type(None))
    if get_origin(hint) is list:
        return get_args(hint)[0], True
    return hint, False


def read_options(options: type, parsed: argparse.Namespace, command: str) -> Any:
    """The dataclass from the command line, over the configuration file, over the defaults.

    Raises:
        InputError: for a key or a value that the command does not take, and for what is missing.
    """
    given = vars(parsed)
    names = {item.name for item in fields(options)}
    values = _read_file(Path(given["config"]), options, command) if given.get("config") else {}
    values |= {name: value for name, value in given.items() if name in names}
    for item in fields(options):
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            flag = item.name.upper() if item.metadata["positional"] else f"--{item.name.replace('_', '-')}"
            raise InputError(f"`secateur {command}` needs {flag}: {item.metadata['help']}.")
    return options(**values)


def _read_file(path: Path, options: type, command: str) -> dict:
    import yaml

    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"The configuration {path} cannot be read: {str(error).splitlines()[0]}.") from None
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


def _of_type(value: Any, hint: Any, where: str) -> Any:
    kind, many = _kind(hint)
    if value is None and type(None) in get_args(hint):
        return None
    if many:
        return [_of_type(v, kind, where) for v in (value if isinstance(value, list) else [value])]
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (kind is not bool and isinstance(value, bool)):
        raise InputError(f"{where} is {value!r}; it must be of type {kind.__name__}.")
    return kind(value)
