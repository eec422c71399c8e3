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

METAVARS = {int: "N", float: "NUMBER", str: "NAME", float | str: "NUMBER|NAME"}


def option(
    default: Any,
    help: str,
    *,
    positional: bool = False,
    flag: bool = False,
    choices: Sequence[str] = (),
    metavar: str = "",
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A dataclass field that is a flag, or `positional`, or may be given as a `flag` all the same.

    It is required when `default` is `...`.
    """
    about = {
        "help": help, "positional": positional, "flag": flag or not positional, "choices": choices,
        "metavar": metavar, "least": least, "most": most,
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
        words |= {"type": number_or_text if kind == float | str else kind, "metavar": _metavar(item, kind)}
        if about["choices"]:
            words |= {"choices": about["choices"], "metavar": None}
        if many:
            words["nargs"] = "+"
    if about["positional"]:
        words["nargs"] = "*" if many else "?"  # it may come from the configuration file
        group.add_argument(item.name, **words)
        del words["nargs"]
        words["help"] = argparse.SUPPRESS  # said once
    if about["flag"]:
        group.add_argument(_flag(item), **words)


def flag_of(item: Field) -> str:
    return item.name.upper() if item.metadata["positional"] else _flag(item)


def _flag(item: Field) -> str:
    return f"--{item.name.replace('_', '-')}"


def _metavar(item: Field, kind: Any) -> str:
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


def kind_of(hint: Any) -> tuple[Any, bool]:
    """(type of one value, whether there may be several) of `int`, `list[float | str]`, `str | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        values = [h for h in get_args(hint) if h is not type(None)]
        hint = values[0] if len(values) == 1 else hint
    if get_origin(hint) is list:
        return get_args(hint)[0], True
    return hint, False


def number_or_text(text: str) -> float | str:
    """A value of type float | str, such as 0.5 or 2:4."""
    try:
        return float(text)
    except ValueError:
        return text
