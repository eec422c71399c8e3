"""A detector's own loss, image by image, against every image alone through the untouched model."""

import pytest
import torch
from detectors import coco_folder, conditional_detr, detr, index_of
from torch import nn
from torch.testing import assert_close

from secateur import CAP, InputError, NumericsError, Resources, detection, prune_
from secateur.batches import cut, samples_in, summed_loss, to_device
from secateur.gradients import gradients_by_hooks, gradients_one_by_one, stream_gradients
from secateur.gradients.stream import choose_rule
from secateur.layers import select_layers
from secateur.set_loss import losses_by_image

INSIDE = "re:^model"  # all but the heads
KINDS = {"resnet": {}, "with auxiliary losses": {"auxiliary_loss": True}, "timm's backbone": {"backbone": "resnet10t"}}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return coco_folder(tmp_path_factory.mktemp("coco") / "coco")


@pytest.fixture(params=KINDS)
def case(request, root, in_float64):
    return detector_and_batch(root, **KINDS[request.param])


@pytest.fixture
def in_float64():
    """transformers makes the weights of its loss in torch's default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def detector_and_batch(root, **options):
    """A detector and four images of several sizes, one of them without boxes."""
    model = detr(**options)
    (batch,) = detection.calibration_batches(root, model, samples=4, seed=3, batch_size=4)
    assert {len(target["boxes"]) for target in batch["labels"]} == {0, 2}
    return model, {name: as_float64(value) for name, value in batch.items()}


def as_float64(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return [{**target, "boxes": target["boxes"].double()} for target in value]


def alone(model, batch):
    return torch.stack([model(**cut(batch, i)).loss for i in range(samples_in(batch))])


def gradients_alone(model, batch, weights):
    """{layer: (images, out, in)}, by autograd and the model's own loss of one image."""
    parameters = [weight.parameter.requires_grad_() for weight in weights.values()]
    each = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in alone(model, batch)]
    return {
        name: torch.stack([weight.matrix(gradient) for gradient in column])
        for (name, weight), column in zip(weights.items(), zip(*each, strict=True), strict=True)
    }


def test_each_image_has_the_loss_it_has_alone(case):
    model, batch = case
    with losses_by_image(model):
        losses = model(**batch).loss
    assert losses.shape == (4,)
    assert_close(losses, alone(model, batch))
    assert_close(summed_loss(model, batch, None, 0), losses.sum())
    assert (model(**batch).loss - losses.mean()).abs() > 0.01  # which is why


def test_images_with_as_many_boxes_have_the_loss_of_the_batch_as_their_mean(tmp_path):
    index = index_of(boxes_per_image=2, sizes=[(32, 32), (32, 40)])
    model = detr()
    (batch,) = detection.calibration_batches(coco_folder(tmp_path / "coco", index), model)
    assert_close(summed_loss(model, batch, None, 0) / 2, model(**batch).loss)


def test_hooks_give_the_gradients_of_each_image_alone(case):
    model, batch = case
    weights = select_layers(model, INSIDE)
    assert choose_rule(model.requires_grad_(False), batch, weights, None) is gradients_by_hooks
    found = {}
    stream_gradients(model, [batch], weights, lambda name, g: found.setdefault(name, g.clone()))
    truth = gradients_alone(model, batch, weights)
    assert max(float(g.norm()) for g in truth.values()) > 0.1
    for name, gradients in truth.items():
        assert_close(found.get(name, torch.zeros_like(gradients)), gradients, atol=1e-9, rtol=1e-6)


def test_heads_that_see_all_layers_at_once_for_auxiliary_losses_run_image_by_image(root, in_float64):
    model, batch = detector_and_batch(root, auxiliary_loss=True)
    weights = select_layers(model, "class_labels_classifier")
    assert choose_rule(model.requires_grad_(False), batch, weights, None) is gradients_one_by_one


def test_a_layer_whose_gradient_is_rounding_alone_keeps_the_hooks(root):
    model = detr().requires_grad_(False)
    batch = next(iter(detection.calibration_batches(root, model)))
    weights = select_layers(model, INSIDE)
    gradients = gradients_alone(model, batch, weights)["model.decoder.layers.0.self_attn.q_proj.weight"]
    assert 0 < gradients.norm() < 1e-6  # its queries are zeros
    assert choose_rule(model.requires_grad_(False), batch, weights, None) is gradients_by_hooks


def test_a_detector_of_another_loss_runs_image_by_image(root):
    model = conditional_detr()
    (batch,) = detection.calibration_batches(root, model, samples=3, seed=3)
    assert_close(summed_loss(model, batch, None, 0), alone(model, batch).sum())
    weights = select_layers(model, "model.encoder.*")
    assert choose_rule(model.requires_grad_(False), batch, weights, None) is gradients_one_by_one
    with torch.inference_mode():
        expected = float(alone(model, batch).mean())
    assert detection.evaluate(model, [batch]).loss == pytest.approx(expected, rel=1e-5)


