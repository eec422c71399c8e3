"""List the weights of a model that can be pruned, which of them would be, and the options of the model's family.

  secateur layers convnext_tiny

Needs no weights. Without patterns it shows the rule of the model's family, with a reason for every layer left alone.
"""

from dataclasses import asdict, dataclass

from .console import Console
from .options import option
from .shared import LayerOptions, ModelOptions

HELP = "list the layers of a model, and the options of its family"


@dataclass
class Options(LayerOptions, ModelOptions):
    model: str = option(..., "timm name, hf-hub:…, hf:…, local-dir:…, a folder, or bundled", positional=True, flag=True)
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..families import family_of
    from .sources import load

    model, console = load(options, needs_weights=False), Console(options.json)
    rows = _layers(model, options.layers)
    pruned, dense = ([row["weights"] for row in rows if row["pruned"] == wanted] for wanted in (True, False))
    document = {
        "family": family_of(model).name,
        "methods": _methods(model),
        "layers": rows,
        "prunable": sum(pruned),
        "dense": sum(dense),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    console.document(document)
    console.table(
        f"Layers of {options.model}",
        ["layer", "kind", "shape", "weights", "pruned", "why not"],
        [_cells(row) for row in rows],
    )
    console.line(
        f"{sum(pruned):,} of {document['parameters']:,} parameters in {len(pruned)} layers would be pruned;"
        f" {sum(dense):,} in {len(dense)} layers stay dense; the rest are norms, biases and such.\n"
    )
    console.table(
        f"Options of the family {document['family']}",
        ["method", "by default", "with --settings paper"],
        [(name, *texts.values()) for name, texts in document["methods"].items()],
    )
    return 0


def _layers(model, patterns: list[str]) -> list[dict]:
    """A row for every weight that can be pruned."""
    from ..layers import kept_dense, prunable_weights, select_layers

    weights = prunable_weights(model)
    chosen, dense = select_layers(model, patterns or None), kept_dense(model, weights)
    return [
        {
            "name": name,
            "kind": weight.kind,
            "shape": list(weight.parameter.shape),
            "weights": weight.size,
            "pruned": name in chosen,
            "reason": None if name in chosen else dense.get(name, "not among the patterns"),
        }
        for name, weight in weights.items()
    ]


def _methods(model) -> dict[str, dict[str, str]]:
    """{method: its options for this model, by default and with the paper's settings}."""
    from ..settings import solver_for
    from ..solvers import METHODS
    from .results import options_text

    return {
        method: {
            settings: options_text(method, asdict(solver_for(model, method, paper=settings == "paper")))
            for settings in ("own", "paper")
        }
        for method in METHODS
    }


def _cells(row: dict) -> tuple:
    shape = "×".join(map(str, row["shape"]))
    return row["name"], row["kind"], shape, row["weights"], row["pruned"], row["reason"] or ""
