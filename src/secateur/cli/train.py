"""Train a model sparse by a recipe: gradual pruning, fine-tuning, AC/DC or RigL.

  secateur train bundled-gradual --out runs/bundled
  secateur train deit-small-gradual --data-dir imagenet --out runs/deit-small --resume auto

A recipe is one of the package (--list) or a YAML file; --set changes lines of it. The folder gets a model for each
sparsity that was asked for, metrics.csv, the recipe and a report; with --resume auto a killed run goes on where it was,
to the same bits. Under torchrun or accelerate launch it runs on several processes.
"""

from dataclasses import dataclass
from pathlib import Path

from .console import Console
from .options import option
from .plan import plan_document, print_plan

HELP = "train by a recipe, with zeros"


@dataclass
class Options:
    recipe: str | None = option(None, "name of a recipe, or a YAML file", positional=True)
    out: str | None = option(None, "folder of the run (default: runs/RECIPE)", metavar="FOLDER")
    resume: str = option("no", "go on from the folder's last checkpoint, where there is one", choices=("no", "auto"))
    dry_run: bool = option(False, "print the plan and an estimate of the time, and train nothing")
    model: str | None = option(None, "another model than the recipe's, such as a folder that secateur wrote")
    epochs: int | None = option(None, "another number of epochs", least=1)
    dataset: str | None = option(None, "bundled, or a timm name: torch/…, hfds/…")
    data_dir: str | None = option(None, "folder of train/ and val/ with a folder for each class", metavar="FOLDER")
    set: list[str] = option([], "other lines of the recipe, such as learning_rate.highest=1e-4", metavar="KEY=VALUE")
    device: str | None = option(None, "cpu, where an accelerator is there and not wanted", choices=("cpu",))
    threads: int | None = option(None, "processor threads to use (default: all cores)", least=1)
    tensorboard: bool = option(False, "log for TensorBoard below the folder")
    wandb: str | None = option(None, "log to this project of Weights & Biases", metavar="PROJECT")
    json: bool = option(False, "print one JSON document")
    list: bool = option(
        False, "list the recipes of the package"
    )  # last: within the class the name is taken from here on


def run(options: Options) -> int:
    from ..errors import InputError
    from ..training.recipe_file import read_recipe, recipe_names

    with Console(options.json) as console:
        if options.list:
            return _list(console)
        if options.recipe is None:
            raise InputError(f"`secateur train` needs a recipe; there are {', '.join(recipe_names())}.")
        recipe = read_recipe(options.recipe, _changes(options))
        if options.dry_run:
            plan = plan_document(recipe, options.device)
            console.document(plan)
            print_plan(plan, console)
            return 0
        out = Path(options.out or Path("runs") / Path(options.recipe).stem)
        return _train(options, recipe, out, console)


def _changes(options: Options) -> list[str]:
    """The flags, as lines of the recipe."""
    flags = {
        "model": options.model, "epochs": options.epochs, "data.dataset": options.dataset,
        "data.data_dir": options.data_dir,
    }  # fmt: skip
    return [f"{key}={value}" for key, value in flags.items() if value is not None] + options.set


def _list(console: Console) -> int:
    from ..training.recipe_file import read_recipe, recipe_names

    rows = [(name, read_recipe(name).about) for name in recipe_names()]
    console.document([{"name": name, "about": about} for name, about in rows])
    console.table("Recipes", ["name", "what it trains"], rows)
    return 0


def _train(options: Options, recipe, out: Path, console: Console) -> int:
    import torch

    from ..errors import InputError
    from ..report.runs import write_run_report
    from ..training.loop import train_
    from ..training.results import gather_run
    from ..training.resume import begin_
    from ..training.run import prepare
    from ..training.trackers import tensorboard, wandb
    from .live import Live

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if out.exists() and options.resume == "no":
        raise InputError(f"The folder {out} exists already; go on with --resume auto, or name another with --out.")
    run = prepare(recipe, out, console.track, device=options.device)
    if (found := begin_(run)) is not None:
        console.note(f"Going on from {found}, {run.where}.")
    if run.is_first:
        run.journal.listeners.append(Live(run.timeline, console))
        if options.tensorboard:
            run.journal.listeners.append(tensorboard(out / "tensorboard", run.step))
        if options.wandb is not None:
            run.journal.listeners.append(wandb(options.wandb, recipe))
    train_(run)
    if run.is_first:
        document = gather_run(out)
        write_run_report([document], out)
        console.document(document)
        _print(document, out, console)
    return 0


def _print(document: dict, out: Path, console: Console) -> None:
    rows = [
        (m["sparsity"], m["zeros"], f"{m['top1']:.2f}", m["loss"], f"{m['epoch']:g}", str(out / m["folder"]))
        for m in document["models"]
    ]
    columns = ["sparsity", "zeros", "top-1 %", "loss", "epoch", "saved in"]
    console.table(f"{document['recipe']['model']}: {document['label']}", columns, rows)
    drops = [
        (f"{c['epoch']:g}", c["what"], f"{c['before']:.2f}", f"{c['after']:.2f}", f"{c['after'] - c['before']:+.2f}")
        for c in document["changes"]
    ]
    if drops:
        console.table("Changes of the masks", ["epoch", "what", "top-1 before", "after", "change"], drops)
    console.line(f"Report: {out / 'report.html'}")
