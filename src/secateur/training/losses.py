"""The loss of a training step: timm's for hard or mixed labels, and a dense teacher's opinion where there is one.

Distillation: (1 − w) · L(labels) + w · T² · KL(teacher ‖ student), both softened by the temperature T (Hinton et al.
2015).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .augment import Augmentation


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² · KL(teacher ‖ student) over the classes, the mean over the batch; from logits (images, classes)."""
    own = F.log_softmax(student / temperature, dim=1)
    other = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(own, other, reduction="batchmean", log_target=True) * temperature**2


@dataclass(frozen=True)
class Teacher:
    """A model in evaluation mode, and how much it counts."""

    model: nn.Module
    weight: float
    temperature: float


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
        with torch.no_grad():
            opinion = self.teacher.model(images)
        weight = self.teacher.weight
        return (1 - weight) * loss + weight * distillation(logits, opinion, self.teacher.temperature)
