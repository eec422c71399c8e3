"""List the weights of a model that can be pruned, and which of them would be."""

from dataclasses import dataclass

from .console import Console
from .options import option
from .shared import LayerOptions, ModelOptions

HELP = "list the layers of a model"


@dataclass
class Options(LayerOptions, ModelOptions):
    model: str = option(..., "timm name, hf-hub:…, local-dir:…, a folder, or bundled", positional=True)
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..layers import kept_dense, prunable_weights, select_layers
    from .sources import load

    console = Console(options.json)
    model = load(options, needs_weights=False)
    weights = prunable_weights(model)
    chosen = select_layers(model, options.layers or None)
    dense = kept_dense(model, weights)
    rows: list[dict] = [
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
    pruned, total = sum(w.size for w in chosen.values()), sum(p.numel() for p in model.parameters())
    console.document({"layers": rows, "prunable": pruned, "parameters": total})
    console.table(
        f"Layers of {options.model}",
        ["layer", "kind", "shape", "weights", "pruned"],
        [(r["name"], r["kind"], "×".join(map(str, r["shape"])), r["weights"], _verdict(r)) for r in rows],
    )
    console.line(f"{pruned:,} of {total:,} parameters in {len(chosen)} layers would be pruned.")
    return 0


def _verdict(row: dict) -> str:
    return "yes" if row["pruned"] else f"no, {row['reason'].partition(':')[0]}"
