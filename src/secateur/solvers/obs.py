"""The Optimal Brain Surgeon's algebra in blocks: the best kept weights once others are zero, and what that costs.

With the kept entries K, F damped by λ, and δ the change of the weights:
  compensate      w_K = F_KK⁻¹ F_K: w         (equation 4 of the CAP paper, written with F instead of F⁻¹)
  loss_increase   ½ δᵀFδ
Everything works on (blocks, size) weights and Fishers that are square (blocks, size, size) or packed (see
triangles.py); the twins of the native kernels are here.
Cost: kept³/3 operations a block.
"""

import logging
import math

import torch
from torch import Tensor

from .. import native
from ..errors import NumericsError
from ..triangles import unpack

log = logging.getLogger(__name__)
CHUNK = 1 << 24  # numbers of the float64 copies that a twin makes at a time


def compensate(weight: Tensor, keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """Best kept weights once the others are zero: w_K = F_KK⁻¹ F_K: w, per block (the joint OBS update).

    Args:
        weight: (blocks, size).
        keep: (blocks, size), True where kept.
        fisher: (blocks, size, size), symmetric; or packed.
        damping: λ, added to the diagonal.
    """
    if native.usable(weight, fisher):
        return _checked(*native.compensate(weight, keep, fisher, damping), damping)
    return _in_chunks(_compensate, weight, keep, fisher, damping)


def solve_kept(right: Tensor, keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """x with F_KK x_K = right_K, and zero where dropped."""
    if native.usable(right, fisher):
        return _checked(*native.solve_kept(right, keep, fisher, damping), damping)
    return _in_chunks(_solve_kept, right, keep, fisher, damping)


def inverse_diagonal(keep: Tensor, fisher: Tensor, damping: float = 0.0) -> Tensor:
    """The diagonal of F_KK⁻¹, and zero where dropped."""
    if native.usable(fisher):
        return _checked(*native.inverse_diagonal(keep, fisher, damping), damping)
    return _in_chunks(
        _inverse_diagonal, torch.zeros(keep.shape, dtype=fisher.dtype, device=fisher.device), keep, fisher, damping
    )


def loss_increase(change: Tensor, fisher: Tensor) -> Tensor:
    """(blocks,): ½ δᵀFδ of each block."""
    if native.usable(change, fisher):
        return native.loss_increase(change, fisher)
    return _in_chunks(_loss_increase, change, change != 0, fisher, 0.0)


# --- the twins -------------------------------------------------------------------------------------------------------


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
        made, info = torch.linalg.cholesky_ex(system)
        factor[todo] = made
        largest = torch.where(keep[todo], system.diagonal(dim1=1, dim2=2), 0.0).amax(1)
        pivots = torch.where(keep[todo], made.diagonal(dim1=1, dim2=2).square(), math.inf).amin(1)
        failed = (info > 0) | ~(pivots > 1e-13 * largest)
        if not torch.isfinite(system).all():
            raise NumericsError("The Fisher holds NaN or infinity; the gradients it was made of were not finite.")
        todo = todo[failed & keep[todo].any(1)]
        used[todo] = torch.stack([10 * used[todo], floor[todo], torch.full_like(used[todo], 1e-20)]).amax(0)
    _report(used, damping)
    return factor, used


def inverse_kept(keep: Tensor, fisher: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """(F_KK + λI)⁻¹ in the rows and columns of K, the identity elsewhere, and the λ that each block took."""
    factor, used = factor_kept(keep, fisher, damping)
    return torch.cholesky_inverse(factor), used


def _compensate(weight: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
    factor, used = factor_kept(keep, fisher, damping)
    right = (fisher.double() @ weight.double()[..., None])[..., 0] + used[:, None] * weight
    solved = torch.cholesky_solve((right * keep)[..., None], factor)[..., 0] * keep
    unchanged = (keep | (weight == 0)).all(1, keepdim=True)  # nothing leaves: no rounding either
    return torch.where(unchanged, weight, solved.to(weight.dtype))


def _solve_kept(right: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
    factor, _ = factor_kept(keep, fisher, damping)
    return (torch.cholesky_solve((right.double() * keep)[..., None], factor)[..., 0] * keep).to(right.dtype)


def _inverse_diagonal(like: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
    inverse, _ = inverse_kept(keep, fisher, damping)
    return (inverse.diagonal(dim1=1, dim2=2) * keep).to(like.dtype)


def _loss_increase(change: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
    return 0.5 * ((fisher @ change[..., None])[..., 0] * change).sum(-1)


def _in_chunks(function, values: Tensor, keep: Tensor, fisher: Tensor, damping: float) -> Tensor:
    """The square float64 copies of a few blocks at a time."""
    step = max(1, CHUNK // values.shape[-1] ** 2)
    parts = []
    for chunk in (slice(i, i + step) for i in range(0, len(values), step)):
        square = unpack(fisher[chunk]) if fisher.dim() == 2 else fisher[chunk]
        parts.append(function(values[chunk], keep[chunk], square, damping))
    return torch.cat(parts) if parts else torch.zeros_like(values)


def _checked(result: Tensor, used: Tensor, damping: float) -> Tensor:
    """The result of a kernel, once its blocks are known to be finite; says where it took more damping."""
    if torch.isnan(used).any():
        raise NumericsError("The Fisher holds NaN or infinity; the gradients it was made of were not finite.")
    _report(used, damping)
    return result


def _report(used: Tensor, damping: float) -> None:
    if more := int((used > damping).sum()):
        log.warning(
            "%d of %d blocks did not factor with a damping of %.1e and took up to %.1e; more gradients or a larger"
            " damping would do.", more, len(used), damping, float(used.max()),
        )  # fmt: skip
