"""The kernels against their rivals, and how their time grows."""

import torch
from rivals import add_by_woodbury, eliminate_in_step, invert_batched
from timing import exponent, in_turns, ratio, seconds

from secateur import native
from secateur.fisher import BlockFisher
from secateur.solvers import cap, obs
from secateur.triangles import pack

SIZE, DAMPING = 192, 0.01


def fishers(blocks: int, size: int, samples: int = 256, seed: int = 0) -> torch.Tensor:
    """(blocks, size, size): Fishers of random gradients whose scales spread over three decades."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-1.5, 1.5, size)[torch.randperm(size, generator=generator)]
    gradients = torch.randn(blocks, samples, size, generator=generator) * scales
    return gradients.mT @ gradients / samples


def cap_scores(in_place: bool, blocks: int = 512, rounds: int = 3) -> dict:
    fisher, weight = fishers(blocks, SIZE), torch.randn(blocks, SIZE)
    inverse = invert_batched(fisher, DAMPING)
    packed = pack(fisher)
    times = in_turns(
        {
            "in step": lambda: eliminate_in_step(weight, inverse.clone(), in_place),
            "kernel": lambda: cap.scores(weight, packed, damping=DAMPING),
        },
        rounds,
    )
    name = f"CAP scores against all blocks in step{', in place' if in_place else ''}"
    return row(name, times, "in step", "kernel", 100, 200, blocks * SIZE)


def fisher_sum(blocks: int = 512, gradients: int = 64, rounds: int = 3) -> dict:
    given = torch.randn(gradients, blocks, SIZE)
    inverse = torch.eye(SIZE).expand(blocks, -1, -1) / DAMPING
    store = BlockFisher(blocks * SIZE, SIZE)
    inverse = inverse.contiguous()
    times = in_turns(
        {
            "rank one": lambda: add_by_woodbury(inverse, given, 4096),
            "kernel": lambda: store.add(given),
        },
        rounds,
    )
    return row("Fisher of a batch against rank-1 Woodbury", times, "rank one", "kernel", 50, 50, blocks * SIZE)


def inversion(blocks: int = 512, rounds: int = 5) -> dict:
    fisher = fishers(blocks, SIZE)
    keep, packed = torch.ones(blocks, SIZE, dtype=torch.bool), pack(fisher)
    times = in_turns(
        {
            "torch": lambda: invert_batched(fisher, DAMPING).diagonal(dim1=1, dim2=2),
            "kernel": lambda: obs.inverse_diagonal(keep, packed, DAMPING),
        },
        rounds,
    )
    return row("damp, factor, invert against batched Cholesky", times, "torch", "kernel", 5, 5, blocks * SIZE)


def row(name, times, slow, fast, reach, aim, weights) -> dict:
    return {
        "measure": name,
        "ratio": ratio(times[slow], times[fast]),
        "reach": reach,
        "aim": aim,
        "weights": weights,
        "seconds": times,
    }


def growth() -> list[dict]:
    """Fitted exponents of the time: in the weights d, the block B, the gradients N, and the threads."""
    return [
        fitted("CAP scores in d", [128, 256, 512, 1024], lambda n: scoring(n, SIZE), 1),
        fitted("CAP scores in B at the same d", [48, 96, 192, 384], lambda b: scoring(98304 // b, b), 2),
        fitted("Fisher in d", [256, 512, 1024, 2048], lambda n: summing(n, SIZE, 128), 1),
        fitted("Fisher in B at the same d", [48, 96, 192, 384], lambda b: summing(196608 // b, b, 128), 1),
        fitted("Fisher in N", [128, 256, 512, 1024], lambda n: summing(256, SIZE, n), 1),
        fitted("CAP scores in threads", [1, 2], on_threads(lambda: scoring(512, SIZE)), -1),
        fitted("Fisher in threads", [1, 2], on_threads(lambda: summing(512, SIZE, 256)), -1),
    ]


def fitted(name: str, sizes: list[int], time_of, expected: int) -> dict:
    rounds = [[time_of(size) for size in sizes] for _ in range(5)]
    times = [sorted(column)[2] for column in zip(*rounds, strict=True)]
    return {"measure": name, "sizes": sizes, "seconds": times, "exponent": exponent(sizes, times), "expected": expected}


def scoring(blocks: int, size: int) -> float:
    fisher, weight = pack(fishers(min(blocks, 64), size)), torch.randn(blocks, size)
    fisher = fisher.repeat(-(-blocks // len(fisher)), 1)[:blocks]
    return seconds(lambda: cap.scores(weight, fisher, damping=DAMPING))


def summing(blocks: int, size: int, gradients: int) -> float:
    given, store = torch.randn(gradients, blocks * size), BlockFisher(blocks * size, size)
    store.add(given[:1])  # the pages of its memory are there
    return seconds(lambda: store.add(given))


def on_threads(work):
    def timed(threads: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return work()
        finally:
            torch.set_num_threads(before)

    return timed


def agreement(blocks: int = 64) -> float:
    """The largest relative difference between the scores of the kernel and those of the loop in step."""
    fisher, weight = fishers(blocks, SIZE).double(), torch.randn(blocks, SIZE).double()
    eye = DAMPING * torch.eye(SIZE, dtype=torch.float64)
    slow = eliminate_in_step(weight, torch.linalg.inv(fisher + eye)).sort(1).values
    fast = native.cap_scores(weight, torch.ones_like(weight, dtype=torch.bool), fisher, DAMPING)[0].sort(1).values
    return float(((fast - slow).abs() / slow).max())
