"""The Optimal Brain Surgeon's algebra in blocks: the best kept weights once others are zero, and what that costs.

With the kept entries K, F damped by λ, and δ the change of the weights:
  compensate      w_K = F_KK⁻¹ F_K: w         (equation 4 of the CAP paper, written with F instead of F⁻¹)
  loss_increase   ½ δᵀFδ
Everything works on weights (blocks, size) and Fishers that are square (blocks, size, size) or packed (see
triangles.py); the twins of the native kernels are here.
Cost: kept³/3 operations a block for `compensate` and `solve_kept`, kept³ for `inverse_diagonal`.
"""

import logging
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import native
from ..errors import NumericsError
from ..triangles import unpack

log = logging.getLogger(__name__)
NOT_FINITE = "The Fisher holds NaN or infinity; the gradients it was made of were not finite."
CHUNK = {"cpu": 1 << 20, "cuda": 1 << 27}  # numbers of a twin's float64 copies: in cache, or enough to fill the chip


def compensate(weight: Tensor, keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """Best kept weights once the others are zero: w_K = F_KK⁻¹ F_K: w, per block (the joint OBS update).

    Args:
        weight: (blocks, size).
        keep: (blocks, size), True where kept.
        fisher: (blocks, size, size), symmetric; or packed.
        damping: λ, added to the diagonal.

    >>> fisher = torch.tensor([[[2.0, 1.0], [1.0, 2.0]]])
    >>> compensate(torch.tensor([[3.0, 4.0]]), torch.tensor([[True, False]]), fisher)
    tensor([[5., 0.]])
    """
    return by_blocks(native.compensate, _compensate, weight, keep, fisher, damping)


def solve_kept(right: Tensor, keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """x with F_KK x_K = right_K, and zero where dropped."""
    return by_blocks(native.solve_kept, _solve_kept, right, keep, fisher, damping)


def inverse_diagonal(keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """The diagonal of F_KK⁻¹, and zero where dropped."""
    like = keep.to(fisher.dtype)
    return by_blocks(lambda _, *rest: native.inverse_diagonal(*rest), _inverse_diagonal, like, keep, fisher, damping)


def loss_increase(change: Tensor, fisher: Tensor) -> Tensor:
    """(blocks,): ½ δᵀFδ of each block."""
    if native.usable(change, fisher):
        return native.loss_increase(change, fisher)
    parts = [half_form(change[part], square) for part, square in _squares(fisher, change.shape[1])]
    return torch.cat(parts) if parts else change.new_zeros(0)


Solve = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]  # → results, and the λ that each block took


def by_blocks(kernel: Solve, twin: Solve, values: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
    """What `kernel` gives for all blocks, or its `twin` for a few at a time where there are no kernels for them.

    Raises:
        NumericsError: when the Fisher is not finite.
    """
    if native.usable(values, fisher):
        result, used = kernel(values, keep, fisher, damping)
    else:
        parts = [twin(values[p], keep[p], square, damping) for p, square in _squares(fisher, values.shape[1])]
        result, used = (torch.cat(part) for part in zip(*parts, strict=True)) if parts else (values, values[:, 0])
    if torch.isnan(used).any():
        raise NumericsError(NOT_FINITE)
    report(used, damping)
    return result


def report(used: Tensor, damping: float) -> None:
    """Say so when blocks took more than the λ they were given."""
    if more := int((used > damping).sum()):
        log.warning(
            "%d of %d blocks did not factor with a damping of %.1e and took up to %.1e; more gradients or a larger"
            " damping would do.", more, len(used), damping, float(used.max()),
        )  # fmt: skip


# --- the twins -------------------------------------------------------------------------------------------------------


def _squares(fisher: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    """A few blocks at a time: which, and their Fishers (blocks, size, size)."""
    step = max(1, CHUNK.get(fisher.device.type, 1 << 24) // size**2)
    for part in (slice(first, first + step) for first in range(0, len(fisher), step)):
        yield part, unpack(fisher[part]) if fisher.dim() == 2 else fisher[part]


def factor_kept(keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of F_KK + λI with ones on the diagonal where dropped, and the λ that each block took.

    A block whose smallest pivot is lost in rounding is damped ten times more until it factors.
    """
    both = keep[:, :, None] & keep[:, None, :]  # (blocks, size, size)
    kept = fisher.double() * both
    diagonal = kept.diagonal(dim1=1, dim2=2)
    used = torch.full((len(keep),), damping, dtype=torch.float64, device=fisher.device)  # λ
    floor = 1e-8 * diagonal.sum(1) / keep.sum(1).clamp(min=1)
    factor = torch.empty_like(kept)
    todo = torch.arange(len(keep), device=fisher.device)
    while len(todo):
        ones = torch.where(keep[todo], used[todo, None], 1.0)
        system = kept[todo] + torch.diag_embed(ones)
        if not torch.isfinite(system).all():
            raise NumericsError(NOT_FINITE)
        made, info = torch.linalg.cholesky_ex(system)
        factor[todo] = made
        largest = torch.where(keep[todo], system.diagonal(dim1=1, dim2=2), 0.0).amax(1)
        pivots = torch.where(keep[todo], made.diagonal(dim1=1, dim2=2).square(), math.inf).amin(1)
        failed = (info > 0) | ~(pivots > 1e-13 * largest)
        todo = todo[failed & keep[todo].any(1)]
        used[todo] = torch.stack([10 * used[todo], floor[todo], torch.full_like(used[todo], 1e-20)]).amax(0)
    return factor, used


def best_kept(weight: Tensor, keep: Tensor, fisher: Tensor, factor: Tensor, used: Tensor) -> Tensor:
    """`compensate` in float64, from the factor and the λ of `factor_kept`."""
    weight = weight.double()
    right = (fisher.double() @ weight[..., None])[..., 0] + used[:, None] * weight
    solved = torch.cholesky_solve((right * keep)[..., None], factor)[..., 0]
    return torch.where(keep, solved, 0.0)


def half_form(change: Tensor, fisher: Tensor) -> Tensor:
    """(blocks,): ½ δᵀFδ."""
    return 0.5 * ((fisher @ change[..., None])[..., 0] * change).sum(-1)


def _compensate(weight: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    factor, used = factor_kept(keep, fisher, damping)
    solved = best_kept(weight, keep, fisher, factor, used).to(weight.dtype)
    unchanged = (keep | (weight == 0)).all(1, keepdim=True)  # nothing leaves: no rounding either
    return torch.where(unchanged, weight, solved), used


def _solve_kept(right: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    factor, used = factor_kept(keep, fisher, damping)
    solved = torch.cholesky_solve((right.double() * keep)[..., None], factor)[..., 0] * keep
    return solved.to(right.dtype), used


def _inverse_diagonal(like: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    factor, used = factor_kept(keep, fisher, damping)
    inverse = torch.cholesky_inverse(factor)
    return (inverse.diagonal(dim1=1, dim2=2) * keep).to(like.dtype), used
