"""Recipes as YAML files: read with the line of every mistake, written back beside every result.

`augmentation` is a name (see augment.py), or a mapping of what differs from the one it names as `like`.
"""

import io
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from ..errors import InputError, nearest
from ..files import write_atomically
from .augment import AUGMENTATIONS, Augmentation, augmentation_named
from .checks import Refused
from .recipe import Recipe

FOLDER = Path(__file__).parents[1] / "recipes"
IN_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """A recipe of the package by name, or of a file, with changes such as "learning_rate.highest=1e-4".

    Raises:
        InputError: with the line of what is wrong, and the nearest key where there is no such key.

    >>> read_recipe("bundled-gradual", ["epochs=20"]).epochs
    20
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        raise InputError(
            f"There is no recipe {str(name)!r}.{nearest(str(name), recipe_names())} `secateur train --list` shows those"
            " of the package; a file of your own is given by its path."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"The recipe {path} cannot be read: {error}.") from None
    return parse_recipe(text, path.name, changes)


def parse_recipe(text: str, name: str = "recipe", changes: Sequence[str] = ()) -> Recipe:
    """The recipe that YAML text says; `name` is how messages call it."""
    root = _composed(text, name)
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{name} holds no `key: value` lines.")
    for change in changes:
        _change_(root, change)
    return _build(Recipe, root, "")


def write_recipe(recipe: Recipe, path: str | Path) -> None:
    """A YAML file that `read_recipe` reads as the same recipe."""
    write_atomically(path, yaml.safe_dump(plain(recipe), sort_keys=False, allow_unicode=True, width=120).encode())


def plain(recipe: Recipe) -> dict[str, Any]:
    """Mappings, lists and numbers, without what is at its default; the augmentation by its name where it has one."""
    return {item.name: _plain(value) for item in fields(recipe) if (value := getattr(recipe, item.name)) is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Augmentation):
        known = [name for name, augmentation in AUGMENTATIONS.items() if augmentation == value]
        return known[0] if known else {item.name: getattr(value, item.name) for item in fields(value)}
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return list(value) if isinstance(value, tuple) else value


# --- from nodes, which know their lines, to dataclasses ---------------------------------------------------------------


class _Named(io.StringIO):
    """Text that YAML's marks call by a name."""

    name: str = ""


def _composed(text: str, name: str) -> yaml.Node | None:
    stream = _Named(text)
    stream.name = name
    try:
        return yaml.compose(stream, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{name}{line}: this is no YAML: {getattr(error, 'problem', error)}.") from None


def _build(kind: Any, node: yaml.Node, place: str) -> Any:
    """The dataclass that a mapping says."""
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{_at(node)}: {place or 'the recipe'} takes `key: value` lines.")
    hints, given, nodes = get_type_hints(kind), {}, {}
    for key, value in node.value:
        if key.value not in hints:
            where = f" in {place}" if place else ""
            raise InputError(f"{_at(key)}: there is no key {key.value!r}{where}.{nearest(key.value, hints)}")
        if key.value in nodes:
            raise InputError(f"{_at(key)}: {key.value} stands here a second time.")
        nodes[key.value] = key
        given[key.value] = _value(hints[key.value], value, f"{place}.{key.value}".lstrip("."))
    needed = [f.name for f in fields(kind) if f.name not in given and _is_required(f)]
    if needed:
        raise InputError(f"{_at(node)}: {place or 'the recipe'} lacks the key {needed[0]}.")
    try:
        return kind(**given)
    except Refused as error:
        raise InputError(f"{_at(nodes.get(error.key, node))}: {error}") from None
    except InputError as error:
        raise InputError(f"{_at(node)}: {error}") from None


def _is_required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _value(hint: Any, node: yaml.Node, place: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not types.NoneType]
        if len(kinds) < len(get_args(hint)) and _scalar(node) is None and isinstance(node, yaml.ScalarNode):
            return None
        if len(kinds) == 1:
            return _value(kinds[0], node, place)
        return _target(node, place)
    if hint is Augmentation:
        return _augmentation(node, place)
    if is_dataclass(hint):
        return _build(hint, node, place)
    if get_origin(hint) is tuple:
        if not isinstance(node, yaml.SequenceNode):
            return (_value(get_args(hint)[0], node, place),)
        return tuple(_value(get_args(hint)[0], item, place) for item in node.value)
    return _typed(hint, node, place)


def _augmentation(node: yaml.Node, place: str) -> Augmentation:
    if isinstance(node, yaml.ScalarNode):
        try:
            return augmentation_named(node.value)
        except InputError as error:
            raise InputError(f"{_at(node)}: {error}") from None
    base, rest = Augmentation(), []
    for key, value in getattr(node, "value", ()):
        if key.value == "like":
            base = _augmentation(value, place)
        else:
            rest.append((key, value))
    own = _build(Augmentation, yaml.MappingNode(node.tag, rest, node.start_mark, node.end_mark), place)
    return replace(base, **{key.value: getattr(own, key.value) for key, _ in rest})


def _target(node: yaml.Node, place: str) -> float | str:
    """A fraction, or a pattern: YAML takes 2:4 without quotes for a number of base sixty."""
    value = node.value if isinstance(node, yaml.ScalarNode) and ":" in node.value else _scalar(node)
    return value if isinstance(value, str) and ":" in value else _typed(float, node, place)


def _typed(kind: type, node: yaml.Node, place: str) -> Any:
    value = _scalar(node)
    if kind is float and isinstance(value, str):  # YAML takes 1e-3 for text: it wants a point, 1.0e-3
        with suppress(ValueError):
            value = float(value)
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (kind is not bool and isinstance(value, bool)):
        raise InputError(f"{_at(node)}: {place} is {_shown(node)}; it must be {IN_WORDS[kind]}.")
    return kind(value)


def _scalar(node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        return node
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()


def _shown(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or a mapping"


def _at(node: yaml.Node) -> str:
    mark = node.start_mark
    return mark.name if mark.name.startswith("--set") else f"{mark.name}, line {mark.line + 1}"


def _change_(root: yaml.MappingNode, change: str) -> None:
    """Put "section.key=value" in the place of what the tree says."""
    path, sign, text = change.partition("=")
    *sections, last = path.strip().split(".")
    if not sign or not last:
        raise InputError(f"--set {change}: give section.key=value, such as learning_rate.highest=1e-4.")
    name = f"--set {change}"
    key, value = _composed(last, name), _composed(text or "null", name)
    here = root
    for section in sections:
        found = next((v for k, v in here.value if k.value == section), None)
        if found is None or (isinstance(found, yaml.ScalarNode) and _scalar(found) is None):
            made = yaml.MappingNode("tag:yaml.org,2002:map", [], key.start_mark, key.end_mark)  # type: ignore[union-attr]
            here.value = [pair for pair in here.value if pair[0].value != section] + [(_composed(section, name), made)]
            found = made
        elif isinstance(found, yaml.ScalarNode):  # the name of an augmentation, to be changed in part
            like = _composed("like", name)
            found = yaml.MappingNode("tag:yaml.org,2002:map", [(like, found)], found.start_mark, found.end_mark)
            here.value = [(k, found if k.value == section else v) for k, v in here.value]
        here = found  # type: ignore[assignment]
    here.value = [pair for pair in here.value if pair[0].value != last] + [(key, value)]
