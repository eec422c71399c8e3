"""A run of seconds: a tiny vision transformer on 64 of the bundled images, three cycles of four steps."""

import timm
import torch
from accelerate.state import AcceleratorState

from secateur.checkpoint import save
from secateur.training.loop import train_
from secateur.training.recipe_file import parse_recipe
from secateur.training.resume import begin_
from secateur.training.run import prepare

GREY = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 10}
TEXT = """\
model: MODEL
epochs: 3
batch_size: 16
augmentation: bundled
data: {images: 64, eval_images: 20}
learning_rate: {highest: 1e-3, lowest: 1e-4, cycle: 1}
gradual: {method: "cap:block=16", targets: [0.5, 0.75, 0.9], every: 1, samples: 16}
"""


def a_model(folder, **changes):
    """A tiny model with random weights, saved as a folder."""
    torch.manual_seed(0)
    save(timm.create_model("vit_tiny_patch16_224", **{**GREY, **changes}).eval(), {}, folder)
    return folder


def a_recipe(model, *changes):
    return parse_recipe(TEXT.replace("MODEL", str(model)), changes=changes)


def a_run(recipe, out, listeners=()):
    AcceleratorState._reset_state()  # one process, several precisions
    return prepare(recipe, out, listeners=listeners, device="cpu")


def trained(recipe, out, listeners=()):
    """The run, once it has come to its end; taken up where it is there already."""
    run = a_run(recipe, out, listeners)
    begin_(run)
    train_(run)
    return run
