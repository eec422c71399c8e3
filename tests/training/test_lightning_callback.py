"""Zeros stay zero through real fits of Lightning."""

import lightning.pytorch as pl
import pytest
import torch
from cases import mlp
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from secateur import InputError
from secateur.training.callbacks.lightning import KeepMasks

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),  # Lightning's own
]


class Classifier(pl.LightningModule):
    def __init__(self, optimizers=1):
        super().__init__()
        self.model, self.automatic_optimization, self.number = mlp(), optimizers == 1, optimizers

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        if not self.automatic_optimization:
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
        return loss

    def configure_optimizers(self):
        options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
        if self.number == 1:
            return torch.optim.SGD(self.parameters(), **options)
        return [torch.optim.SGD(self.model[i].parameters(), **options) for i in (1, 3, 5)]


def half_masks():
    generator = torch.Generator().manual_seed(0)
    return {n: torch.rand(mlp().get_parameter(n).shape, generator=generator) < 0.5 for n in ("1.weight", "3.weight")}


def fit(module, callback, folder, epochs=2, accumulate=3, ckpt_path=None):
    torch.manual_seed(0)
    images = TensorDataset(torch.randn(48, 3, 2, 2), torch.arange(48) % 3)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs, accumulate_grad_batches=accumulate, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[callback, ModelCheckpoint(folder, filename="last", enable_version_counter=False)],
    )  # fmt: skip
    trainer.fit(module, DataLoader(images, batch_size=8), ckpt_path=ckpt_path)
    return trainer


def assert_zeros_hold(model, masks):
    for name, mask in masks.items():
        weight = model.get_parameter(name)
        assert not weight[~mask].any() and weight[mask].all(), name


def test_zeros_stay_zero_through_momentum_weight_decay_and_accumulation(tmp_path):
    module, masks = Classifier(), half_masks()
    trainer = fit(module, KeepMasks(masks, "model"), tmp_path)
    assert trainer.global_step == 4
    assert_zeros_hold(module.model, masks)
    moments = trainer.optimizers[0].state[module.model[1].weight]["momentum_buffer"]
    assert not moments[~masks["1.weight"]].any() and moments.any()


def test_zeros_stay_zero_under_several_optimizers(tmp_path):
    module, masks = Classifier(optimizers=3), half_masks()
    fit(module, KeepMasks(masks, "model"), tmp_path, accumulate=1)
    assert_zeros_hold(module.model, masks)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_masks_travel_in_the_checkpoint(tmp_path):
    masks = half_masks()
    fit(Classifier(), KeepMasks(masks, "model"), tmp_path)
    module, callback = Classifier(), KeepMasks({"3.weight": torch.ones(7, 9) > 0}, "model")
    fit(module, callback, tmp_path, epochs=4, ckpt_path=tmp_path / "last.ckpt")
    assert_zeros_hold(module.model, masks)
    assert callback.keeper.masks.keys() == masks.keys()


def test_by_default_the_zeros_that_are_there_are_kept(tmp_path):
    module, masks = Classifier(), half_masks()
    with torch.no_grad():
        for name, mask in masks.items():
            module.model.get_parameter(name).mul_(mask)
    fit(module, KeepMasks(), tmp_path)
    assert_zeros_hold(module.model, masks)


def test_names_that_are_not_the_modules_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"Classifier has no weight '1.weight'. Did you mean model.1.weight"):
        fit(Classifier(), KeepMasks(half_masks()), tmp_path)


def test_masks_may_be_loaded_when_the_fit_has_started():
    module, callback, masks = Classifier(), KeepMasks(half_masks(), "model"), half_masks()
    assert callback.state_dict() == {}
    trainer = type("Trainer", (), {"optimizers": [module.configure_optimizers()]})()
    callback.on_fit_start(trainer, module)
    stored = callback.state_dict()
    callback.keeper.set_masks_({"3.weight": torch.zeros(7, 9) > 0})
    callback.load_state_dict(stored)
    assert all(torch.equal(callback.keeper.masks[name], mask) for name, mask in masks.items())
