"""What a person sees of a training: a bar with epoch, loss, rate and zeros, and a line for every measurement."""

from ..training.journal import Entry
from ..training.timeline import Timeline
from .console import Console


class Live:
    """A listener of the journal."""

    def __init__(self, timeline: Timeline, console: Console):
        self.timeline, self.console = timeline, console
        self.show = console.bar(timeline.steps)

    def __call__(self, entry: Entry) -> None:
        zeros = f"{100 * entry.sparsity:.1f} % zeros"
        epoch = f"epoch {entry.epoch:.2f}/{self.timeline.recipe.epochs}"
        if entry.top1 is None:
            text = f"{epoch}, loss {entry.loss:.4f}, rate {entry.learning_rate:.2e}, {zeros}"
            self.show(entry.step, text)
        else:
            what = "" if entry.kind == "epoch" else f" {entry.kind}:"
            self.console.note(
                f"step {entry.step}, {epoch}:{what} top-1 {entry.top1:.2f} %, loss {entry.eval_loss:.4f}, {zeros},"
                f" {entry.seconds:.0f} s"
            )
