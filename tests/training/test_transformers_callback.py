"""Zeros stay zero through real trainings of Hugging Face's Trainer, and under accelerate's optimizer."""

import pytest
import torch
from accelerate import Accelerator
from cases import images, mlp
from torch import nn
from transformers import Trainer, TrainingArguments

from secateur import MaskKeeper
from secateur.checkpoint import load_masks
from secateur.training.callbacks.transformers import KeepMasks


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, pixels, labels):
        logits = self.model(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "the Trainer's own": None,
}


def half_masks():
    generator = torch.Generator().manual_seed(0)
    shapes = {f"model.{name}": mlp().get_parameter(name).shape for name in ("1.weight", "3.weight")}
    return {name: torch.rand(shape, generator=generator) < 0.5 for name, shape in shapes.items()}


def train(model, callback, folder, optimizer="SGD", steps=4, resume=None):
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=3,
        weight_decay=0.1, learning_rate=0.1, lr_scheduler_type="constant", save_steps=2, report_to=[], use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False, seed=0,
    )  # fmt: skip
    torch.manual_seed(0)
    rows = [{"pixels": torch.randn(3, 2, 2), "labels": i % 3} for i in range(48)]
    make = OPTIMIZERS[optimizer]
    optimizers = (make(model.parameters()) if make else None, None)
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[callback], optimizers=optimizers)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def assert_zeros_hold(model, masks):
    for name, mask in masks.items():
        weight = model.get_parameter(name)
        assert not weight[~mask].any() and weight[mask].all(), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zeros_stay_zero_through_momentum_weight_decay_and_accumulation(optimizer, tmp_path):
    model, masks = Classifier(), half_masks()
    before = model.model[5].weight.clone()
    trainer = train(model, KeepMasks(masks), tmp_path, optimizer)
    assert trainer.state.global_step == 4 and not torch.equal(before, model.model[5].weight)
    assert_zeros_hold(model, masks)
    state = trainer.optimizer.state[model.model[1].weight]
    moments = [v for v in state.values() if torch.is_tensor(v) and v.dim()]
    assert moments and not any(m[~masks["model.1.weight"]].any() for m in moments)


def test_every_checkpoint_has_the_masks_and_a_training_resumed_from_it_keeps_them(tmp_path):
    masks = half_masks()
    train(Classifier(), KeepMasks(masks), tmp_path)
    for step in (2, 4):
        stored = load_masks(tmp_path / f"checkpoint-{step}")
        assert stored.keys() == masks.keys() and all(torch.equal(stored[name], masks[name]) for name in masks)
    model = Classifier()
    train(model, KeepMasks(), tmp_path, steps=6, resume=str(tmp_path / "checkpoint-4"))  # the zeros that are there
    assert_zeros_hold(model, masks)


def test_zeros_stay_zero_under_the_optimizer_that_accelerate_prepared():
    accelerator, model, masks = Accelerator(cpu=True, gradient_accumulation_steps=3), Classifier(), half_masks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    prepared, wrapped = accelerator.prepare(model, optimizer)
    keeper = MaskKeeper(prepared, masks)
    keeper.attach(wrapped)
    for inputs, targets in images(batches=9):
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(inputs, targets)["loss"])
            wrapped.step()
            wrapped.zero_grad()
    assert int(optimizer.state[model.model[1].weight]["step"]) == 3
    assert_zeros_hold(model, masks)
    keeper.verify()
