import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from secateur.checkpoint import save
from secateur.cli import main

GREY = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 10}
COLOUR = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
SMALL = ["--samples", "32", "--eval-samples", "20", "--block", "16"]


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Tables of one width, whatever terminal the tests are started from."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def call(capsys):
    """Run one command here; what it returned, and what stood on its two outputs."""

    def run(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return run


def a_model(folder, change=lambda model: None, **arguments):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **arguments).eval()
    change(model)
    save(model, {}, folder)
    return folder


@pytest.fixture(scope="session")
def grey(tmp_path_factory):
    """A tiny model that takes the bundled images."""
    return a_model(tmp_path_factory.mktemp("models") / "grey", **GREY)


@pytest.fixture(scope="session")
def colour(tmp_path_factory):
    """A tiny model of three classes that takes the images of a folder."""
    return a_model(tmp_path_factory.mktemp("models") / "colour", **COLOUR)


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of three classes with six images each."""
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (root / name).mkdir()
        for i in range(6):
            pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def pruned(grey, tmp_path_factory):
    """A run directory at 50 %, made once; copy it before changing it."""
    folder = tmp_path_factory.mktemp("runs") / "pruned"
    assert main(["prune", "--model", str(grey), "--sparsity", "0.5", "--out", str(folder), *SMALL]) == 0
    return folder


@pytest.fixture
def run(pruned, tmp_path):
    """A copy of the run directory, to be tampered with."""
    return shutil.copytree(pruned, tmp_path / "run")
