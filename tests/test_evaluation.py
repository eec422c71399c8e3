import pytest
import torch
import torch.nn.functional as F
from torch import nn

from secateur.errors import InputError, NumericsError
from secateur.evaluation import Evaluation, evaluate


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 7))


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 3, 2, 2, generator=generator), torch.randint(7, (n,), generator=generator)) for n in (9, 9, 4)
    ]


def plain(model, batches):
    """One image after the other."""
    top1 = top5 = loss = images = 0.0
    model.eval()
    for inputs, labels in batches:
        for image, label in zip(inputs, labels.tolist(), strict=True):
            with torch.no_grad():
                logits = model(image[None])[0].tolist()
            rank = sorted(range(7), key=lambda c: -logits[c]).index(label)
            top1, top5, images = top1 + (rank == 0), top5 + (rank < 5), images + 1
            loss += float(torch.tensor(logits).logsumexp(0)) - logits[label]
    return 100 * top1 / images, 100 * top5 / images, loss / images, images


def test_it_agrees_with_a_plain_loop(model, batches):
    found = evaluate(model, batches)
    expected = plain(model, batches)
    assert (found.top1, found.top5, found.loss, found.images) == pytest.approx(expected, rel=1e-5)
    assert found.seconds > 0


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(model, batches, training):
    model.train(training)
    model[3].train(not training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluate(model, batches)
    assert model.training == training and model[3].training != training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_modes_come_back_after_a_failure_too(model, batches):
    model.train()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        evaluate(model, [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))])
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_may_be_a_mean_or_one_value_a_sample(model, batches, reduction):
    found = evaluate(model, batches, lambda outputs, labels: 2 * F.cross_entropy(outputs, labels, reduction=reduction))
    assert found.loss == pytest.approx(2 * plain(model, batches)[2], rel=1e-5)


def test_keyword_batches_and_outputs_with_logits_are_taken(model, batches):
    class Wrapped(nn.Module):
        def forward(self, pixel_values):
            return type("Output", (), {"logits": model(pixel_values)})()

    named = [{"pixel_values": inputs, "labels": labels} for inputs, labels in batches]
    model.eval()
    found, expected = evaluate(Wrapped(), named), evaluate(model, batches)
    assert (found.top1, found.top5, found.loss) == (expected.top1, expected.top5, expected.loss)


def test_fewer_than_five_classes_are_always_among_the_top_five():
    batches = [(torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))]
    assert evaluate(nn.Linear(6, 3), batches).top5 == 100


def test_progress_is_wrapped_around_the_batches(model, batches):
    calls = []
    evaluate(model, batches, track=lambda items, description, total: calls.append((description, total)) or items)
    assert calls == [("evaluation", 3)]


@pytest.mark.parametrize(("top1", "images", "error"), [(50.0, 2500, 1.0), (90.0, 100, 3.0), (100.0, 10, 0.0)])
def test_the_standard_error_is_that_of_a_proportion(top1, images, error):
    assert Evaluation(top1, 100.0, 0.0, images, 1.0).standard_error == pytest.approx(error)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 7], "Labels of batch 1 run from 0 to 7, but the model has 7 classes; give the data"),
        ([-1, 2], "Labels of batch 1 run from -1 to 2"),
    ],
)
def test_labels_that_are_not_the_models_are_refused(model, batches, labels, message):
    with pytest.raises(InputError, match=message):
        evaluate(model, [batches[0], (torch.zeros(2, 3, 2, 2), torch.tensor(labels))])


def test_nothing_to_measure_on_is_an_error(model):
    with pytest.raises(InputError, match="There is no batch to evaluate on; give at least one image"):
        evaluate(model, [])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_name_the_batch(model, batches, bad):
    batches[2][0][1] = bad
    with pytest.raises(NumericsError, match="outputs for batch 2 are NaN or infinite; look at weights and images"):
        evaluate(model, batches)
