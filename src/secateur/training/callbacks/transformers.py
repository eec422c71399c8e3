"""Zeros that stay zero in the Trainer of Hugging Face: `Trainer(..., callbacks=[KeepMasks(result.masks)])`.

Each checkpoint it writes gets a masks.safetensors, which `secateur.checkpoint.load_masks` reads. Needs
`pip install secateur[transformers]`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ...checkpoint import masks_file
from ...files import write_atomically
from ...manifest import MASKS
from ..keeper import MaskKeeper


class KeepMasks(TrainerCallback):
    """Keeps masked weights at zero while a model is trained.

    Args:
        masks: {weight name: True where kept}, such as `prune_` returned; by default, for each linear layer and
            convolution that holds zeros when the training starts, the weights that are not zero.
    """

    def __init__(self, masks: Mapping[str, Tensor] | None = None) -> None:
        self.masks = masks
        self.keeper: MaskKeeper | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.keeper = MaskKeeper(given["model"], self.masks)
        self.keeper.attach(given["optimizer"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if state.is_world_process_zero and self.keeper is not None:
            folder = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            write_atomically(folder / MASKS, masks_file(self.keeper.masks))
