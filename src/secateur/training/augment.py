"""Augmentation and regularisation by name, as the paper's table has them; everything is done by timm.

`deit` and `light1` are the paper's columns. `torchvision` is the recipe of PyTorch's blog for convolutional networks,
with timm's RandAugment of one operation and a uniform magnitude in the place of TrivialAugment. `bundled` is what the
bundled model was trained with.
"""

from dataclasses import dataclass

from timm.data import Mixup
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import nn

from ..errors import InputError, nearest


@dataclass(frozen=True)
class Augmentation:
    """What is done to images, labels, weights and gradients against overfitting."""

    weight_decay: float = 0.0
    smoothing: float = 0.0  # ε of the labels
    drop_path: float = 0.0  # stochastic depth
    clip: float | None = None  # norm of the gradients, at most
    hflip: float = 0.5
    auto_augment: str = ""  # timm's policy
    mixup: float = 0.0  # α
    cutmix: float = 0.0  # α
    mix_probability: float = 1.0
    erase: float = 0.0  # probability that a rectangle is erased
    erase_mode: str = "pixel"
    test_crop: float | None = 0.9  # None: the model's own

    def __post_init__(self) -> None:
        for name in ("smoothing", "drop_path", "hflip", "mix_probability", "erase", "test_crop"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"{name} of the augmentation is {value}; give 0 to 1.")
        for name in ("weight_decay", "mixup", "cutmix", "clip"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"{name} of the augmentation is {value}; give 0 or more.")

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with one another, which takes batches of an even size."""
        return self.mixup > 0 or self.cutmix > 0

    def transform(self) -> dict:
        """The arguments of timm's `create_transform` that say what is done to an image."""
        return {
            "hflip": self.hflip,
            "auto_augment": self.auto_augment or None,
            "re_prob": self.erase,
            "re_mode": self.erase_mode,
            "color_jitter": None,
        }

    def mixing(self, classes: int) -> Mixup | None:
        """timm's mixup and cutmix, which also smooth the labels."""
        if not self.mixes:
            return None
        return Mixup(
            self.mixup, self.cutmix, prob=self.mix_probability, label_smoothing=self.smoothing, num_classes=classes
        )

    def loss(self) -> nn.Module:
        """Of logits and the targets that `mixing` gives, or labels where nothing is mixed."""
        return SoftTargetCrossEntropy() if self.mixes else self.plain_loss()

    def plain_loss(self) -> nn.Module:
        """Of logits and labels that were not mixed: what the Fisher is made of."""
        return LabelSmoothingCrossEntropy(self.smoothing)


AUGMENTATIONS = {
    "deit": Augmentation(
        weight_decay=0.05, smoothing=0.1, drop_path=0.1, auto_augment="rand-m9-mstd0.5-inc1",
        mixup=0.8, cutmix=1.0, erase=0.25,
    ),
    "light1": Augmentation(
        weight_decay=0.03, smoothing=0.1, clip=1.0, auto_augment="rand-m2-mstd0.5-inc1",
    ),
    "torchvision": Augmentation(
        weight_decay=2e-5, smoothing=0.1, auto_augment="rand-m10-n1-mstd101-inc1", mixup=0.2, cutmix=1.0, erase=0.1,
    ),
    "bundled": Augmentation(
        weight_decay=0.1, smoothing=0.1, drop_path=0.05, clip=1.0, mixup=0.2, cutmix=1.0, mix_probability=0.5,
        erase=0.25, erase_mode="const", test_crop=None,
    ),
}  # fmt: skip


def augmentation_named(name: str) -> Augmentation:
    """One of `AUGMENTATIONS`; InputError, with the nearest names, where there is none."""
    if name not in AUGMENTATIONS:
        raise InputError(f"There is no augmentation {name!r}.{nearest(name, AUGMENTATIONS)}")
    return AUGMENTATIONS[name]
