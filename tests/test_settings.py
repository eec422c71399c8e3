"""Which options a method has on a model: what is given, the family's, the paper's, its own."""

import pytest
import torch
from members import MEMBERS, member

from secateur.comparison import Contender, compare, contender, fitted
from secateur.errors import InputError
from secateur.families import FAMILIES, GENERIC, Family
from secateur.prune import prune_
from secateur.settings import solver_for
from secateur.solvers import CAP, METHODS, OBD, FastCAP, GrW, Magnitude, WoodFisher, options_of

BLOCKS = {"deit": 192, "convnext": 128, "resnet50d": 256, "efficientnet": 192, "detr": 192, "byobnet": 192}


@pytest.mark.parametrize("name", BLOCKS)
def test_cap_and_woodfisher_take_the_block_of_the_family_and_their_own_damping(name):
    model = member(name)[0]
    assert solver_for(model) == CAP(block=BLOCKS[name])
    assert solver_for(model, "woodfisher") == WoodFisher(block=BLOCKS[name])


@pytest.mark.parametrize("method", ["mfac", "fast_cap", "obd", "grw", "magnitude"])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_other_methods_have_their_own_options(name, method):
    assert solver_for(member(name)[0], method) == METHODS[method]()


def test_what_is_given_counts_before_the_family():
    model = member("convnext")[0]
    assert solver_for(model, "cap", block=96) == CAP(block=96)
    assert solver_for(model, "cap", damping=0.1) == CAP(block=128, damping=0.1)
    assert solver_for(model, CAP()) == CAP()
    assert solver_for(model, "cap", paper=True, damping=0.1) == CAP(block=128, damping=0.1, relative=False)


PAPER = {  # (member, method): the options of the paper
    ("deit", "cap"): CAP(192, 1e-8, relative=False),
    ("deit", "woodfisher"): WoodFisher(192, 1e-6, relative=False),
    ("deit", "obd"): OBD(1e-6, relative=False),
    ("convnext", "cap"): CAP(128, 1e-7, relative=False),
    ("convnext", "woodfisher"): WoodFisher(128, 1e-6, relative=False),
    ("resnet50d", "cap"): CAP(256, 1e-8, relative=False),
    ("efficientnet", "cap"): CAP(16, 1e-8, relative=False),
    ("byobnet", "cap"): CAP(192, 1e-8, relative=False),
    ("deit", "fast_cap"): FastCAP(),
    ("deit", "grw"): GrW(),
    ("deit", "magnitude"): Magnitude(),
}


@pytest.mark.parametrize(("name", "method"), PAPER)
def test_the_papers_settings_have_its_block_and_its_absolute_damping(name, method):
    assert solver_for(member(name)[0], method, paper=True) == PAPER[name, method]


@pytest.mark.parametrize(("name", "damping"), [("deit", 1e-6), ("resnet50d", 1e-5)])
def test_the_papers_mfac_stores_1024_gradients_in_blocks_of_2048(name, damping):
    solver = solver_for(member(name)[0], "mfac", paper=True)
    assert (solver.block, solver.gradients, solver.damping, solver.relative) == (2048, 1024, damping, False)


@pytest.mark.parametrize("family", [*FAMILIES, GENERIC], ids=lambda family: family.name)
@pytest.mark.parametrize("paper", [False, True])
def test_a_family_names_options_that_the_methods_have(family: Family, paper):
    for method in METHODS:
        assert set(family.options_of(method, paper)) <= set(options_of(method))


def test_prune_takes_them_where_the_method_is_text():
    model, batch = member("convnext", dtype=torch.float32)
    assert prune_(model, [batch], "cap", 0.5).manifest()["options"]["block"] == 128
    assert prune_(model, [batch], CAP(), 0.6).solver == CAP()


def test_compare_takes_them_where_a_contenders_text_says_nothing():
    model, batch = member("convnext", dtype=torch.float32)
    said = [contender("cap"), contender("cap:block=32"), contender("cap", block=64)]
    rows = list(compare(model, [batch], [*said, Contender(CAP(), "global", "mine")], [0.5]))
    assert [row.result.solver.block for row in rows] == [128, 32, 64, 192]
    assert [row.contender.solver for row in rows] == [row.result.solver for row in rows]


def test_a_contender_that_was_fitted_stays_as_it_is():
    model, other = member("convnext")[0], member("resnet50d")[0]
    chosen = fitted(contender("cap:uniform"), model, paper=True)
    assert chosen.solver == CAP(128, 1e-7, relative=False) and chosen.allocation == "uniform"
    assert fitted(chosen, other) is chosen


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("capp", {}, r"There is no method 'capp'\. Did you mean cap"),
        ("cap", {"blok": 3}, r"cap has no option 'blok'\. Did you mean block\?"),
        ("magnitude", {"block": 3}, r"magnitude has no option 'block'\."),
    ],
)
def test_a_method_or_an_option_that_there_is_not_is_refused(method, options, message):
    with pytest.raises(InputError, match=message):
        solver_for(MEMBERS["deit"].make(), method, **options)
