"""The solvers against brute force in float64: explicit inverses, and every candidate's joint saliency at every step.

Each test runs twice, through the compiled kernels and through their torch twins.
"""

import numpy as np
import pytest
import torch

from secateur import CAP, MFAC, OBD, FastCAP, GrW, InputError, Magnitude, NumericsError, WoodFisher, native
from secateur.fisher import to_blocks
from secateur.solvers import (
    METHODS,
    BlockFishers,
    GradientSums,
    cap,
    compensate,
    inverse_diagonal,
    loss_increase,
    magnitude,
    obs,
    solve_kept,
    solver_named,
    woodfisher,
)
from secateur.triangles import pack

SIZES = [1, 2, 5, 12]
PARTLY = (0.0, 0.4, 0.4, 1.0)  # blocks whole, partly pruned to zeros, partly to be zeroed yet, and empty


@pytest.fixture(params=["kernels", "twins"], autouse=True)
def path(request, monkeypatch):
    if request.param == "twins":
        monkeypatch.setattr(native, "usable", lambda *tensors: False)


# --- blocks to prune --------------------------------------------------------------------------------------------------


def of_gradients(change):
    """Fishers of random gradients (samples, size) that `change` makes difficult."""

    def make(size, rng):
        gradients = change(rng.normal(size=(4 * size, size)))
        return gradients.T @ gradients / len(gradients)

    return make


def ill_conditioned(size, rng):
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return (basis * np.geomspace(1, 1e-8, size)) @ basis.T


