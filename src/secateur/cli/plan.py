"""What `secateur train --dry-run` prints: epochs, pruning steps, learning rates, and an estimate of the time."""

from collections.abc import Sequence
from typing import Any

from .console import Console

IMAGENET = 1_281_167  # images of an epoch, where no data is named
ROWS = 20  # of the table of learning rates


def plan_document(recipe, device: str | None = None) -> dict[str, Any]:
    """The plan of a recipe on this machine."""
    from ..layers import select_layers
    from ..training.estimate import estimated_seconds, seconds_per_image
    from ..training.recipe_file import plain
    from ..training.run import starting_model
    from ..training.timeline import make_timeline, shown

    model = starting_model(recipe, pretrained=False)
    weights = select_layers(model, list(recipe.layers) or None)
    train, measured, assumed = _image_counts(recipe, model)
    timeline = make_timeline(recipe, train)
    if device is None:
        from accelerate import Accelerator

        model = model.to(Accelerator().device)
    per_image = seconds_per_image(model, recipe.micro_batch or recipe.batch_size)
    starts = sorted({round(i * timeline.steps / ROWS) for i in range(ROWS)} | set(_measured(timeline)))
    return {
        "recipe": plain(recipe),
        "images": train,
        "images_assumed": assumed,
        "layers": len(weights),
        "weights": sum(weight.size for weight in weights.values()),
        "epochs": recipe.epochs,
        "steps_per_epoch": timeline.steps_per_epoch,
        "steps": timeline.steps,
        "changes": [
            {
                "epoch": step / timeline.steps_per_epoch,
                "step": step,
                "action": timeline.events[step].action,
                "sparsity": timeline.events[step].target,
            }
            for step in _measured(timeline)
        ],
        "moves": sum(not event.is_measured for event in timeline.events.values()),
        "saves": [
            {"epoch": step / timeline.steps_per_epoch, "step": step, "folder": name}
            for step, name in sorted(timeline.saves.items())
        ],
        "learning_rates": [
            {"epoch": step / timeline.steps_per_epoch, "step": step, "rate": timeline.learning_rate(step)}
            for step in starts[: 3 * ROWS]
        ],
        "seconds_per_image": per_image,
        "seconds": estimated_seconds(timeline, per_image, measured),
        "sparsities": [shown(e.target) for e in timeline.events.values() if e.target is not None],
    }


def print_plan(plan: dict[str, Any], console: Console) -> None:
    from ..units import duration

    recipe = plan["recipe"]
    images = f"{plan['images']:,} images{' (as ImageNet-1k; name data to count)' if plan['images_assumed'] else ''}"
    console.line(
        f"{recipe['model']}: {recipe['epochs']} epochs of {images}, {plan['steps_per_epoch']:,} steps of"
        f" {recipe['batch_size']}; {plan['weights']:,} weights in {plan['layers']} layers."
    )
    if plan["changes"]:
        changes = [(f"{c['epoch']:g}", c["step"], c["action"], _zeros(c["sparsity"])) for c in plan["changes"]]
        console.table("Changes of the masks", ["epoch", "step", "what", "zeros"], changes)
    if plan["moves"]:
        console.line(f"Masks move {plan['moves']} times.")
    rows = [(f"{s['epoch']:g}", s["step"], s["folder"]) for s in plan["saves"]]
    console.table("Models written", ["epoch", "after step", "folder"], rows)
    rates = [(f"{r['epoch']:.4g}", r["step"], f"{r['rate']:.3e}") for r in plan["learning_rates"]]
    console.table("Learning rates", ["epoch", "step", "rate"], rates)
    each = duration(plan["seconds_per_image"] * 1000)
    console.line(
        f"About {duration(plan['seconds'])} on this machine with one process: 1,000 images take {each} of training;"
        " without the solver's own work and the decoding of images."
    )


def _zeros(target: Any) -> str:
    return "–" if target is None else target if isinstance(target, str) else f"{100 * target:g} %"


def _measured(timeline) -> Sequence[int]:
    return [step for step, event in sorted(timeline.events.items()) if event.is_measured]


def _image_counts(recipe, model) -> tuple[int, int, bool]:
    """(images of an epoch, images to measure on, whether they are assumed)."""
    from ..data.opening import open_images
    from ..models import class_count
    from ..training.run import check_images, source_of

    data, source = recipe.data, source_of(recipe)
    if data.dataset is None and data.data_dir is None and source.kind == "bundled":
        from ..errors import InputError

        try:
            check_images(source, model)
        except InputError:  # a recipe for images that are not named yet
            return data.images or IMAGENET, data.eval_images or 50_000, True
    train, test = (len(open_images(source, split, class_count(model))) for split in ("train", "validation"))
    return data.images or train, data.eval_images or test, False
