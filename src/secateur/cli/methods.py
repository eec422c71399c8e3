"""List the pruning methods, each with its paper, what it costs and its options."""

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
            "cost": method.cost,
            "memory": method.memory,
            "needs_gradients": method().statistic is not None,
            "patterns": ["unstructured", "N:M"],
            "options": {field.name: getattr(method(), field.name) for field in fields(method)},
        }
        for name, method in METHODS.items()
    ]
    console.document(rows)
    console.table(
        "Methods",
        ["method", "what it does", "paper", "cost of the scores", "memory", "options"],
        [(r["name"], r["summary"], r["paper"], r["cost"], r["memory"], _options(r)) for r in rows],
    )
    console.line("An option or an allocation follows the name: cap:block=96, woodfisher:uniform.")
    console.line("Each makes any pattern: unstructured, N:M such as 2:4, or a table of both.")
    return 0


def _options(row: dict) -> str:
    """Those that can be chosen."""
    from ..solvers import options_of

    return " ".join(f"{n}={str(row['options'][n]).lower()}" for n in options_of(row["name"])) or "none"
