"""What a dense teacher adds to the loss, against sums written out class by class."""

import math

import pytest
import torch
from cases import convolutional, images, mlp
from torch import nn

from secateur import InputError
from secateur.training.distill import Distillation, hard_loss, opinion, soft_loss

SHAPES = {"one image": (1, 2), "images": (5, 7), "images and tokens": (3, 4, 6), "one class": (4, 1)}


def logits(shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(2, *shape, generator=generator, dtype=torch.float64)).to(dtype)


def probabilities(row, temperature=1.0):
    powers = [math.exp(x / temperature) for x in row]
    return [p / sum(powers) for p in powers]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_soft_loss_is_the_divergence_of_softened_probabilities(shape, temperature):
    student, teacher = logits(SHAPES[shape])
    rows = zip(student.flatten(0, -2).tolist(), teacher.flatten(0, -2).tolist(), strict=True)
    divergences = []
    for own, other in rows:
        p, q = probabilities(other, temperature), probabilities(own, temperature)
        divergences.append(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    expected = temperature**2 * sum(divergences) / len(divergences)
    assert float(soft_loss(student, teacher, temperature)) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_hard_loss_is_the_surprise_at_the_teachers_choice(shape):
    student, teacher = logits(SHAPES[shape])
    rows = list(zip(student.flatten(0, -2).tolist(), teacher.flatten(0, -2).tolist(), strict=True))
    expected = sum(-math.log(probabilities(own)[other.index(max(other))]) for own, other in rows) / len(rows)
    assert float(hard_loss(student, teacher)) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_weight_shares_the_loss_between_labels_and_teacher(kind, weight):
    student, teacher = logits((5, 7))
    mixed = Distillation(weight, 2.0, kind).mixed(torch.tensor(1.7).double(), student, teacher)
    of_teacher = soft_loss(student, teacher, 2.0) if kind == "soft" else hard_loss(student, teacher)
    assert float(mixed) == pytest.approx((1 - weight) * 1.7 + weight * float(of_teacher))


def test_a_student_that_agrees_has_nothing_to_learn():
    student = logits((5, 7))[0].requires_grad_()
    loss = soft_loss(student, student.detach().clone(), 3.0)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-12 and student.grad.abs().max() < 1e-12


def test_only_the_student_learns():
    student, teacher = (x.clone().requires_grad_() for x in logits((5, 7)))
    (soft_loss(student, teacher) + hard_loss(student, teacher)).backward()
    assert student.grad.any() and teacher.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_single(dtype):
    student, teacher = logits((5, 7), dtype)
    loss = soft_loss(student, teacher, 4.0)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, soft_loss(student.float(), teacher.float(), 4.0))


def test_a_teacher_speaks_in_evaluation_mode_and_stays_as_it_was():
    teacher, (inputs, _) = convolutional().train(), images()[0]
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    said = opinion(teacher, inputs)
    assert teacher.training and not said.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert torch.equal(said, teacher.eval()(inputs))


def test_a_teachers_logits_may_be_an_attribute_of_its_outputs():
    class Named(nn.Module):
        def forward(self, inputs):
            return type("Outputs", (), {"logits": inputs.sum((1, 2))})()

    inputs = images()[0][0]
    assert torch.equal(opinion(Named(), inputs), inputs.sum((1, 2)))


def test_a_student_comes_closer_to_its_teacher():
    teacher, student = mlp(), mlp()
    with torch.no_grad():
        student[1].weight.mul_(torch.rand_like(student[1].weight) < 0.5)
    optimizer, (inputs, _) = torch.optim.Adam(student.parameters(), lr=0.01), images()[0]
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(soft_loss(student(inputs), opinion(teacher, inputs), 2.0))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 10


WRONG = {
    "a weight above one": ({"weight": 1.5}, r"The teacher's weight is 1.5; give a number from 0 to 1"),
    "no number": ({"weight": float("nan")}, r"The teacher's weight is nan"),
    "no temperature": ({"temperature": 0.0}, r"The teacher's temperature is 0.0; give a number above 0"),
    "another kind": ({"kind": "warm"}, r"There is no teacher's loss 'warm'; choose soft or hard"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_cannot_be_are_refused(case):
    options, said = WRONG[case]
    with pytest.raises(InputError, match=said):
        Distillation(**options)


@pytest.mark.parametrize("loss", [soft_loss, hard_loss])
def test_a_teacher_of_other_classes_is_refused(loss):
    with pytest.raises(InputError, match=r"outputs are \(5, 7\) and the teacher's \(5, 8\)"):
        loss(torch.zeros(5, 7), torch.zeros(5, 8))
