"""List the pruning methods, each with its paper and its options."""

from dataclasses import dataclass, fields

from .console import Console
from .options import option

HELP = "list the methods"


@dataclass
class Options:
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..solvers import METHODS

    console = Console(options.json)
    rows: list[dict] = [
        {
            "name": name,
            "summary": (method.__doc__ or "").splitlines()[0],
            "paper": method.paper,
            "needs_gradients": method().block is not None,
            "options": {field.name: getattr(method(), field.name) for field in fields(method)},
        }
        for name, method in METHODS.items()
    ]
    console.document(rows)
    console.table(
        "Methods",
        ["method", "what it does", "paper", "options"],
        [
            (r["name"], r["summary"], r["paper"], _options(r["options"]) if r["needs_gradients"] else "none")
            for r in rows
        ],
    )
    console.line("An option or an allocation follows the name: cap:block=96, woodfisher:uniform.")
    return 0


def _options(options: dict) -> str:
    return " ".join(f"{name}={str(value).lower()}" for name, value in options.items())
