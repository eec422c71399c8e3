"""Slow truths, written as plainly as their definitions and with nothing of the library."""

import torch
import torch.nn.functional as F


def as_matrix(weight):
    """(out, in) with the input channels last."""
    return weight.movedim(1, -1).flatten(1)


def sample_gradients(model, batch, names, loss=F.cross_entropy):
    """{name: (samples, out, in)}: every sample alone through the model, in evaluation mode."""
    model.eval()
    parameters = [model.get_parameter(name) for name in names]
    rows = []
    for inputs, targets in zip(*batch, strict=True):
        value = loss(model(inputs[None]), targets[None])
        rows.append(torch.autograd.grad(value, parameters, materialize_grads=True))
    return {name: torch.stack([as_matrix(row[i]) for row in rows]) for i, name in enumerate(names)}


def grouped(gradients, size):
    """Means of `size` consecutive gradients; the incomplete last group is left out."""
    whole = len(gradients) // size
    return gradients[: whole * size].unflatten(0, (whole, size)).mean(1)


def fisher(gradients):
    """1/N Σ g gᵀ, (weights, weights), in float64."""
    flat = gradients.flatten(1).double()
    return sum(torch.outer(g, g) for g in flat) / len(flat)


def diagonal_blocks(matrix, size):
    """The blocks of `size` along the diagonal; the last one is filled up with zeros."""
    blocks = []
    for first in range(0, len(matrix), size):
        block = matrix[first : first + size, first : first + size]
        missing = size - len(block)
        blocks.append(F.pad(block, (0, missing, 0, missing)))
    return torch.stack(blocks)


def lower_triangles(blocks):
    """(blocks, size · (size + 1) / 2): row by row, up to the diagonal."""
    rows = [(i, j) for i in range(blocks.shape[1]) for j in range(i + 1)]
    return torch.stack([blocks[:, i, j] for i, j in rows], dim=1)
