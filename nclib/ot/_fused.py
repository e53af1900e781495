"""OMIT's small problems in one launch on a GPU: all passes in registers, by kernels of Triton, on request.

Measured on an H100, 16,384 problems of 37 x 13 with three passes: 0.23 ms in place of 0.75, and 0.80 in place
of 4.76 with gradients.

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

from nclib.common.extras import needs

#: Entries of a program's tile, and problems in it at most: 32 bytes are what a GPU reads at once.
TILE_ENTRIES, TOGETHER = 8192, 8
#: Entries of a tile for each warp: 32 in every thread.
WARP_ENTRIES = 1024

_asked = False


class Spec(NamedTuple):
    """Settings of the passes."""

    lam: float  # weight of the entropy
    passes: int
    epsilon: float  # added to every sum; 0 is exact scaling


@contextlib.contextmanager
def fused(on: bool = True) -> Iterator[None]:
    """Ask for Triton kernels within a ``with`` block.

    They take the place of the plain path of OMIT's comparison where tensors are float32 on a GPU and n x m,
    each rounded up to a power of two, is at most 8,192. Elsewhere nothing changes. Put backward passes inside
    the block too, since they may compute forward passes again. The setting holds for all threads.

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
        raise needs("nclib.ot.fused", "triton")
    before, _asked = _asked, bool(on)
    try:
        yield
    finally:
        _asked = before


def takes(s: Tensor, n: int, m: int) -> bool:
    """Return whether the kernels were asked for and can take problems of n x m like ``s``."""
    fits = s.device.type == "cuda" and s.dtype == torch.float32 and tile(n) * tile(m) <= TILE_ENTRIES
    return _asked and fits


def tile(size: int) -> int:
    """Return the power of two that a side is padded to."""
    return 1 << max(0, size - 1).bit_length()


def run(s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int, kept: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Solve problems (B, n, m, C) in one launch.

    Parameters
    ----------
    s, p, q : Tensor, (B, n, m, C), (B or 1, n, C or 1), (B or 1, m, C or 1)
    spec : Spec
    skip : int
        Leading rows and columns that do not count in the scores.
    kept : bool
        Whether the scalings of all passes are kept, for :func:`run_back`.

    Returns
    -------
    scores, us, vs : Tensor
        Scores (B, C); scalings (T, B, n, C) and (T, B, m, C), empty unless kept.
    """
    from nclib.ot import _triton

    size, n, m, count = s.shape
    us, vs = (s.new_empty(spec.passes if kept else 0, size, side, count) for side in (n, m))
    out = s.new_empty(size, count)
    _launch(_triton.forward, (s, p, q, out, us, vs), _arguments(s, p, q, spec, skip), KEPT=kept)
    return out, us, vs


def run_back(
    s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int, saved: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients for s, p and q in their shapes; ``saved`` is us, vs, and the scores' gradient."""
    from nclib.ot import _triton

    us, vs, grad = saved
    size, n, m, count = s.shape
    found = tuple(s.new_empty(shape) for shape in ((size, n, m, count), (size, n, count), (size, m, count)))
    tensors = (s, p, q, grad.contiguous(), us, vs, *found)
    _launch(_triton.backward, tensors, _arguments(s, p, q, spec, skip))
    return found[0], found[1].sum_to_size(p.shape), found[2].sum_to_size(q.shape)


def _arguments(s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int) -> tuple[Any, ...]:
    size, n, m, count = s.shape
    p, q = p.expand(size, n, count), q.expand(size, m, count)  # strides 0 where shared
    strides = (*s.stride(), p.stride(0), p.stride(1), p.stride(2), *q.stride())
    kept = (n * count, m * count, size * n * count, size * m * count)
    constant = spec.epsilon * math.exp(1 / spec.lam) if spec.epsilon else 0.0
    return (n, m, count, *strides, *kept, spec.passes, skip, 1 / spec.lam, constant, spec.epsilon)


def settings(n: int, m: int, count: int) -> dict[str, int]:
    """Return tile and warps of a program."""
    entries = tile(n) * tile(m)
    together = max(1, min(TOGETHER, tile(count), TILE_ENTRIES // entries))
    warps = max(1, min(8, together * entries // WARP_ENTRIES))
    return {"P": together, "N": tile(n), "M": tile(m), "num_warps": warps}


def _launch(kernel: Any, tensors: tuple[Tensor, ...], given: tuple[Any, ...], **flags: bool) -> None:
    """Start a kernel on the device of its tensors, which need not be the current one."""
    size, n, m, count = tensors[0].shape
    how = settings(n, m, count)
    programs = size * -(-count // how["P"])
    if programs:
        with torch.cuda.device_of(tensors[0]):
            kernel[(programs,)](*tensors, *given, EXACT=given[-1] == 0, **flags, **how)


class FusedScores(torch.autograd.Function):
    """Scores (B, C) of :func:`nclib.ot.small.transport_scores`; the second derivative by its plain path."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int, plain: Any) -> Tensor:
        kept = any(ctx.needs_input_grad[:3])
        scores, us, vs = run(s, p, q, spec, skip, kept)
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
            again = torch.autograd.grad(plain(s, p, q, spec, skip), wanted, grads[0], create_graph=True)
            given = iter(again)
            return (*(next(given) if need else None for need in needs), None, None, None)
        found = run_back(s, p, q, spec, skip, (us, vs, grads[0]))
        return (*(x if need else None for x, need in zip(found, needs, strict=True)), None, None, None)
