"""A small vision transformer and Fashion-MNIST, shipped with the package so that everything can be tried offline.

Here stand the arguments of the transforms the model was trained and is measured with; licences are in NOTICE.md.
"""

from functools import cache
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
MODEL_FOLDER = FOLDER / "model"
IMAGES = FOLDER / "fashion_mnist.npz"

MEAN, STD = (0.2860,), (0.3530,)
TRAIN_TRANSFORM = {
    "scale": (0.7, 1.0), "ratio": (0.85, 1.18), "hflip": 0.5, "color_jitter": None,
    "re_prob": 0.25, "re_mode": "const", "interpolation": "bilinear",
}  # fmt: skip
VALIDATION_TRANSFORM = {"crop_pct": 1.0, "interpolation": "bilinear"}
LABEL_NAMES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


@cache
def load_images(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 28, 28) and labels (count,) as uint8, of "train" (8192 images) or "test" (10,000)."""
    with np.load(IMAGES, allow_pickle=False) as arrays:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    for array in (images, labels):
        array.flags.writeable = False  # every caller gets the same array
    return images, labels
