"""Zeros that stay zero in Lightning: `Trainer(callbacks=[KeepMasks(result.masks)])`.

The masks travel in its checkpoints. Needs `pip install secateur[lightning]`.
"""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..keeper import MaskKeeper


class KeepMasks(Callback):
    """Keeps masked weights at zero while a model is fitted; with several optimizers, in each of them.

    Args:
        masks: {weight name: True where kept}, such as `prune_` returned; by default, for each linear layer and
            convolution that holds zeros when the fit starts, the weights that are not zero.
        module: the attribute of the LightningModule that the masks name weights of, such as "model"; "" is the
            LightningModule itself.
    """

    def __init__(self, masks: Mapping[str, Tensor] | None = None, module: str = "") -> None:
        self.masks, self.module = masks, module
        self.keeper: MaskKeeper | None = None
        self._stored: dict[str, Tensor] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.keeper = MaskKeeper(pl_module.get_submodule(self.module), self.masks)
        if self._stored is not None:
            self.keeper.load_state_dict(self._stored)
        self.keeper.attach(*trainer.optimizers)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.keeper is None else {"masks": self.keeper.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called before or after the fit has started, as the strategy has it."""
        self._stored = state_dict.get("masks")
        if self.keeper is not None and self._stored is not None:
            self.keeper.load_state_dict(self._stored)
