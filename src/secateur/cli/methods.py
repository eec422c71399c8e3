"""List the pruning methods, each with its paper, what it costs and its options."""

from dataclasses import dataclass, fields

from .console import Console
from .options import option

HELP = "list the methods"
SHOWN = ("name", "summary", "paper", "cost", "memory")


@dataclass
class Options:
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..solvers import METHODS
    from .results import options_text

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
        [[*(row[key] for key in SHOWN), options_text(row["name"], row["options"])] for row in rows],
    )
    console.line("An option or an allocation follows the name: cap:block=96, woodfisher:uniform.")
    console.line("Each makes any pattern: unstructured, N:M such as 2:4, or a table of both.")
    return 0
