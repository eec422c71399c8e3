import copy
import itertools

import pytest
import timm
import torch
from detectors import detr
from safetensors.torch import load_file
from small import a_model, a_recipe, a_run, trained

import secateur
from secateur.certificate import inspect_all
from secateur.checkpoint import load_masks
from secateur.errors import InputError, NumericsError
from secateur.manifest import read_manifest
from secateur.solvers import METHODS
from secateur.training.journal import read_journal
from secateur.training.learning import learn_
from secateur.training.loop import train_
from secateur.training.resume import checkpoints, start_


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return a_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A whole run, and its folder."""
    out = tmp_path_factory.mktemp("runs") / "run"
    return trained(a_recipe(tiny), out), out


def zeros_of(model, masks):
    weights = model.state_dict()
    return sum(int((weights[name] == 0).sum()) for name in masks)


# --- the method -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.5, 0.75, 0.9])
def test_every_sparsity_is_reached_exactly_and_its_model_opens_in_plain_timm(finished, sparsity):
    run, out = finished
    folder = out / f"{sparsity:g}"
    masks, weights = load_masks(folder), load_file(folder / "model.safetensors")
    total = sum(mask.numel() for mask in masks.values())
    assert sum(int((weights[name] == 0).sum()) for name in masks) == round(sparsity * total)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    top1 = secateur.evaluate(model, run.held).top1
    assert read_manifest(folder)["run"]["evaluation"]["top1"] == pytest.approx(top1)
    assert secateur.inspect(folder).ok


def test_every_model_of_a_run_is_certified_and_nothing_else_is(finished):
    found = inspect_all(finished[1])
    assert list(found) == ["0.5", "0.75", "0.9"] and all(certificate.ok for certificate in found.values())


def test_the_journal_tells_the_drop_at_every_pruning_step_and_the_rate_of_every_line(finished):
    run, out = finished
    entries = read_journal(out / "metrics.csv")
    kinds = [entry.kind for entry in entries if entry.kind != "train"]
    assert kinds == [
        "dense", "prune to 0.5", "epoch", "prune to 0.75", "epoch", "prune to 0.9", "epoch",
    ]  # fmt: skip
    assert [e.step for e in entries if e.kind == "train"] == list(range(1, 13))
    assert all(e.top1 is not None and e.eval_loss is not None for e in entries if e.kind != "train")
    rates = [e.learning_rate for e in entries if e.kind == "train"]
    assert rates == [run.timeline.learning_rate(step) for step in range(12)]
    assert rates[:4] == rates[4:8] == sorted(rates[:4], reverse=True)


def test_zeros_stay_zero_through_every_step_of_training_and_averaging(tiny, tmp_path):
    seen = []

    def listener(entry):
        if entry.kind == "train":
            masks = run.keeper.masks
            seen.append(
                (
                    zeros_of(run.model, masks),
                    zeros_of(run.average.module, masks),
                    sum(int((~m).sum()) for m in masks.values()),
                )
            )

    run = a_run(a_recipe(tiny, "ema=0.5"), tmp_path / "run", [listener])
    start_(run)
    train_(run)
    assert len(seen) == 12 and all(own == averaged == asked > 0 for own, averaged, asked in seen)
    saved = load_file(tmp_path / "run" / "0.9" / "model.safetensors")
    assert all(torch.equal(saved[n], t) for n, t in run.average.module.state_dict().items())  # what was measured


@pytest.mark.parametrize("method", METHODS)
def test_any_method_of_the_library_prunes_inside_the_schedule(method, tiny, tmp_path):
    options = ":block=16" if method in ("cap", "woodfisher") else ""
    run = trained(
        a_recipe(tiny, f"gradual.method={method}{options}", "epochs=2", "gradual.targets=[0.5, 0.8]"), tmp_path / "run"
    )
    total = sum(mask.numel() for mask in run.keeper.masks.values())
    assert zeros_of(run.model, run.keeper.masks) == round(0.8 * total)


def test_the_fisher_sees_the_training_augmentation_and_other_images_at_every_pruning_step(tiny, tmp_path):
    run = a_run(a_recipe(tiny), tmp_path / "run")
    first, again, other = ([batch[0] for batch in run.feed.calibration(16, seed)] for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    plain = secateur.calibration_batches("bundled", run.model, 16, augment="validation")
    assert not any(torch.equal(image, other) for image in first[0] for other in next(iter(plain))[0])


def test_fine_tuning_a_sparse_model_keeps_its_zeros(finished, tmp_path):
    recipe = a_recipe(finished[1] / "0.75", "gradual=", "from_sparse=true", "epochs=1")
    run = trained(recipe, tmp_path / "run")
    before, after = load_masks(finished[1] / "0.75"), load_masks(tmp_path / "run" / "final")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert zeros_of(run.model, before) == sum(int((~mask).sum()) for mask in before.values())


def test_fine_tuning_keeps_the_patterns_of_the_folder_it_starts_from(tmp_path):
    model = timm.create_model(f"local-dir:{a_model(tmp_path / 'odd', embed_dim=18)}", pretrained=True)
    secateur.save(model, secateur.prune_(model, None, "magnitude", "1:4"), tmp_path / "1-4")
    trained(a_recipe(f"local-dir:{tmp_path / '1-4'}", "gradual=", "epochs=1"), tmp_path / "run")
    before, after = (
        [(row["name"], row["pattern"], row.get("left_out")) for row in read_manifest(folder)["layers"]]
        for folder in (tmp_path / "1-4", tmp_path / "run" / "final")
    )
    assert before == after
    assert {pattern for _, pattern, _ in after} == {"1:4", "unstructured"} and any(reason for *_, reason in after)


# --- an optimizer step ------------------------------------------------------------------------------------------------


def test_micro_batches_add_up_to_the_step_of_the_whole_batch(tiny, tmp_path):
    weights = []
    for micro in (16, 4):
        run = a_run(a_recipe(tiny, "augmentation=light1", "optimizer=sgd", f"micro_batch={micro}"), tmp_path / "run")
        batch = next(iter(run.feed.batches(0, 1)))
        assert [len(labels) for _, labels in batch] == [micro] * (16 // micro)
        learn_(run, batch)
        weights.append(run.model.state_dict())
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name])


def test_a_step_is_plain_gradient_descent_on_the_smoothed_loss(tiny, tmp_path):
    changes = ("augmentation={like: light1, clip: null, weight_decay: 0}", "optimizer=momentum", "gradual=")
    run = a_run(a_recipe(tiny, *changes), tmp_path / "run")
    ((images, labels),) = next(iter(run.feed.batches(0, 1)))
    twin = copy.deepcopy(run.model).train()
    logs = twin(images).log_softmax(1)
    loss = -(0.9 * logs[range(16), labels] + 0.1 * logs.mean(1)).mean()
    loss.backward()
    assert learn_(run, [(images, labels)]) == pytest.approx(float(loss.detach()), rel=1e-5)
    for own, other in zip(run.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.detach(), (other - 1e-3 * other.grad).detach())


def test_bfloat16_autocast_trains_float32_weights(tiny, tmp_path):
    run = a_run(a_recipe(tiny, "precision=bf16", "epochs=1", "gradual.targets=[0.5]"), tmp_path / "run")
    types = set()
    run.model.head.register_forward_hook(lambda module, args, output: types.add(output.dtype))
    learn_(run, next(iter(run.feed.batches(0, 1))))
    assert types == {torch.bfloat16} and all(p.dtype == torch.float32 for p in run.model.parameters())


def test_what_is_random_in_a_step_follows_from_the_seed_and_the_step(tiny, tmp_path):
    runs = [a_run(a_recipe(tiny, f"seed={seed}"), tmp_path / "run") for seed in (0, 0, 1)]
    batch = next(iter(runs[0].feed.batches(0, 1)))
    torch.rand(7), learn_(runs[0], copy.deepcopy(batch))
    losses = [learn_(run, copy.deepcopy(batch)) for run in runs[1:]]
    assert torch.equal(runs[0].model.head.weight, runs[1].model.head.weight)
    assert losses[0] != losses[1]


# --- images -----------------------------------------------------------------------------------------------------------


def test_a_feed_can_start_at_any_step(tiny, tmp_path):
    feed = a_run(a_recipe(tiny), tmp_path / "run").feed
    whole = [batch for (batch,) in feed.batches(0, 9)]
    for first in (1, 4, 7):
        for (images, labels), ((again, same),) in zip(whole[first:], feed.batches(first, 9), strict=True):
            assert torch.equal(images, again) and torch.equal(labels, same)


def test_an_epoch_shows_every_image_once_in_another_order(tiny, tmp_path):
    data = a_run(a_recipe(tiny), tmp_path / "run").feed.dataset
    first, second = ([data.index(epoch * 64 + place) for place in range(64)] for epoch in range(2))
    assert sorted(first) == sorted(second) == sorted(set(first)) and first != second


REFUSED = {
    "data.images=9000": r"data\.images is 9000, and bundled has 8192",
    "batch_size=66": "A batch takes 66 images and an epoch has 64",
    "micro_batch=1": "Images are mixed in pairs, and 1 go through the model at once",
    "from_sparse=true": "The recipe fine-tunes a sparse model, and .* has no zeros",
    "optimizer=adamx": "timm has no optimizer 'adamx'. Did you mean",
    "learning_rate={unit: steps, warmup: 12}": "The warm-up of 12 steps is no shorter than the run, which has 12",
    "augmentation={auto_augment: nonsense}": "timm knows no augmentation 'nonsense'",
    "data.dataset=wds/x": "can only be read in order",
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_cannot_be_trained_is_refused_before_it_starts(change, tiny, tmp_path):
    with pytest.raises(InputError, match=REFUSED[change]):
        a_run(a_recipe(tiny, change), tmp_path / "run")


def test_a_teacher_of_other_classes_is_refused(tiny, tmp_path):
    other = a_model(tmp_path / "other", num_classes=3)
    with pytest.raises(InputError, match=r"The teacher .*other tells 3 classes apart, and the model 10"):
        a_run(a_recipe(tiny, "distillation={weight: 0.5}", f"teacher={other}"), tmp_path / "run")


def test_the_dense_model_teaches_the_sparse_one(tiny, tmp_path):
    run = trained(a_recipe(tiny, "distillation={weight: 1.0}", "epochs=1", "gradual.targets=[0.5]"), tmp_path / "run")
    start = timm.create_model(f"local-dir:{tiny}", pretrained=True).state_dict()
    teacher = run.loss.teacher.model.state_dict()
    assert all(torch.equal(teacher[name], start[name]) for name in start)
    assert run.keeper.sparsity == pytest.approx(0.5)


@pytest.mark.slow
def test_zeros_stay_zero_where_the_model_is_compiled(tiny, tmp_path):
    run = trained(a_recipe(tiny, "compile=true"), tmp_path / "run")
    total = sum(mask.numel() for mask in run.keeper.masks.values())
    assert zeros_of(run.model, run.keeper.masks) == round(0.9 * total)


def test_a_model_of_another_size_needs_images_of_its_own(tmp_path):
    with pytest.raises(InputError, match="This model needs images: give --data-dir"):
        a_run(a_recipe("vit_tiny_patch16_224", "pretrained=false"), tmp_path / "run")


def test_a_model_without_stochastic_depth_says_so(tmp_path):
    with pytest.raises(InputError, match="vgg11 has no stochastic depth; set its rate, drop_path, to 0"):
        a_run(a_recipe("vgg11", "pretrained=false"), tmp_path / "run")


def test_a_detector_is_refused(tmp_path):
    secateur.save(detr(), {}, tmp_path / "detr")
    with pytest.raises(InputError, match="detr finds objects; secateur train is for classifiers"):
        a_run(a_recipe(tmp_path / "detr", "augmentation.drop_path=0"), tmp_path / "run")


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_loss_that_is_nan_stops_with_the_step_and_leaves_the_last_checkpoint_whole(tiny, tmp_path):
    run = a_run(a_recipe(tiny), tmp_path / "run")
    start_(run)
    loss, calls = run.loss, itertools.count(1)
    run.loss = lambda *arguments: loss(*arguments) * (float("nan") if next(calls) == 7 else 1)
    with pytest.raises(
        NumericsError, match=r"The loss is nan at step 6 \(epoch 1\.50\), with a learning rate of 0\.00055"
    ):
        train_(run)
    assert [path.name for path in checkpoints(run.out)] == ["step-00000004-changed", "step-00000004"]
    assert trained(a_recipe(tiny), tmp_path / "run").step == 12


def test_weights_that_are_nan_are_never_written(tiny, tmp_path):
    run = a_run(a_recipe(tiny), tmp_path / "run")
    start_(run)
    step, calls = run.stepper.step, itertools.count(1)

    def poisoned():
        step()
        if next(calls) == 8:  # the last before a checkpoint
            run.model.head.bias.data[0] = float("nan")

    run.stepper.step = poisoned
    with pytest.raises(NumericsError, match="NaN or infinit"):
        train_(run)
    assert checkpoints(run.out)[0].name == "step-00000004-changed"