FISHERS = {
    "random": (of_gradients(lambda g: g), 0.0),
    "ill-conditioned": (ill_conditioned, 0.0),
    "damped": (of_gradients(lambda g: g), 0.5),
    "fewer gradients than weights": (of_gradients(lambda g: g[: (g.shape[1] + 1) // 2]), 1e-3),
    "one gradient": (of_gradients(lambda g: g[:1]), 1e-3),
    "two rows the same": (of_gradients(lambda g: g[:, [0, *range(g.shape[1] - 1)]]), 1e-3),
    "dead inputs": (of_gradients(lambda g: g * (np.arange(g.shape[1]) % 3 > 0)), 1e-3),
    "all gradients zero": (of_gradients(lambda g: 0 * g), 1e-3),
    "gradients of very different size": (of_gradients(lambda g: g * 10.0 ** -np.arange(g.shape[1])), 1e-9),
}
everywhere = pytest.mark.parametrize(("kind", "size"), [(kind, size) for kind in FISHERS for size in SIZES])


def problem(kind, size, gone=(0.0,), blocks=4, seed=0):
    """weight, keep, fisher, damping; `gone` is the fraction of each block's weights that are not kept."""
    make, damping = FISHERS[kind]
    rng = np.random.default_rng([seed, size])
    weight, keep = rng.normal(size=(blocks, size)), rng.random((blocks, size)) >= np.resize(gone, (blocks, 1))
    weight[1::2] *= keep[1::2]
    return *map(torch.tensor, (weight, keep, np.stack([make(size, rng) for _ in range(blocks)]))), damping


# --- slow truths, one block at a time ---------------------------------------------------------------------------------


def joint_change(weight, gone, system):
    """The joint OBS update: δ = −F⁻¹ E_Q ([F⁻¹]_QQ)⁻¹ w_Q."""
    inverse = np.linalg.inv(system)
    return -inverse[:, gone] @ np.linalg.solve(inverse[np.ix_(gone, gone)], weight[gone])


def joint_saliency(weight, gone, system):
    change = joint_change(weight, gone, system)
    return 0.5 * change @ system @ change


def truth_blocks(weight, keep, fisher, damping):
    for block in zip(weight.numpy(), keep.numpy(), fisher.numpy(), strict=True):
        yield *block[:2], block[2] + damping * np.eye(len(block[0]))


def near(actual, truth, rtol=1e-6, scale=0.0):
    """Within `rtol` of the largest entry, or of `scale` where the truth is a difference of numbers of that size."""
    actual, truth = np.asarray(actual), np.asarray(truth)
    np.testing.assert_allclose(actual, truth, rtol=rtol, atol=rtol * np.abs(truth).max(initial=scale))


# --- CAP --------------------------------------------------------------------------------------------------------------


@everywhere
def test_cap_takes_the_cheapest_candidate_at_every_step_and_scores_all_that_is_gone(kind, size):
    weight, keep, fisher, damping = problem(kind, size, PARTLY)
    scores = cap.scores(weight, fisher, keep, damping).numpy()
    for row, (w, kept, system) in zip(scores, truth_blocks(weight, keep, fisher, damping), strict=True):
        removed = list(np.flatnonzero(~kept))
        assert np.isneginf(row[removed]).all()
        for q in np.argsort(row, kind="stable")[len(removed) :]:
            left = [c for c in range(size) if c not in removed]
            costs = {c: joint_saliency(w, [*removed, c], system) for c in left}
            near(costs[q], min(costs.values()))
            near(row[q], costs[q])
            removed.append(q)


@pytest.mark.parametrize("seed", range(10))
def test_caps_order_is_the_naive_greedy_order(seed):
    weight, keep, fisher, _ = problem("random", 9, seed=seed)
    order = cap.scores(weight, fisher).argsort(1).numpy()
    for found, (w, _, system) in zip(order, truth_blocks(weight, keep, fisher, 0.0), strict=True):
        naive = []
        for _ in range(9):
            left = [c for c in range(9) if c not in naive]
            naive.append(min(left, key=lambda c: joint_saliency(w, [*naive, c], system)))
        assert found.tolist() == naive


@everywhere
def test_a_cap_score_is_half_delta_fisher_delta_of_the_compensated_weights_at_every_prefix(kind, size):
    weight, keep, fisher, damping = problem(kind, size)
    damped = fisher + damping * torch.eye(size)
    scores = cap.scores(weight, fisher, keep, damping)
    for count in range(1, size + 1):
        last = scores.kthvalue(count, 1).values
        change = compensate(weight, scores > last[:, None], fisher, damping) - weight
        near(loss_increase(change, damped), last, rtol=1e-5)


def final_losses(scores, update, damped):
    """(size, blocks): ½ δᵀFδ once the k smallest scores have left, for k from 1."""
    ranks, (compensated, weight, *masks) = scores.argsort(1).argsort(1), update
    keeps = [ranks >= k for k in range(1, scores.shape[1] + 1)]
    return torch.stack([loss_increase(compensated(weight, *masks, k, damped) - weight, damped) for k in keeps])


@pytest.mark.parametrize("kind", ["random", "ill-conditioned", "damped", "fewer gradients than weights"])
def test_caps_final_loss_is_at_most_woodfishers_in_99_of_100_cases(kind):
    """A case is a block of at most 12 weights and how many of them leave; greedy choices are not always the best."""
    wins = []
    for size in (1, 2, 4, 6, 8, 10, 12):
        weight, keep, fisher, damping = problem(kind, size, blocks=30)
        damped = fisher + damping * torch.eye(size)
        ours = final_losses(cap.scores(weight, damped), (compensate, weight), damped)
        theirs = final_losses(woodfisher.scores(weight, damped), (woodfisher.compensate, weight, keep), damped)
        wins += (ours <= theirs * (1 + 1e-6)).flatten().tolist()
    assert len(wins) == 30 * 43 and np.mean(wins) >= 0.99


# --- the joint update and its parts -----------------------------------------------------------------------------------


@everywhere
def test_compensate_is_the_joint_obs_formula(kind, size):
    weight, keep, fisher, damping = problem(kind, size, PARTLY)
    found = compensate(weight, keep, fisher, damping)
    for row, (w, kept, system) in zip(found.numpy(), truth_blocks(weight, keep, fisher, damping), strict=True):
        near(row, w + joint_change(w, ~kept, system), scale=1.0)
        assert not row[~kept].any()


@everywhere
def test_solutions_and_inverse_diagonals_are_those_of_the_kept_rows_and_columns(kind, size):
    weight, keep, fisher, damping = problem(kind, size, PARTLY)
    solved, diagonals = solve_kept(weight, keep, fisher, damping), inverse_diagonal(keep, fisher, damping)
    for x, d, (w, kept, system) in zip(
        solved.numpy(), diagonals.numpy(), truth_blocks(weight, keep, fisher, damping), strict=True
    ):
        inverse = np.linalg.inv(system[np.ix_(kept, kept)])
        near(d[kept], inverse.diagonal())
        near(x[kept], inverse @ w[kept], rtol=1e-5)
        assert not x[~kept].any() and not d[~kept].any()


@pytest.mark.parametrize("size", SIZES)
def test_a_packed_fisher_gives_what_the_square_one_gives(size):
    weight, keep, square, _ = problem("random", size, PARTLY)
    functions = [*NOT_FINITE.values(), lambda w, k, f: loss_increase(w, f)]
    for function in functions:
        assert function(weight, keep, pack(square)).equal(function(weight, keep, square))


def test_loss_increase_is_half_delta_fisher_delta_of_each_block():
    weight, _, fisher, _ = problem("random", 5)
    near(loss_increase(weight, fisher), [0.5 * w @ f @ w for w, f in zip(weight.numpy(), fisher.numpy(), strict=True)])


@pytest.mark.parametrize("solve", [compensate, solve_kept])
def test_float32_agrees_with_float64(solve):
    weight, keep, fisher, _ = problem("random", 12, PARTLY)
    single = solve(weight.float(), keep, fisher.float(), 0.1)
    assert single.dtype == torch.float32
    near(single, solve(weight, keep, fisher, 0.1).numpy(), rtol=1e-5)


# --- WoodFisher and magnitude -----------------------------------------------------------------------------------------


@everywhere
def test_woodfisher_scores_each_weight_alone_and_adds_the_updates_of_all_that_leave(kind, size):
    weight, keep, fisher, damping = problem(kind, size, PARTLY)
    after = keep & (torch.arange(size) % 2 == 0)
    scores = woodfisher.scores(weight, fisher, keep, damping).numpy()
    moved = woodfisher.compensate(weight, keep, after, fisher, damping).numpy()
    rows = zip(scores, moved, after.numpy(), truth_blocks(weight, keep, fisher, damping), strict=True)
    for score, new, stays, (w, kept, system) in rows:
        inverse = np.linalg.inv(system[np.ix_(kept, kept)])
        near(score[kept], w[kept] ** 2 / (2 * inverse.diagonal()))
        assert np.isneginf(score[~kept]).all()
        left = np.where(stays, 0, w)[kept] / inverse.diagonal()
        truth = np.zeros(size)
        truth[kept] = w[kept] - inverse @ left
        near(new, truth * stays, rtol=1e-5, scale=1.0)


@pytest.mark.parametrize("scores", [cap.scores, woodfisher.scores])
def test_blocks_of_one_weight_are_the_diagonal_form(scores):
    weight, keep, fisher, _ = problem("random", 1, blocks=50)
    near(scores(weight, fisher, keep, 0.1), 0.5 * weight.numpy() ** 2 * (fisher[:, 0].numpy() + 0.1))


@pytest.mark.parametrize("solver", [CAP(), WoodFisher()], ids=lambda s: s.name)
def test_blocks_of_one_weight_leave_the_kept_weights_alone(solver):
    weight, _, fisher, _ = problem("random", 1, blocks=50)
    keep = torch.arange(50)[:, None] % 3 > 0
    moved = solver.compensate(weight, torch.ones_like(keep), keep, fisher, 0.1)
    assert moved.equal(torch.where(keep, weight, 0.0))


def test_magnitude_scores_the_absolute_value_and_moves_nothing():
    weight, keep = torch.tensor([[3.0, -1.0, 0.0, -4.0]]), torch.tensor([[True, True, False, True]])
    scores = Magnitude().scores(weight, keep, torch.empty(0), 0.0)
    assert scores.tolist() == [[3.0, 1.0, -torch.inf, 4.0]]
    after = torch.tensor([[True, False, False, True]])
    assert magnitude.Magnitude().compensate(weight, keep, after, torch.empty(0), 0.0).tolist() == [[3.0, 0, 0, -4.0]]


# --- OBD and GrW: what stays does not move ----------------------------------------------------------------------------


def test_obd_is_woodfisher_with_blocks_of_one_weight():
    weight, keep, fisher, _ = problem("random", 1, PARTLY, blocks=50)
    after = keep & (torch.arange(50)[:, None] % 3 > 0)
    for shape in (fisher, fisher[:, 0]):
        near(OBD().scores(weight, keep, shape, 0.1)[keep], woodfisher.scores(weight, fisher, keep, 0.1)[keep])
        assert OBD().compensate(weight, keep, after, shape, 0.1).equal(torch.where(after, weight, 0.0))
    assert OBD().statistic == WoodFisher(block=1).statistic == BlockFishers(1)


def test_grw_sums_the_absolute_values_and_its_product_is_that_of_the_sum():
    sums = GradientSums().start((1, 3), torch.float64, None)
    sums.add(torch.tensor([[[1.0, -2.0, 0.0]], [[1.0, 3.0, 0.0]]]))
    sums.add(torch.tensor([[[-3.0, 1.0, 4.0]]]))
    sums.finish(4)  # one more did not reach this weight
    weight, keep = torch.tensor([[2.0, -4.0, 1.0]]).double(), torch.tensor([[True, True, False]])
    assert GrW().scores(weight, keep, sums.values, 0.0).tolist() == [[2 * 5 / 4, 4 * 6 / 4, -torch.inf]]
    assert GrW(product=True).scores(weight, keep, sums.values, 0.0).tolist() == [[2 * 1 / 4, 4 * 2 / 4, -torch.inf]]
    assert GrW().compensate(weight, keep, keep, sums.values, 0.0).tolist() == [[2.0, -4.0, 0.0]]


def test_a_statistic_without_a_fisher_predicts_nothing():
    with pytest.raises(NotImplementedError, match="GradientSums holds no Fisher"):
        GradientSums().loss_increase(torch.ones(1, 3), torch.ones(1, 2, 3))


# --- every solver -----------------------------------------------------------------------------------------------------

SOLVERS = [method() for method in METHODS.values()] + [
    GrW(product=True),
    MFAC(block=None),
    MFAC(gradients=3),
    FastCAP(forward=True),
]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=str)
SHAPE = (4, 11)


def given(solver, gone=(0.0,)):
    """weight, keep and what is gathered of 20 gradients, in the solver's own blocks."""
    weight, keep, _, _ = problem("random", SHAPE[1], gone)
    statistic = solver.statistic
    if statistic is None:
        return weight.view(1, -1), keep.view(1, -1), torch.empty(0)
    gathering = statistic.start(SHAPE, torch.float64, 20)
    gathering.add(torch.tensor(np.random.default_rng(1).normal(size=(20, *SHAPE))))
    gathering.finish(20)
    return *(to_blocks(t.view(-1), statistic.size(SHAPE)) for t in (weight, keep)), gathering.values


@every_solver
def test_scores_are_finite_and_losses_where_kept_and_minus_infinity_where_gone(solver):
    weight, keep, gathered = given(solver, PARTLY)
    scores = solver.scores(weight, keep, gathered, 0.1)
    assert scores.shape == weight.shape and scores[keep].isfinite().all() and (scores[keep] >= 0).all()
    assert scores[~keep].isneginf().all()


@every_solver
def test_weights_stay_to_the_last_bit_where_nothing_leaves(solver):
    weight, keep, gathered = given(solver, PARTLY)
    weight = weight * keep
    assert solver.compensate(weight, keep, keep, gathered, 0.1).equal(weight)


@every_solver
def test_only_what_is_kept_is_not_zero_afterwards_and_all_of_it_finite(solver):
    weight, keep, gathered = given(solver, PARTLY)
    after = keep & (torch.arange(weight.shape[1]) % 3 > 0)
    moved = solver.compensate(weight, keep, after, gathered, 0.1)
    assert moved.isfinite().all() and (moved != 0).equal(after)


@every_solver
def test_weights_that_leave_become_plain_zeros(solver):
    weight, keep, gathered = given(solver)
    moved = solver.compensate(-weight.abs(), keep, ~keep, gathered, 0.1)
    assert moved.eq(0).all() and not moved.signbit().any()


@every_solver
def test_inputs_stay_as_they_were(solver):
    before = [tensor.clone() for tensor in given(solver, PARTLY)]
    weight, keep, gathered = inputs = given(solver, PARTLY)
    solver.scores(weight, keep, gathered, 0.1)
    solver.compensate(weight, torch.ones_like(keep), keep, gathered, 0.1)
    assert all(a.equal(b) for a, b in zip(inputs, before, strict=True))


@every_solver
def test_the_same_input_gives_the_same_bits(solver):
    weight, keep, gathered = given(solver, PARTLY)
    for method in (solver.scores, lambda *args: solver.compensate(args[0], args[1] | True, *args[1:])):
        assert method(weight, keep, gathered, 0.1).equal(method(weight, keep, gathered, 0.1))


@every_solver
def test_a_solver_says_what_it_is_of_what_it_costs_and_what_it_keeps(solver):
    assert all(isinstance(text, str) and text for text in (solver.name, solver.paper, solver.cost, solver.memory))


@pytest.mark.parametrize("samples", [0, 1, 4])
def test_a_block_that_cannot_be_inverted_is_damped_by_a_part_of_its_mean_diagonal(samples):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(samples, 8))
    fisher = torch.tensor(gradients.T @ gradients)[None]
    weight, keep = torch.tensor(rng.normal(size=(1, 8))), torch.arange(8)[None] % 2 == 0
    least = max(1e-8 * float(fisher[0].diagonal()[::2].mean()), 1e-20)
    damped = fisher + least * torch.eye(8) if samples < 4 else fisher  # four gradients are enough for four weights
    near(compensate(weight, keep, fisher), compensate(weight, keep, damped).numpy(), rtol=1e-5)
    assert cap.scores(weight, fisher).isfinite().all()


NOT_FINITE = {
    "cap.scores": lambda w, k, f: cap.scores(w, f, k),
    "woodfisher.scores": lambda w, k, f: woodfisher.scores(w, f, k),
    "compensate": compensate,
    "solve_kept": solve_kept,
    "inverse_diagonal": lambda w, k, f: inverse_diagonal(k, f),
}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("function", NOT_FINITE)
def test_a_fisher_that_is_not_finite_is_an_error(function, bad):
    weight, keep, fisher, _ = problem("random", 5)
    fisher[2, 3, 1] = fisher[2, 1, 3] = bad
    with pytest.raises(NumericsError, match="The Fisher holds NaN or infinity"):
        NOT_FINITE[function](weight, keep.logical_xor(torch.tensor([False] * 4 + [True])), fisher)


@pytest.mark.parametrize("blocks", [0, 1, 7])
def test_any_number_of_blocks_at_a_time_gives_the_same(blocks, monkeypatch):
    weight, keep, fisher, _ = problem("random", 6, PARTLY, blocks=blocks) if blocks else _no_blocks()
    whole = cap.scores(weight, fisher, keep, 0.1), compensate(weight, keep, fisher, 0.1)
    monkeypatch.setitem(obs.CHUNK, "cpu", 100)
    parts = cap.scores(weight, fisher, keep, 0.1), compensate(weight, keep, fisher, 0.1)
    assert all(a.shape == weight.shape and a.equal(b) for a, b in zip(whole, parts, strict=True))


def _no_blocks():
    return torch.zeros(0, 6), torch.zeros(0, 6, dtype=torch.bool), torch.zeros(0, 6, 6), 0.0


# --- choosing a solver ------------------------------------------------------------------------------------------------


def test_a_solver_is_named_with_options_or_taken_as_it_is():
    assert solver_named("cap", block=7) == CAP(block=7)
    assert solver_named(WoodFisher(damping=3.0)) == WoodFisher(damping=3.0)
    assert solver_named(CAP(block=5), damping=2.0) == CAP(block=5, damping=2.0)


MISTAKES = {
    rf"no method 'capp'. Did you mean cap or fast_cap\? The methods are {', '.join(METHODS)}.": lambda: solver_named(
        "capp"
    ),
    r"cap has no option 'blok'. Did you mean block\? It has block, damping, relative.": lambda: solver_named(
        "cap", blok=3
    ),
    "magnitude has no option 'block'. It has none.": lambda: solver_named("magnitude", block=3),
    "The block of cap is 0; give a whole number": lambda: CAP(block=0),
    "The block of woodfisher is 9.5; give a whole number": lambda: WoodFisher(block=9.5),
    "The block of mfac is 0; give a whole number": lambda: MFAC(block=0),
    "obd has no option 'block'. It has damping, relative.": lambda: solver_named("obd", block=2),
    "The product of grw is 1; give true or false": lambda: GrW(product=1),
    "The damping of cap is -1; give a number from 0": lambda: CAP(damping=-1),
    "The damping of woodfisher is nan": lambda: WoodFisher(damping=float("nan")),
    "The damping of cap is inf": lambda: CAP(damping=float("inf")),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_the_choice_is_named(message):
    with pytest.raises(InputError, match=message):
        MISTAKES[message]()
