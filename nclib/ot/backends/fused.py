"""Small problems in one launch on a GPU: all passes in registers, by kernels of Triton, when asked for.

**Not measured on a GPU yet**: the kernels ran in Triton's interpreter on a CPU, where values and gradients
equal those of the plain path, and were compiled ahead of time for sm_80 and sm_90. ``make gpu`` times both
paths; the kernels stay off unless :func:`fused` asks for them.

The bound of a problem with n regions, m words and T passes: n m similarities are read forward, read again
and their gradient written backward; the scalings of all passes, T (n + m) numbers, are written and read.
At OMIT's size with dustbins (n = 37, m = 13, T = 3) that is 2.7 kB and 7.7e3 operations forward,
4.9 kB and 1.35e4 backward, less than 3 operations a byte: memory decides, not arithmetic. The plain path
moves its kernel through memory at every product. The tile is padded to 64 x 16, so that half of its lanes
idle.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Entries of a program's tile, and problems in it at most: 32 bytes are what a GPU reads at once.
TILE_ENTRIES, TOGETHER = 8192, 8
#: Entries of a tile for each warp: 32 in every thread.
WARP_ENTRIES = 1024

_asked = False


class Spec(NamedTuple):
    """Settings of the passes; ``epsilon`` 0 is exact scaling, else the kernel is exp((s - shift) / lam)."""

    lam: float
    passes: int
    epsilon: float
    shift: float = 0.0


@contextlib.contextmanager
def fused(on: bool = True) -> Iterator[None]:
    """Ask for Triton kernels within a ``with`` block; **not measured on a GPU yet**.

    They take the place of the plain path where tensors are float32 on a GPU: of :func:`nclib.ot.scaling_plan`
    and of OMIT's comparison where n x m, each rounded up to a power of two, is at most 8,192; of
    :func:`nclib.ot.partial_sinkhorn` (extended) and :func:`nclib.ot.sinkhorn` with the default ``method``, no
    ``start`` and ``stop="accurate"`` where n and m are at most 512; and of the nodes of SGR and SAF
    (:mod:`nclib.models.sgraf_fused`) up to 64 regions, 128 words and ``sim_dim`` 256. Elsewhere nothing
    changes. Put backward passes inside the block too, since they may compute forward passes again. The
    setting holds for all threads.

    Parameters
    ----------
    on : bool
        False switches the kernels off within an outer block.

    Raises
    ------
    ImportError
        When triton is not installed.

    Examples
    --------
    >>> import nclib.ot
    >>> with nclib.ot.fused(False):
    ...     pass
    """
    global _asked
    if on and importlib.util.find_spec("triton") is None:
        raise ImportError('fused kernels need triton: pip install -e ".[gpu]" in the source folder of nclib')
    before, _asked = _asked, bool(on)
    try:
        yield
    finally:
        _asked = before


def asked(s: Tensor) -> bool:
    """Return whether kernels were asked for and can take tensors like ``s``."""
    return _asked and s.device.type == "cuda" and s.dtype == torch.float32


def takes(s: Tensor, n: int, m: int) -> bool:
    """Return whether the kernels were asked for and can take problems of n x m like ``s``."""
    return asked(s) and tile(n) * tile(m) <= TILE_ENTRIES


def tile(size: int) -> int:
    """Return the power of two that a side is padded to."""
    return 1 << max(0, size - 1).bit_length()


def run(
    s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, spec: Spec, skip: int | None, kept: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve problems (B, n, m, C) in one launch.

    Parameters
    ----------
    s, p, q, mask : Tensor, (B, n, m, C), (B or 1, n, C or 1), (B or 1, m, C or 1), (B, n, m, C) or None
    spec : Spec
    skip : int or None
        Leading rows and columns that do not count in the scores; None asks for plans.
    kept : bool
        Whether the scalings of all passes are kept, for :func:`run_back`.

    Returns
    -------
    out, us, vs : Tensor
        Scores (B, C) or plans (B, n, m, C); scalings (T, B, n, C) and (T, B, m, C), empty unless kept.
    """
    from nclib.ot.backends import _triton

    s, mask = _alike(s, mask)
    size, n, m, count = s.shape
    us, vs = (s.new_empty(spec.passes if kept else 0, size, side, count) for side in (n, m))
    out = s.new_empty((size, n, m, count) if skip is None else (size, count))
    given = _arguments(s, p, q, spec, skip)
    _launch(
        _triton.forward, (s, p, q, s if mask is None else mask, out, us, vs), given, mask, skip, KEPT=kept
    )
    return out, us, vs


