"""Flags from dataclasses: a field is a flag, its default, its bounds and its help; YAML files use the same names.

samples: int = option(4096, "images that the Fisher is made of")    ->    --samples 2048, or `samples: 2048`

The fields that a command inherits stand in its help under the docstring of the class they come from.
"""

import argparse
import sys
import types
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from ..errors import nearest
from .console import write

METAVARS = {int: "N", float: "NUMBER", str: "NAME"}


def option(
    default: Any,
    help: str,
    *,
    positional: bool = False,
    choices: Sequence[str] = (),
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A dataclass field that is a flag; required when `default` is `...`."""
    about = {
        "help": help, "positional": positional, "choices": choices, "metavar": metavar, "least": least, "most": most
    }  # fmt: skip
    if default is ...:
        return field(kw_only=True, metadata=about)
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), kw_only=True, metadata=about)
    return field(default=default, kw_only=True, metadata=about)


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one sentence and flags that must be written out."""

    def __init__(self, **words: Any):
        super().__init__(**words, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)

    def print_help(self, file: Any = None) -> None:
        write(self.format_help())

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        print(f"{self.prog}: {message}{end} `{self.prog} --help` lists what it takes.", file=sys.stderr)
        sys.exit(2)

    def refuse(self, word: str) -> NoReturn:
        """An error for an argument that this command does not have."""
        flag = word.partition("=")[0]
        if not flag.startswith("-"):
            self.error(f"there is no place for {flag!r}")
        if place := next((a.metavar for a in self._actions if flag == f"--{a.dest}" and not a.option_strings), None):
            self.error(f"{place} stands by itself, without {flag}")
        near = nearest(flag, self._option_string_actions, count=1)
        self.error(f"there is no option {flag}{near and '.'}{near}")


def add_flags(parser: argparse.ArgumentParser, options: type) -> None:
    """One flag for every field of the dataclass, and --config for a file of them."""
    hints = get_type_hints(options)
    groups: dict[type, Any] = {options: parser}
    for item in fields(options):
        owner = next(c for c in options.__mro__ if item.name in c.__annotations__)
        if owner not in groups:
            groups[owner] = parser.add_argument_group(owner.__doc__)
        _add_flag(groups[owner], item, hints[item.name])
    parser.add_argument("--config", metavar="FILE", help="YAML file of these options; flags override it")
    parser.usage = " ".join([parser.prog, *map(_usage, required(options)), "[options]"])


def _usage(item: Field) -> str:
    return flag_of(item) if item.metadata["positional"] else f"{flag_of(item)} {_metavar(item, str)}"


def _add_flag(group: Any, item: Field, hint: Any) -> None:
    about = item.metadata
    kind, many = kind_of(hint)
    words: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(item)}
    if kind is bool:
        words["action"] = argparse.BooleanOptionalAction if item.default is not False else "store_true"
    else:
        words |= {"type": kind, "metavar": _metavar(item, kind)}
        if about["choices"]:
            words |= {"choices": about["choices"], "metavar": None}
        if many:
            words["nargs"] = "+"
    if about["positional"]:
        words["nargs"] = "*" if many else "?"  # it may come from the configuration file
        group.add_argument(item.name, **words)
    else:
        group.add_argument(flag_of(item), **words)


def flag_of(item: Field) -> str:
    return item.name.upper() if item.metadata["positional"] else f"--{item.name.replace('_', '-')}"


def _metavar(item: Field, kind: type) -> str:
    return item.name.upper() if item.metadata["positional"] else item.metadata["metavar"] or METAVARS[kind]


def required(options: type) -> list[Field]:
    return [item for item in fields(options) if item.default is MISSING and item.default_factory is MISSING]


def _help(item: Field) -> str:
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    if default is MISSING:
        note = " (required)"
    elif default is None or default is False or default in ("", []):
        note = ""
    else:
        words = " ".join(map(str, default)) if isinstance(default, list) else "yes" if default is True else default
        note = f" (default: {words})"
    return (item.metadata["help"] + note).replace("%", "%%")


def kind_of(hint: Any) -> tuple[type, bool]:
    """(type of one value, whether there may be several) of `int`, `list[float]`, `str | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(h for h in get_args(hint) if h is not type(None))
    if get_origin(hint) is list:
        return get_args(hint)[0], True
    return hint, False
