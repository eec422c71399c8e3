"""Put training runs side by side: top-1 at each sparsity, and what each change of the masks cost.

secateur report runs/bundled-gradual runs/bundled-gradual-magnitude --out runs/side-by-side
"""

from dataclasses import dataclass

from .console import Console
from .options import option

HELP = "put training runs side by side"


@dataclass
class Options:
    runs: list[str] = option([], "folders that `secateur train` wrote", positional=True)
    out: str | None = option(None, "folder for report.html and report.json", metavar="FOLDER")
    overwrite: bool = option(False, "replace a folder that secateur wrote before")
    json: bool = option(False, "print one JSON document")


def run(options: Options) -> int:
    from ..errors import InputError
    from ..files import check_output, new_folder
    from ..report.runs import labelled, write_run_report
    from ..training.results import gather_run

    if not options.runs:
        raise InputError("`secateur report` needs the folders of one or more runs.")
    runs = labelled([gather_run(folder) for folder in options.runs])
    if options.out is not None:
        check_output(options.out, options.overwrite)
        with new_folder(options.out, options.overwrite) as folder:
            write_run_report(runs, folder)
    with Console(options.json) as console:
        console.document({"runs": runs})
        _print(runs, console)
        if options.out is not None:
            console.line(f"Report: {options.out}/report.html")
    return 0


def _print(runs: list[dict], console: Console) -> None:
    from ..report.runs import mean_drop, side_by_side

    labels = [run["label"] for run in runs]
    rows = [
        (sparsity, *(f"{model['top1']:.2f}" if model else None for model in found))
        for sparsity, found in side_by_side(runs)
    ]
    console.table("Top-1 of the models written, %", ["sparsity", *labels], rows)
    drops = [
        (run["label"], len(run["changes"]), f"{mean_drop(run):+.2f}", f"{min(_changes(run)):+.2f}")
        for run in runs
        if run["changes"]
    ]
    if drops:
        console.table("Top-1 at changes of the masks, points", ["run", "changes", "mean", "worst"], drops)


def _changes(run: dict) -> list[float]:
    return [change["after"] - change["before"] for change in run["changes"]]
