"""Training, on one screen: epochs → change of the masks → optimizer steps → the model measured, written, and kept safe.

The masks change before a step where the timeline says so: a pruning step, or what a rival method does instead.
"""

import time
from dataclasses import asdict

import numpy as np
import torch

from ..checkpoint import save
from ..data.batches import deaths_told
from ..data.transforms import randomness_kept
from ..evaluation import Evaluation, evaluate
from .changes import change_masks_
from .gradual import kept_at
from .journal import Entry
from .learning import learn_
from .recipe_file import plain
from .resume import write_checkpoint
from .run import Run

LINES = 50  # of metrics.csv in an epoch


def train_(run: Run) -> None:
    """Train from where the run stands to its end.

    Raises:
        NumericsError: when the loss or a weight is no longer finite; the checkpoints before are as they were.
        InputError: when images can no longer be read, or the disk is full.
    """
    with randomness_kept(), deaths_told(run.feed.source):
        if run.step == 0 and not run.changed:
            _record(run, "dense" if run.keeper.sparsity == 0 else "start", measured=measure(run))
        losses: list[float] = []
        for batch in run.feed.batches(run.step, run.timeline.steps):
            start = time.perf_counter()
            event = run.timeline.events.get(run.step)
            if event is not None and not run.changed:
                change_masks_(run, event, batch)
                run.changed, run.seconds = True, run.seconds + time.perf_counter() - start
                if event.is_measured:
                    _record(run, str(event), measured=measure(run))
                    write_checkpoint(run)
                start = time.perf_counter()
            losses.append(learn_(run, batch))
            run.step, run.changed = run.step + 1, False
            run.seconds += time.perf_counter() - start
            if run.step % max(1, run.timeline.steps_per_epoch // LINES) == 0:
                _record(run, "train", loss=float(np.mean(losses)))
                losses = []
            _close_step(run)


def measure(run: Run) -> Evaluation:
    """Top-1, top-5 and loss over the images of all processes."""
    own = evaluate(run.shown, run.held, track=run.track)
    sums = torch.tensor([own.top1, own.top5, own.loss, 1.0], dtype=torch.float64) * own.images
    top1, top5, loss, images = run.processes.sum_(sums).tolist()
    return Evaluation(top1 / images, top5 / images, loss / images, int(images), own.seconds)


def _close_step(run: Run) -> None:
    """What is due at the end of a step: the model measured, written where it was asked for, and kept safe."""
    if run.timeline.evaluates_at(run.step):
        measured = measure(run)
        _record(run, "epoch", measured=measured)
        if name := run.timeline.saves.get(run.step):
            _write_model(run, name, measured)
    if run.timeline.checkpoints_at(run.step):
        write_checkpoint(run)


def _write_model(run: Run, name: str, measured: Evaluation) -> None:
    """A folder that opens in plain timm, with what was measured and the recipe."""
    if run.is_first:
        kept = kept_at(run.model, run.recipe, run.keeper.masks, run.timeline.target_at(run.step))
        story = {"recipe": plain(run.recipe), "step": run.step, "seconds": run.seconds, "evaluation": asdict(measured)}
        story["epoch"] = run.step / run.timeline.steps_per_epoch
        save(run.shown, kept, run.out / name, story, overwrite=True)
    run.processes.wait()


def _record(run: Run, kind: str, loss: float | None = None, measured: Evaluation | None = None) -> None:
    """A line of the journal; the rate is that of the step before, or of the one that a change of the masks precedes."""
    if run.is_first:
        run.journal.add(
            Entry(
                step=run.step,
                epoch=round(run.step / run.timeline.steps_per_epoch, 4),
                kind=kind,
                seconds=round(run.seconds, 2),
                learning_rate=run.timeline.learning_rate(max(run.step - (not run.changed), 0)),
                sparsity=run.keeper.sparsity,
                loss=loss,
                top1=measured.top1 if measured else None,
                eval_loss=measured.loss if measured else None,
            )
        )
