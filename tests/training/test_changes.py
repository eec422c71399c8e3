"""The rivals inside the loop: masks that are lifted again, and masks that move."""

import pytest
import torch
from small import a_model, a_recipe, a_run, trained
from test_resume import Stop

from secateur.checkpoint import load_masks
from secateur.errors import InputError
from secateur.layers import prunable_weights
from secateur.training.changes import change_masks_
from secateur.training.journal import read_journal
from secateur.training.recipe_file import parse_recipe
from secateur.training.rigl import erdos_renyi_groups
from secateur.training.timeline import Event

ACDC = (
    "gradual=",
    "epochs=6",
    "acdc={sparsity: 0.8, phases: {warmup: 1, phases: 1, compressed: 1, decompressed: 1, last_decompressed: 2,"
    " last_compressed: 2}}",
)
RIGL = ("gradual=", "rigl={sparsity: 0.8, interval: 3}")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return a_model(tmp_path_factory.mktemp("models") / "tiny")


def test_ac_dc_lifts_its_masks_and_ends_with_the_zeros_asked_for(tiny, tmp_path):
    zeros = {}

    def listener(entry):
        if entry.kind == "train":
            weights = run_weights(tmp_path / "run", listener)
            zeros[entry.step] = sum(int((w == 0).sum()) for w in weights)

    from secateur.training.loop import train_
    from secateur.training.resume import start_

    run = a_run(a_recipe(tiny, *ACDC), tmp_path / "run", [lambda e: listener(e)])
    run_weights = lambda *_: [run.model.get_parameter(n) for n in run.keeper.masks]  # noqa: E731
    start_(run)
    train_(run)
    total = sum(mask.numel() for mask in run.keeper.masks.values())
    sparse = [step for step, count in zeros.items() if count >= round(0.8 * total)]
    assert sparse == [5, 6, 7, 8, 17, 18, 19, 20, 21, 22, 23, 24]
    kinds = [e.kind for e in read_journal(tmp_path / "run" / "metrics.csv") if e.kind not in ("train", "epoch")]
    assert kinds == ["dense", "compress to 0.8", "decompress", "compress to 0.8"]
    assert sum(int((~m).sum()) for m in load_masks(tmp_path / "run" / "0.8").values()) == round(0.8 * total)


def test_rigl_keeps_the_zeros_of_each_layer_while_they_move(tiny, tmp_path):
    masks = []

    def listener(entry):
        if entry.kind == "train":
            masks.append({name: mask.clone() for name, mask in runs[0].keeper.masks.items()})

    from secateur.training.loop import train_
    from secateur.training.resume import start_

    runs = [a_run(a_recipe(tiny, *RIGL), tmp_path / "run", [listener])]
    start_(runs[0])
    train_(runs[0])
    groups = erdos_renyi_groups({name: mask.shape for name, mask in masks[0].items()}, 0.8)
    for group in groups:
        assert {int((~found[group.names[0]]).sum()) for found in masks} == {group.zeros}
    moved = [i for i in range(1, 12) if any(not torch.equal(masks[i][n], masks[i - 1][n]) for n in masks[0])]
    assert moved == [3, 6]  # steps before 3/4 of 12


@pytest.mark.parametrize("changes", [ACDC, RIGL, (*RIGL, "rigl.growth=random")], ids=["acdc", "rigl", "random"])
@pytest.mark.parametrize("step", [5, 8])
def test_a_rival_that_was_interrupted_goes_on_to_the_same_bits(changes, step, tiny, tmp_path):
    def stop(entry):
        if entry.step == step:
            raise Stop

    whole = trained(a_recipe(tiny, *changes), tmp_path / "whole")
    with pytest.raises(Stop):
        trained(a_recipe(tiny, *changes), tmp_path / "run", [stop])
    again = trained(a_recipe(tiny, *changes), tmp_path / "run")
    own, other = (run.model.state_dict() for run in (again, whole))
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_random_growth_follows_from_the_seed_and_the_step(tiny, tmp_path):
    def grown(seed, step):
        run = a_run(a_recipe(tiny, *RIGL, "rigl.growth=random", f"seed={seed}"), tmp_path / f"{seed}-{step}")
        weights = prunable_weights(run.model)
        masks = {name: torch.arange(mask.numel()).view(mask.shape) % 2 == 0 for name, mask in run.keeper.masks.items()}
        run.keeper.set_masks_(masks)
        with torch.no_grad():
            for name in masks:  # the same weights leave, whatever the seed
                parameter = weights[name].parameter
                parameter.copy_(torch.arange(1.0, 1 + parameter.numel()).view(parameter.shape) * masks[name])
        change_masks_(run, Event(step, "move"), next(run.feed.batches(0, 1)))
        return torch.cat([mask.flatten() for mask in run.keeper.masks.values()])

    assert torch.equal(grown(0, 3), grown(0, 3))
    assert not torch.equal(grown(0, 3), grown(1, 3)) and not torch.equal(grown(0, 3), grown(0, 6))


REFUSED = {
    "acdc: {sparsity: 0.5}": "line 4: The phases last 600 epochs together, and the run 6",
    "acdc: {sparsity: 1.5}": "line 4: .*sparsity",
    "rigl: {sparsity: 0.5, until: 0}": r"line 4: Masks move until 0\.0 of the run; give",
    "rigl: {sparsity: 0.5, growth: slow}": "line 4: There is no growth 'slow'",
    "rigl: {sparsity: 0.5, interval: 0}": "line 4: interval is 0",
    "rigl: {sparsity: 0.5}\ngradual: {targets: [0.5], every: 1}": "line 4: The recipe has gradual and rigl; give one",
}


@pytest.mark.parametrize("line", REFUSED)
def test_an_impossible_rival_is_told_with_its_line(line):
    with pytest.raises(InputError, match=REFUSED[line]):
        parse_recipe(f"model: bundled\nepochs: 6\nbatch_size: 64\n{line}\n")
