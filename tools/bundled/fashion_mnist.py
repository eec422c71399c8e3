"""Fashion-MNIST from its four idx files, and the description of the model that the project ships for it."""

import gzip
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from secateur.bundled import LABEL_NAMES, MEAN, STD

MODEL = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 10,
    "global_pool": "avg",
    "model_args": {
        "img_size": 28, "patch_size": 4, "in_chans": 1, "num_classes": 10, "embed_dim": 128, "depth": 6,
        "num_heads": 4, "class_token": False, "global_pool": "avg",
    },
    "pretrained_cfg": {
        "input_size": [1, 28, 28], "fixed_input_size": True, "interpolation": "bilinear", "crop_pct": 1.0,
        "crop_mode": "center", "mean": MEAN, "std": STD, "num_classes": 10, "first_conv": "patch_embed.proj",
        "classifier": "head", "license": "apache-2.0",
        "label_names": LABEL_NAMES,
    },
}  # fmt: skip


def read_idx(path: Path) -> np.ndarray:
    """The array in a gzipped idx file: two zero bytes, type 8 (uint8), rank, big-endian sizes, data."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is no idx file of bytes: it starts with {raw[:4]!r}.")
    sizes = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes)


class FashionMnist(Dataset):
    """(image, label) of one split, "train" or "t10k"; images are single-channel PIL images before the transform."""

    def __init__(self, folder: Path, split: str, transform):
        self.images = read_idx(folder / f"{split}-images-idx3-ubyte.gz")
        self.labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index], mode="L")), int(self.labels[index])
