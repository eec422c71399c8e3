"""What the fast paths are measured against, each in the plainest torch that does the work, from its description."""

import torch
from torch import Tensor


def eliminate_in_step(weight: Tensor, inverse: Tensor, in_place: bool = False) -> Tensor:
    """CAP as the paper's appendix lists it, all blocks in step: each removal reads and writes every inverse, and keeps
    the state of the weights for the merging at the end.

    Args:
        weight: (blocks, size).
        inverse: (blocks, size, size), of the damped Fisher; overwritten.
        in_place: without the outer product as a tensor of its own, and without the states: the fastest that plain
            torch does in step.
    Returns:
        (blocks, size): the loss increase at which each weight leaves.
    """
    weight, rows = weight.clone(), torch.arange(len(weight))
    alive, total, scores = torch.ones_like(weight, dtype=torch.bool), torch.zeros_like(weight[:, 0]), weight.clone()
    states = []
    for _ in range(weight.shape[1]):
        diagonal = inverse.diagonal(dim1=1, dim2=2)
        saliency = torch.where(alive, weight**2 / (2 * diagonal), torch.inf)
        cost, first = saliency.min(1)
        total += cost
        scores[rows, first] = total
        column, pivot = inverse[rows, :, first], inverse[rows, first, first][:, None]
        weight -= column * (weight[rows, first][:, None] / pivot)
        if in_place:
            inverse.baddbmm_(column[:, :, None], (column / pivot)[:, None, :], alpha=-1)
        else:
            inverse -= column[:, :, None] * (column / pivot)[:, None, :]
            states.append(weight.clone())
        alive[rows, first] = False
        weight[rows, first] = 0.0
        inverse[rows, first, first] = 1.0  # divided by later, and never chosen
    return scores


def add_by_woodbury(inverse: Tensor, gradients: Tensor, total: int) -> None:
    """One gradient at a time into the inverse Fisher: F⁻¹ −= F⁻¹g gᵀF⁻¹ / (N + gᵀF⁻¹g), in place.

    Args:
        inverse: (blocks, size, size).
        gradients: (gradients, blocks, size).
        total: N.
    """
    for gradient in gradients:
        product = (inverse @ gradient[..., None])[..., 0]  # (blocks, size)
        scale = total + (product * gradient).sum(1)
        inverse.baddbmm_(product[:, :, None], (product / scale[:, None])[:, None, :], alpha=-1)


def invert_batched(fisher: Tensor, damping: float) -> Tensor:
    """The inverses of damped blocks by batched Cholesky."""
    return torch.cholesky_inverse(torch.linalg.cholesky(fisher + damping * torch.eye(fisher.shape[1])))
