"""The loss of a training step: timm's for hard or mixed labels, and a dense teacher's part where there is one."""

from dataclasses import dataclass

from torch import Tensor, nn

from .augment import Augmentation
from .distill import Distillation, opinion


@dataclass(frozen=True)
class Teacher:
    """A model, and how much it counts."""

    model: nn.Module
    options: Distillation


class TrainingLoss:
    """The loss of a batch of images and labels, which are mixed first where the augmentation says so."""

    def __init__(self, augmentation: Augmentation, classes: int, teacher: Teacher | None = None):
        self.mixing, self.of_labels, self.teacher = augmentation.mixing(classes), augmentation.loss(), teacher

    def __call__(self, network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        targets = labels
        if self.mixing is not None:
            images, targets = self.mixing(images, labels)
        outputs = network(images)
        logits = getattr(outputs, "logits", outputs)
        loss = self.of_labels(logits, targets)
        if self.teacher is None:
            return loss
        return self.teacher.options.mixed(loss, logits, opinion(self.teacher.model, images))
