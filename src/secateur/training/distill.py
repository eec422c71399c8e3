"""A dense teacher takes part in the loss of the student: (1 − w) · L(labels) + w · L(teacher).

L(teacher) is soft, T² · KL(teacher ‖ student) with both softened by the temperature T (Hinton et al. 2015,
arXiv:1503.02531), or hard, the cross-entropy with the class that the teacher would choose (Touvron et al. 2021,
arXiv:2012.12877). Cost: a forward pass of the teacher a batch.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InputError
from ..modes import evaluating

KINDS = ("soft", "hard")


@dataclass(frozen=True)
class Distillation:
    """How much a teacher counts, and how it is heard.

    >>> student, teacher = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> options = Distillation(weight=0.25, temperature=2.0)
    >>> round(float(options.mixed(torch.tensor(0.5), student, teacher)), 4)
    0.4975
    """

    weight: float = 0.5  # w
    temperature: float = 1.0  # T
    kind: str = "soft"

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise InputError(f"The teacher's weight is {self.weight}; give a number from 0 to 1, such as 0.5.")
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"The teacher's temperature is {self.temperature}; give a number above 0, such as 1.")
        if self.kind not in KINDS:
            raise InputError(f"There is no teacher's loss {self.kind!r}; choose {' or '.join(KINDS)}.")

    def mixed(self, loss: Tensor, student: Tensor, teacher: Tensor) -> Tensor:
        """The loss that the labels gave, with the teacher's part; from logits (..., classes)."""
        soft = self.kind == "soft"
        of_teacher = soft_loss(student, teacher, self.temperature) if soft else hard_loss(student, teacher)
        return (1 - self.weight) * loss + self.weight * of_teacher


def soft_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """T² · KL(teacher ‖ student), the mean over all but the classes; the gradient is of the size it has at T = 1."""
    own, other = _comparable(student, teacher)
    own, other = (F.log_softmax(logits / temperature, dim=-1) for logits in (own, other))
    return F.kl_div(own, other, reduction="none", log_target=True).sum(-1).mean() * temperature**2


def hard_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """The cross-entropy of the student with the class that the teacher would choose."""
    own, other = _comparable(student, teacher)
    return F.cross_entropy(own.flatten(0, -2), other.argmax(-1).flatten())


def opinion(teacher: nn.Module, inputs: Tensor) -> Tensor:
    """The teacher's logits, in evaluation mode and without gradients; its own mode stays."""
    with torch.no_grad(), evaluating(teacher):
        outputs = teacher(inputs)
    return getattr(outputs, "logits", outputs)


def _comparable(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    if student.shape != teacher.shape:
        raise InputError(
            f"The student's outputs are {tuple(student.shape)} and the teacher's {tuple(teacher.shape)}; they must know"
            " the same classes."
        )
    precise = torch.promote_types(student.dtype, torch.float32)  # T² times a small difference
    return student.to(precise), teacher.detach().to(precise)
