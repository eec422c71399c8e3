"""The compiled kernels against dense float64 truths, written as plainly as their definitions.

The upper triangles of all blocks hold NaN here: no kernel may read them.
"""

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from secateur import native
from secateur.fisher import to_blocks
from secateur.solvers import cap
from secateur.triangles import pack, packed_numbers

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no compiled kernels: {native.describe()['reason']}")

SIZES = [1, 2, 3, 7, 8, 16, 17, 31, 64, 100, 192, 257]
KEPT = [0.0, 0.1, 0.5, 0.9, 1.0]
DTYPES = {torch.float32: 2e-6, torch.float64: 1e-9}  # the relative error allowed
KERNELS = ["cap_scores", "inverse_diagonal", "solve_kept", "compensate"]
NARROW = 1e-4  # of scores that were computed in float32, which happens where a block is well conditioned


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def random_problem(size, kept=0.5, dtype=torch.float64, condition=1e4, blocks=3, seed=0):
    """weight, keep, fisher with eigenvalues spread over `condition`; dropped weights are not zero."""
    rng = np.random.default_rng([seed, size])
    basis = np.linalg.qr(rng.normal(size=(blocks, size, size)))[0]
    fisher = torch.tensor((basis * np.geomspace(1, 1 / condition, size)) @ basis.transpose(0, 2, 1))
    keep = torch.tensor(rng.random((blocks, size)) < kept)
    return torch.tensor(rng.normal(size=(blocks, size))).to(dtype), keep, lower_only(fisher.to(dtype))


def lower_only(fisher):
    above = torch.ones(fisher.shape[-2:], dtype=torch.bool).triu(1)
    return fisher.masked_fill(above, float("nan"))


def dense(fisher, damping):
    lower = np.tril(fisher.double().numpy())
    return lower + np.tril(lower, -1).T + float(damping) * np.eye(len(lower))


def joint(weight, keep, system):
    """w_K = A⁻¹ ((F + λI) w)_K, and zero elsewhere."""
    result = np.zeros(len(weight))
    if keep.any():
        result[keep] = np.linalg.solve(system[np.ix_(keep, keep)], (system @ weight)[keep])
    return result


def loss_increase(weight, keep, system):
    change = joint(weight, keep, system) - weight
    return 0.5 * change @ system @ change


def greedy_scores(weight, keep, system):
    """CAP from its definition: every removal starts from the original weights and a fresh inverse."""
    scores, alive = np.full(len(weight), -np.inf), keep.copy()
    running = loss_increase(weight, keep, system) if (weight[~keep] != 0).any() else 0.0
    while alive.any():
        index, inverse = np.flatnonzero(alive), np.linalg.inv(system[np.ix_(alive, alive)])
        costs = (inverse @ (system @ weight)[alive]) ** 2 / (2 * np.diag(inverse))  # of the joint solution so far
        running += costs.min()
        scores[index[costs.argmin()]] = running
        alive[index[costs.argmin()]] = False
    return scores


def inverse_diagonal(weight, keep, system):
    result = np.zeros(len(weight))
    result[keep] = np.diag(np.linalg.inv(system[np.ix_(keep, keep)]))
    return result


def solve_kept(weight, keep, system):
    result = np.zeros(len(weight))
    result[keep] = np.linalg.solve(system[np.ix_(keep, keep)], weight[keep])
    return result


TRUTHS = dict(zip(KERNELS, [greedy_scores, inverse_diagonal, solve_kept, joint], strict=True))


def run(kernel, weight, keep, fisher, damping):
    values = () if kernel == "inverse_diagonal" else (weight,)
    return getattr(native, kernel)(*values, keep, fisher, damping)