def run_back(
    s: Tensor,
    p: Tensor,
    q: Tensor,
    mask: Tensor | None,
    spec: Spec,
    skip: int | None,
    saved: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients for s, p and q in their shapes; ``saved`` is us, vs, and the output's gradient."""
    from nclib.ot.backends import _triton

    s, mask = _alike(s, mask)
    us, vs, grad = saved
    size, n, m, count = s.shape
    found = tuple(s.new_empty(shape) for shape in ((size, n, m, count), (size, n, count), (size, m, count)))
    given = _arguments(s, p, q, spec, skip)
    tensors = (s, p, q, s if mask is None else mask, grad.contiguous(), us, vs, *found)
    _launch(_triton.backward, tensors, given, mask, skip)
    return found[0], found[1].sum_to_size(p.shape), found[2].sum_to_size(q.shape)


def _alike(s: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return similarities and mask with the same strides: the kernels know one set."""
    return (s, None) if mask is None else (s.contiguous(), mask.contiguous().view(torch.uint8))


def _arguments(s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int | None) -> tuple[Any, ...]:
    size, n, m, count = s.shape
    p, q = p.expand(size, n, count), q.expand(size, m, count)  # strides 0 where shared
    strides = (*s.stride(), p.stride(0), p.stride(1), p.stride(2), *q.stride())
    kept = (n * count, m * count, size * n * count, size * m * count)
    constant = spec.epsilon * math.exp((1 - spec.shift) / spec.lam) if spec.epsilon else 0.0
    numbers = (spec.passes, skip or 0, 1 / spec.lam, spec.shift, constant, spec.epsilon)
    return (n, m, count, *strides, *kept, *numbers)


def settings(n: int, m: int, count: int) -> dict[str, int]:
    """Return tile and warps of a program."""
    entries = tile(n) * tile(m)
    together = max(1, min(TOGETHER, tile(count), TILE_ENTRIES // entries))
    warps = max(1, min(8, together * entries // WARP_ENTRIES))
    return {"P": together, "N": tile(n), "M": tile(m), "num_warps": warps}


def _launch(
    kernel: Any, tensors: tuple[Tensor, ...], given: tuple[Any, ...], mask: Tensor | None, skip: int | None,
    **flags: bool,
) -> None:  # fmt: skip
    size, n, m, count = tensors[0].shape
    how = settings(n, m, count)
    flags |= {"EXACT": given[-1] == 0, "MASKED": mask is not None, "SCORES": skip is not None}
    programs = size * -(-count // how["P"])
    launch(kernel, programs, *tensors, *given, **flags, **how)


def launch(kernel: Any, programs: int, *given: Any, **how: Any) -> None:
    """Start a kernel on the device of its tensors, which need not be the current one."""
    if programs:
        with torch.cuda.device_of(given[0]):
            kernel[(programs,)](*given, **how)


class FusedScores(torch.autograd.Function):
    """Scores (B, C) of :func:`nclib.ot.batched.transport_scores`; the second derivative by its plain path."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int, plain: Any) -> Tensor:
        kept = any(ctx.needs_input_grad[:3])
        scores, us, vs = run(s, p, q, None, spec, skip, kept)
        if kept:
            ctx.save_for_backward(s, p, q, us, vs)
            ctx.settings = spec, skip, plain
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, p, q, us, vs = ctx.saved_tensors
        spec, skip, plain = ctx.settings
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient itself is to be differentiated
            wanted = [x for x, need in zip((s, p, q), needs, strict=True) if need]
            again = torch.autograd.grad(plain(s, p, q), wanted, grads[0], create_graph=True)
            given = iter(again)
            return (*(next(given) if need else None for need in needs), None, None, None)
        found = run_back(s, p, q, None, spec, skip, (us, vs, grads[0]))
        return (*(x if need else None for x, need in zip(found, needs, strict=True)), None, None, None)


class FusedPlans(torch.autograd.Function):
    """Plans (b, n, m) of similarities (b, n, m) and weights (b, n), (b, m)."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, spec: Spec) -> Tensor:
        allowed, kept = None if mask is None else mask.unsqueeze(-1), any(ctx.needs_input_grad[:3])
        sides = s.unsqueeze(-1), p.unsqueeze(-1), q.unsqueeze(-1)
        plan, us, vs = run(*sides, allowed, spec, None, kept)
        ctx.save_for_backward(s, p, q, mask, us, vs)
        ctx.spec = spec
        return plan.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, p, q, mask, us, vs = ctx.saved_tensors
        allowed = None if mask is None else mask.unsqueeze(-1)
        sides = s.unsqueeze(-1), p.unsqueeze(-1), q.unsqueeze(-1)
        found = run_back(*sides, allowed, ctx.spec, None, (us, vs, grads[0].unsqueeze(-1)))
        return (*(x.squeeze(-1) for x in found), None, None)
