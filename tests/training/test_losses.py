import pytest
import torch
from torch import nn

from secateur.training.augment import AUGMENTATIONS, Augmentation
from secateur.training.distill import Distillation, soft_loss
from secateur.training.losses import Teacher, TrainingLoss

IMAGES, LABELS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


def test_a_teacher_takes_its_share_of_the_labels_weight():
    torch.manual_seed(0)
    network, teacher = nn.Linear(5, 3), nn.Linear(5, 3).requires_grad_(False)
    augmentation = Augmentation(smoothing=0.1)
    plain = TrainingLoss(augmentation, 3)(network, IMAGES, LABELS)
    taught = TrainingLoss(augmentation, 3, Teacher(teacher, Distillation(0.25, 2.0)))(network, IMAGES, LABELS)
    opinion = soft_loss(network(IMAGES), teacher(IMAGES), 2.0)
    torch.testing.assert_close(taught, 0.75 * plain + 0.25 * opinion)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_the_targets_of_every_augmentation_are_probabilities_that_the_loss_takes(name):
    augmentation = AUGMENTATIONS[name]
    images = torch.randn(6, 1, 8, 8)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    assert torch.isfinite(TrainingLoss(augmentation, 3)(network, images, LABELS))
    if mixing := augmentation.mixing(3):
        _, targets = mixing(images.clone(), LABELS)
        torch.testing.assert_close(targets.sum(1), torch.ones(6))


def test_the_loss_of_the_fisher_smooths_the_labels_and_mixes_nothing():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    logs = logits.log_softmax(1)
    expected = -(0.9 * logs[range(6), LABELS] + 0.1 * logs.mean(1)).mean()
    torch.testing.assert_close(AUGMENTATIONS["deit"].plain_loss()(logits, LABELS), expected)