class Coupled(nn.Module):
    """Its loss is one of the whole batch: all errors over all boxes."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 5), nn.Linear(5, 4)

    def forward(self, pixels, labels):
        found = self.head(torch.tanh(self.inner(pixels)))
        errors = [(found[i] - box).square().sum() for i, target in enumerate(labels) for box in target["boxes"]]
        return type("Output", (), {"loss": torch.stack(errors).sum() ** 1.5 / len(errors)})()


@pytest.mark.parametrize("boxes", [(2, 2, 2), (1, 3, 2)])
def test_a_detector_that_cannot_tell_its_images_apart_is_asked_image_by_image(boxes):
    torch.manual_seed(0)
    model = Coupled().double()
    labels = [{"boxes": torch.rand(count, 4, dtype=torch.float64)} for count in boxes]
    batch = {"labels": labels, "pixels": torch.randn(3, 3, dtype=torch.float64)}
    weights, found = select_layers(model, "*"), {}
    assert_close(summed_loss(model, batch, None, 0), alone(model, batch).sum())
    assert choose_rule(model.requires_grad_(False), batch, weights, None) is gradients_one_by_one
    stream_gradients(model, [batch], weights, lambda name, g: found.setdefault(name, g.clone()))
    for name, gradients in gradients_alone(model, batch, weights).items():
        assert_close(found[name], gradients)


def test_the_models_loss_is_its_own_again_afterwards():
    model, other = detr(), object()
    own = model.loss_function
    with pytest.raises(KeyError), losses_by_image(model):
        assert model.loss_function is not own
        raise KeyError
    assert model.loss_function is own and "_loss_function" not in vars(model)
    model.loss_function = other
    with losses_by_image(model):
        assert model.loss_function is not other
    assert model.loss_function is other


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_detector_is_pruned_by_its_own_loss_in_either_precision(root, precision):
    model = detr()
    batches = detection.calibration_batches(root, model)
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    result = prune_(model, batches, CAP(block=16), layers=INSIDE, resources=Resources(precision=precision))
    assert result.achieved == pytest.approx(0.5, abs=1e-3) and result.gradients == 6
    assert result.predicted_loss_increase > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_buffers())  # frozen batch norms


def test_outputs_that_are_not_finite_name_the_batch(root):
    model = detr()
    model.bbox_predictor.layers[2].bias.data[0] = float("nan")
    with pytest.raises(NumericsError, match="The loss of batch 0 is nan; look at that batch's images"):
        stream_gradients(
            model, detection.calibration_batches(root, model), select_layers(model, INSIDE), lambda name, g: None
        )


# --- batches whose targets are lists ----------------------------------------------------------------------------------

PIXELS, MASK = torch.arange(6.0).view(2, 3), torch.ones(2, 3)
TARGETS = [{"boxes": torch.zeros(2, 4)}, {"boxes": torch.ones(1, 4)}]  # two images: as many as the first one's boxes
BATCHES = {
    "a mapping": {"pixels": PIXELS, "mask": MASK, "labels": TARGETS},
    "a mapping, targets first": {"labels": TARGETS, "pixels": PIXELS},
    "a pair": (PIXELS, TARGETS),
    "a pair as a list": [{"pixels": PIXELS}, TARGETS],
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_list_of_targets_is_cut_into_those_of_each_sample(kind):
    batch = to_device(BATCHES[kind], torch.device("cpu"))
    assert samples_in(batch) == 2
    for i in range(2):
        one = cut(batch, i)
        assert type(one) is type(batch) and samples_in(one) == 1
        inputs, targets = (one["pixels"], one["labels"]) if isinstance(one, dict) else one
        inputs = inputs["pixels"] if isinstance(inputs, dict) else inputs
        assert torch.equal(inputs, PIXELS[i : i + 1])
        assert len(targets) == 1 and torch.equal(targets[0]["boxes"], TARGETS[i]["boxes"])


def test_a_list_of_two_mappings_is_a_pair_and_not_two_samples():
    batch = [{"pixels": PIXELS}, {"class": torch.tensor([3, 4])}]
    inputs, targets = cut(batch, 1)
    assert torch.equal(inputs["pixels"], PIXELS[1:]) and targets["class"].tolist() == [4]


def test_a_detector_without_a_loss_is_told_to_have_one():
    with pytest.raises(InputError, match="without a loss for a batch of x, labels; give a loss function"):
        summed_loss(NoLoss(), {"x": PIXELS, "labels": TARGETS}, None, 0)


class NoLoss(nn.Module):
    def forward(self, x, labels):
        return type("Output", (), {})()
