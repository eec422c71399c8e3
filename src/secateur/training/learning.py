"""One optimizer step.

All that is random in it follows from the seed and the step, so that a run taken up from a checkpoint goes on to the
same bits.
"""

from contextlib import nullcontext

import numpy as np
import torch

from ..data.transforms import seed_for
from ..errors import NumericsError
from .feed import Batch
from .run import Run


def learn_(run: Run, batch: list[Batch]) -> float:
    """One optimizer step over the micro-batches; returns the mean loss."""
    rate = run.timeline.learning_rate(run.step)
    for group in run.optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)
    loss = backward_(run, batch)
    if run.recipe.augmentation.clip is not None:
        run.accelerator.clip_grad_norm_(run.model.parameters(), run.recipe.augmentation.clip)
    run.stepper.step()  # the keeper sets what the masks drop to zero again
    run.stepper.zero_grad()
    if run.average is not None:
        run.average.update(run.model)
        run.keeper.apply_to_(run.average.module)
    return loss


def backward_(run: Run, batch: list[Batch]) -> float:
    """The gradients of the mean loss over the micro-batches of all processes; returns this process's.

    Raises:
        NumericsError: when it is not finite.
    """
    _seed_step(run)
    run.network.train()
    total = torch.zeros((), device=run.accelerator.device)
    for number, (images, labels) in enumerate(batch, 1):
        is_last = number == len(batch)  # with which processes exchange their gradients
        with nullcontext() if is_last else run.accelerator.no_sync(run.network):
            with run.accelerator.autocast():
                loss = run.loss(run.network, images.to(total.device), labels.to(total.device))
            run.accelerator.backward(loss / len(batch))
        total += loss.detach() / len(batch)
    if not torch.isfinite(total):
        raise NumericsError(
            f"The loss is {float(total)} at {run.where}, with a learning rate of"
            f" {run.timeline.learning_rate(run.step):.3g}; try a lower learning_rate.highest. The last checkpoint is as"
            " it was."
        )
    return float(total)


def _seed_step(run: Run) -> None:
    """Mixing, dropout and stochastic depth draw from generators seeded for this step and process."""
    seed = int(np.random.SeedSequence([run.recipe.seed, run.processes.rank, 2]).generate_state(1)[0])
    seed_for(seed, run.step)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(torch.random.default_generator.initial_seed())