def assert_matches_truth(kernel, weight, keep, fisher, damping, rtol):
    output, used = run(kernel, weight, keep, fisher, damping)
    for b in range(len(keep)):
        system = dense(fisher[b], used[b])
        truth = TRUTHS[kernel](weight[b].double().numpy(), keep[b].numpy(), system)
        scale = np.abs(truth[np.isfinite(truth)]).max(initial=1e-300)
        np.testing.assert_allclose(output[b].double().numpy(), truth, rtol=rtol, atol=rtol * scale)
    return used


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_agrees_with_its_definition(kernel, size):
    for kept in KEPT if size < 100 else [0.5]:
        for dtype, rtol in DTYPES.items():
            problem = random_problem(size, kept, dtype, blocks=3 if size < 64 else 1)
            narrow = kernel == "cap_scores" and dtype == torch.float32
            used = assert_matches_truth(kernel, *problem, 1e-3, NARROW if narrow else rtol)
            assert used.eq(1e-3).all()


@pytest.mark.parametrize("damping", [0.0, 1e-10, 1e-6, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_ill_conditioned_blocks_agree_as_far_as_float64_allows(kernel, damping):
    problem = random_problem(31, 0.8, condition=1e10)
    used = assert_matches_truth(kernel, *problem, damping, rtol=1e-4 if damping < 1e-6 else 1e-8)
    assert used.eq(damping).all()


@pytest.mark.parametrize(("size", "condition"), [(31, 1e10), (100, 1e8), (192, 1e4)])
def test_a_cap_score_is_the_loss_increase_of_all_weights_removed_so_far(size, condition):
    weight, keep, fisher = random_problem(size, 0.7, condition=condition, blocks=1)
    scores = native.cap_scores(weight, keep, fisher, 1e-10)[0][0]
    alive, system = keep[0].numpy().copy(), dense(fisher[0], 1e-10)
    for step, q in enumerate(scores.argsort(stable=True)[(~keep).sum() :].numpy()):
        alive[q] = False
        if step % 4 == 0:
            np.testing.assert_allclose(scores[q], loss_increase(weight[0].numpy(), alive, system), rtol=1e-4)


@pytest.mark.parametrize("size", [512, 1000, 1024])
def test_long_blocks_agree_with_their_definitions(size):
    weight, keep, fisher = random_problem(size, 0.9, condition=1e6, blocks=1)
    for kernel in ("inverse_diagonal", "solve_kept", "compensate"):
        assert_matches_truth(kernel, weight, keep, fisher, 1e-8, rtol=1e-6)
    scores, alive = native.cap_scores(weight, keep, fisher, 1e-8)[0][0], keep[0].numpy().copy()
    order = scores.argsort(stable=True)[(~keep).sum() :].numpy()
    for step in (1, size // 3, len(order) - 1):  # how many have left
        alive[order[:step]] = False
        truth = loss_increase(weight[0].numpy(), alive, dense(fisher[0], 1e-8))
        np.testing.assert_allclose(scores[order[step - 1]], truth, rtol=1e-5)


def scored_twice(weight, keep, fisher, damping):
    """Scores from float32 numbers, and from the same numbers in float64."""
    for values, blocks in ((weight, fisher), (weight.double(), fisher.double())):
        yield native.cap_scores(values, keep, blocks, damping)[0]


@pytest.mark.parametrize("condition", [1.0, 10.0, 1e2, 1e3, 1e4, 1e6])
@pytest.mark.parametrize("size", [5, 33, 96, 193])
def test_what_float32_lets_leave_first_costs_no_more_than_what_float64_does(size, condition):
    weight, keep, fisher = random_problem(size, 0.8, torch.float32, condition)
    orders = [scores.argsort(stable=True) for scores in scored_twice(weight * keep, keep, fisher, 1e-6)]
    for b, count in itertools.product(range(len(keep)), (size // 4, size // 2, 3 * size // 4)):
        costs = []
        for order in orders:
            alive = keep[b].clone()
            alive[order[b, (~keep[b]).sum() :][:count]] = False
            costs.append(loss_increase((weight * keep)[b].double().numpy(), alive.numpy(), dense(fisher[b], 1e-6)))
        assert costs[0] <= 1.001 * costs[1]


@pytest.mark.parametrize("size", [16, 60, 192])
def test_steep_blocks_are_scored_in_float64(size):
    weight, keep, fisher = random_problem(size, 1.0, torch.float32, condition=1e6)
    narrow, wide = scored_twice(weight, keep, fisher, 1e-10)
    assert narrow.equal(wide.float())


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
@pytest.mark.parametrize("size", [7, 64])
def test_scores_grow_with_the_fisher(size, scale):
    weight, keep, fisher = random_problem(size, 0.8, torch.float32, condition=10.0)
    plain, scaled = (native.cap_scores(1e-2 * weight * keep, keep, f, 0.0)[0] for f in (fisher, fisher * scale))
    torch.testing.assert_close(scaled[keep] / scale, plain[keep], rtol=NARROW, atol=0)


def greedy_scores_in_groups(weight, keep, system, group, most):
    """The same definition, passing over weights whose group has given `most`; inf for those that stay."""
    scores, alive = np.where(keep, np.inf, -np.inf), keep.copy()
    running = loss_increase(weight, keep, system) if (weight[~keep] != 0).any() else 0.0
    while True:
        room = np.repeat((~alive).reshape(-1, group).sum(1) < most, group)
        index, inverse = np.flatnonzero(alive), np.linalg.inv(system[np.ix_(alive, alive)])
        costs = (inverse @ (system @ weight)[alive]) ** 2 / (2 * np.diag(inverse)) if len(index) else np.empty(0)
        costs[~room[index]] = np.inf
        if not np.isfinite(costs).any():
            return scores
        running += costs.min()
        scores[index[costs.argmin()]] = running
        alive[index[costs.argmin()]] = False


@pytest.mark.parametrize(
    ("size", "group", "most"), [(8, 4, 2), (12, 4, 1), (24, 8, 6), (96, 4, 2), (96, 96, 40), (8, 4, 0)]
)
@pytest.mark.parametrize("kept", [1.0, 0.8])
def test_no_group_gives_more_than_it_may(size, group, most, kept):
    weight, keep, fisher = random_problem(size, kept, blocks=2)
    scores, used = native.cap_scores(weight, keep, fisher, 1e-3, group, most)
    for b in range(2):
        truth = greedy_scores_in_groups(weight[b].numpy(), keep[b].numpy(), dense(fisher[b], used[b]), group, most)
        np.testing.assert_allclose(scores[b], truth, rtol=1e-9)
    twin, _ = cap._scores(weight, keep, torch.tensor(np.stack([dense(f, 0) for f in fisher])), 1e-3, group, most)
    torch.testing.assert_close(twin, scores, rtol=1e-8, atol=0)
    narrow, _ = native.cap_scores(weight.float(), keep, fisher.float(), 1e-3, group, most)
    torch.testing.assert_close(narrow.double(), scores, rtol=NARROW, atol=0)


def test_equal_costs_leave_in_the_order_of_their_index():
    eye, keep = torch.eye(70)[None], torch.ones(1, 70, dtype=torch.bool)
    scores, _ = native.cap_scores(torch.full((1, 70), 2.0), keep, eye, 0.0)
    torch.testing.assert_close(scores[0], 2.0 * torch.arange(1, 71))


def test_zero_weights_leave_first_and_cost_nothing():
    weight, keep, fisher = random_problem(40, 1.0)
    weight[:, ::3] = 0.0
    scores, _ = native.cap_scores(weight, keep, fisher, 1e-3)
    assert scores[:, ::3].eq(0).all() and scores[weight != 0].gt(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_compensation_returns_the_weights_to_the_last_bit_when_nothing_new_is_dropped(dtype):
    weight, keep, fisher = random_problem(64, 0.5, dtype)
    everything = torch.ones_like(keep)
    assert native.compensate(weight, everything, fisher, 1e-3)[0].equal(weight)
    assert native.compensate(weight * keep, keep, fisher, 1e-3)[0].equal(weight * keep)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("damping", [0.0, 1e-30, 1e-10])
def test_zero_blocks_succeed(kernel, damping):
    weight, keep, fisher = random_problem(20)
    used = assert_matches_truth(kernel, weight, keep, lower_only(0 * fisher.nan_to_num()), damping, rtol=1e-9)
    assert used.eq(damping or 1e-20).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("samples", "size"), [(1, 8), (3, 31), (20, 64)])
def test_singular_blocks_are_damped_by_a_part_of_their_mean_diagonal(kernel, samples, size):
    gradients = torch.randn(samples, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fisher, keep = (gradients.T @ gradients)[None], torch.ones(1, size, dtype=torch.bool)
    keep[0, 0] = False
    weight = random_problem(size, blocks=1)[0]
    used = assert_matches_truth(kernel, weight, keep, lower_only(fisher), 0.0, rtol=1e-4)
    torch.testing.assert_close(used[0], 1e-8 * fisher[0].diagonal()[1:].mean())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("at", [(5, 5), (5, 2), (16, 0)])
def test_a_block_that_is_not_finite_is_reported_and_leaves_the_others_alone(kernel, bad, at):
    weight, keep, fisher = random_problem(17, 1.0)
    keep[:, 9] = False
    clean, _ = run(kernel, weight, keep, fisher, 1e-3)
    fisher[1][at] = bad
    output, used = run(kernel, weight, keep, fisher, 1e-3)
    assert used.isnan().tolist() == [False, True, False]
    assert output[1].isnan().all() and output[::2].equal(clean[::2])


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_of_weights_dropped_before_take_no_part(kernel):
    weight, keep, fisher = random_problem(17)
    clean = run(kernel, weight * keep, keep, fisher, 1e-3)
    fisher[~(keep[:, :, None] & keep[:, None, :])] = float("nan")
    changed = run(kernel, weight * keep, keep, fisher, 1e-3)
    assert all(a.equal(b) for a, b in zip(clean, changed, strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", SIZES)
def test_a_packed_fisher_gives_what_a_square_one_gives(kernel, size):
    weight, keep, fisher = random_problem(size, 0.7, torch.float32)
    square, packed = (run(kernel, weight, keep, f, 1e-3) for f in (fisher, pack(fisher)))
    assert all(a.equal(b) for a, b in zip(square, packed, strict=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_increase_is_half_the_quadratic_form(size, dtype):
    change, _, fisher = random_problem(size, dtype=dtype)
    truth = [0.5 * c @ dense(f, 0.0) @ c for c, f in zip(change.double().numpy(), fisher, strict=True)]
    np.testing.assert_allclose(native.loss_increase(change, fisher).double(), truth, rtol=DTYPES[dtype])
    assert native.loss_increase(change, pack(fisher)).equal(native.loss_increase(change, fisher))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("samples", [1, 2, 5, 300, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accumulate_adds_the_products_of_the_gradients_to_every_block(size, samples, dtype):
    generator = torch.Generator().manual_seed(size)
    gradients = torch.randn(samples, 3 * size - size // 3, generator=generator).to(dtype)
    fisher = torch.randn(3, packed_numbers(size), generator=generator)
    blocks = to_blocks(gradients.double(), size)
    truth = fisher + pack(torch.einsum("sbi,sbj->bij", blocks, blocks))
    torch.testing.assert_close(native.accumulate(fisher, gradients).double(), truth, rtol=1e-5, atol=2e-6 * samples)


def test_a_block_that_one_gradient_overflows_leaves_its_neighbours_finite():
    gradients = torch.ones(2, 3 * 17)
    gradients[0, 20] = float("inf")
    result = native.accumulate(torch.zeros(3, packed_numbers(17)), gradients)
    assert result[::2].isfinite().all() and not result[1].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_the_same_for_any_number_of_threads(dtype):
    weight, keep, fisher = random_problem(33, 0.6, dtype, blocks=50)
    gradients = torch.randn(40, 50 * 33, generator=torch.Generator().manual_seed(0))
    results = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        outputs = [run(kernel, weight, keep, fisher, 1e-9) for kernel in KERNELS]
        results.append([*sum(outputs, ()), native.accumulate(torch.zeros(50, packed_numbers(33)), gradients)])
    assert all(a.equal(b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_strided_tensors_and_parameters_are_taken():
    weight, keep, fisher = random_problem(12)
    strided = torch.nn.Parameter(weight.T.contiguous()).T
    assert native.cap_scores(strided, keep, fisher, 1e-3)[0].equal(native.cap_scores(weight, keep, fisher, 1e-3)[0])


W, K, F, P = torch.ones(2, 4), torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 4, 4), torch.ones(2, 10)
MISTAKES = {
    r"keep \(2, 4\) torch.float32": lambda: native.cap_scores(W, W, F, 0.1),
    r"given: fisher \(2, 4, 3\)": lambda: native.inverse_diagonal(K, F[..., :3], 0.1),
    r"values \(2, 3\)": lambda: native.solve_kept(W[:, :3], K, F, 0.1),
    "one dtype": lambda: native.compensate(W.double(), K, F, 0.1),
    "float32 or float64; given: fisher": lambda: native.compensate(W.half(), K, F.half(), 0.1),
    "damping of at least 0, not -1": lambda: native.cap_scores(W, K, F, -1.0),
    "damping of at least 0, not nan": lambda: native.cap_scores(W, K, F, float("nan")),
    "groups of 3, of which 1 may leave": lambda: native.cap_scores(W, K, F, 0.1, 3, 1),
    "groups of 4, of which 5 may leave": lambda: native.cap_scores(W, K, F, 0.1, 4, 5),
    "on meta": lambda: native.cap_scores(W.to("meta"), K, F, 0.1),
    r"fill the blocks of 4; given: gradients \(3, 9\)": lambda: native.accumulate(P, torch.ones(3, 9)),
    r"fill the blocks of 4; given: gradients \(3, 4\)": lambda: native.accumulate(P, torch.ones(3, 4)),
    "contiguous": lambda: native.accumulate(P.T.contiguous().T, torch.ones(3, 8)),
    r"of float32; given: fisher \(2, 10\) torch.float64": lambda: native.accumulate(P.double(), torch.ones(3, 8)),
    "float32 or bfloat16; given": lambda: native.accumulate(P, torch.ones(3, 8).half()),
    "11 numbers are no packed triangle": lambda: native.accumulate(torch.ones(2, 11), torch.ones(3, 8)),
    r"\(blocks, packed\) of float32; given: fisher \(2, 4, 4\)": lambda: native.accumulate(F, torch.ones(3, 8)),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_named_before_the_work_starts(message):
    with pytest.raises(ValueError, match=message):
        MISTAKES[message]()


def test_usable_asks_for_one_float_type_on_the_cpu():
    assert native.usable(W, K, F) and native.usable(W.double(), K)
    assert not native.usable(W, F.double()) and not native.usable(W.half()) and not native.usable(W.to("meta"))


@pytest.mark.parametrize("isa", [isa for isa in native.describe()["isas"] if isa != native.describe()["isa"]])
def test_every_other_instruction_set_of_this_machine_agrees_too(isa):
    comparisons = "(agrees_with and not 192) or singular or not_finite or accumulate or packed or number_of_threads"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", comparisons]
    done = in_subprocess(command, SECATEUR_ISA=isa, OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SECATEUR_ISA", "mmx", "SECATEUR_ISA=mmx cannot run here; choose from portable"),
        ("SECATEUR_NATIVE", "0", "off"),
    ],
)
def test_an_extension_that_cannot_be_used_says_why(variable, value, reason):
    code = "from secateur import native; print(native.available(), native.usable(), native.describe()['reason'])"
    done = in_subprocess([sys.executable, "-c", code], **{variable: value})
    assert done.stdout.startswith("False False") and reason in done.stdout


@pytest.mark.parametrize(("switch", "told"), [(None, 1), ("0", 0)])
def test_an_extension_that_was_not_built_is_told_once_and_one_switched_off_never(monkeypatch, caplog, switch, told):
    monkeypatch.setitem(sys.modules, "secateur._core", None)
    monkeypatch.setattr(native, "_load", functools.cache(native._load.__wrapped__))
    if switch:
        monkeypatch.setenv("SECATEUR_NATIVE", switch)
    else:
        monkeypatch.delenv("SECATEUR_NATIVE", raising=False)
    assert not native.available() and not native.usable(torch.ones(1))
    assert [record.getMessage() for record in caplog.records] == told * [
        "The compiled kernels are not built; reinstall secateur with a C++ compiler on the machine."
        " All works without them, many times slower."
    ]


def in_subprocess(command, **environment):
    root = Path(__file__).parent.parent
    return subprocess.run(command, env=os.environ | environment, cwd=root, capture_output=True, text=True)
