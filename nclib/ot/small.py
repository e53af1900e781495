"""Plans of many small problems after a fixed number of Sinkhorn passes, differentiable throughout.

:func:`scaling_plan` leaves plans and first derivatives on a CPU to :mod:`nclib.ot.small_cpu` where the
precision holds. :func:`plans` gives the same by ordinary operations, for other devices and for second
derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nclib.ot import small_cpu
from nclib.ot.problem import check_choice, check_cost, check_reg, lowest_and_highest, weights

#: The constant in the sums of each loop: that of OMIT's official code, and none.
LOOPS = {"released": 1e-6, "log": 0.0}
#: Taken from the exponents of padding.
FAR = 1e6
#: Smallest exponents of a shifted kernel: on a CPU, subnormal results cost 40 times as much.
DEEPEST = {torch.float32: -86.0, torch.float64: -700.0}
#: Widest range of exponents of a kernel that keeps them all: second derivatives divide by its cubes.
SPAN = {torch.float32: 25.0, torch.float64: 200.0}
#: Widest range of exponents that the NumPy path, which gives no second derivatives, takes.
FIRST = {torch.float32: 75.0, torch.float64: 200.0}
#: Logarithm in place of minus infinity, whose gradients would not be numbers.
NEVER = -1e30
#: Largest difference between the totals of p and q, relative to them.
TOTALS = 1e-4

Bounds = tuple[float, float]  # the smallest and the largest similarity that is allowed


class Spec(NamedTuple):
    """Settings of the passes."""

    lam: float  # weight of the entropy
    passes: int
    epsilon: float  # added to every sum; 0 is exact scaling


def scaling_plan(
    similarity: Tensor,
    *,
    reg: float,
    passes: int = 3,
    p: Tensor | None = None,
    q: Tensor | None = None,
    mask: Tensor | None = None,
    loop: str = "log",
) -> Tensor:
    """Plan after a fixed number of Sinkhorn passes on the cost ``1 - similarity``, differentiable throughout.

    Parameters
    ----------
    similarity : Tensor, shape (..., n, m), float32 or float64
        For example cosines of regions and words. Finite where allowed.
    reg : float
        Weight of the entropy.
    passes : int
        Row and column updates, rows first; the columns are met at the end, the rows approximately.
    p, q : Tensor, shape (..., n) and (..., m), optional
        Weights, finite and not negative; 0 for padding. They may depend on parameters: gradients reach them.
        Default uniform over the rows (columns) that have any allowed entry.
    mask : Tensor of bool, broadcastable to ``similarity``, optional
        True where transport is allowed. Rectangular padding needs no mask when p and q are given.
    loop : {"log", "released"}
        ``"log"``: exact scaling, the iterates of a log-domain loop. ``"released"``: the loop of OMIT's
        official code, which divides the kernel by its total and adds 1e-6 to every sum; below a
        regularisation of about 0.05 that constant changes the plan. Do not mix the two in one table.

    Returns
    -------
    Tensor, shape (..., n, m)
        Zero at forbidden entries and padding.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was given and what is allowed.

    Notes
    -----
    OMIT (arXiv 2603.14349), Algorithm A1 and official code. The memory that grows with ``passes`` is
    ``n + m`` numbers per problem and pass.

    Examples
    --------
    >>> import torch, nclib.ot
    >>> cosines = torch.tensor([[0.9, 0.1], [0.2, 0.7], [0.1, 0.1]], dtype=torch.float64)
    >>> nclib.ot.scaling_plan(cosines, reg=0.1).sum(0)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    reg = check_reg(reg)
    low, high = check_cost(similarity, mask, reg)
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(f"passes must be a positive integer, got {passes!r}")
    check_choice("loop", loop, LOOPS)
    *batch, n, m = similarity.shape
    if p is None or q is None:
        rows, columns = weights(None, None, similarity, mask, valid_only=True)
        p, q = rows if p is None else p, columns if q is None else q
    (p, far_p), (q, far_q) = _side(p, "p", (*batch, n)), _side(q, "q", (*batch, m))
    sums = [x.detach().sum(-1) for x in (p, q)]
    off = (sums[0] - sums[1]).abs_().sub_(sums[0], alpha=TOTALS)
    if off.numel() and float(off.max()) > 0:
        totals = (float(x.flatten()[int(off.argmax())]) for x in sums)
        raise ValueError("p sums to {:.6g} but q to {:.6g}; make the totals equal".format(*totals))
    if mask is not None:
        low, high = lowest_and_highest(similarity.detach().where(mask, 0.0))
    spec, bounds, far = Spec(reg, passes, LOOPS[loop]), (low, high), far_p + far_q
    dtype = _fitting(similarity, mask, spec, bounds, far) if similarity.device.type == "cpu" else None
    if dtype is not None:
        return _plans_in_numpy(similarity, p, q, mask, spec, bounds, dtype)
    if far > SPAN[similarity.dtype]:  # scalings of weights so far apart have the range of such a kernel
        high += reg * far
    return plans(similarity, p, q, mask, spec, (low, high))


def _side(weight: Tensor, name: str, shape: tuple[int, ...]) -> tuple[Tensor, float]:
    """Return weights of a scaling plan in full shape, after a check, and how far they are apart.

    That is the logarithm of the largest over the smallest above 0.
    """
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        kind = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{name} must be a floating tensor, got {kind}")
    low, high = lowest_and_highest(weight) if weight.numel() else (0.0, 0.0)
    if not (low >= 0 and high < math.inf):
        raise ValueError(f"{name} must be finite and not negative")
    if low == 0.0 < high:
        low = float(weight.detach().where(weight > 0, torch.inf).min())
    try:
        full = weight if weight.shape == shape else weight.expand(shape)
        return full, math.log(high / low) if high > low else 0.0
    except RuntimeError:
        raise ValueError(f"{name} of shape {tuple(weight.shape)} does not fit {shape}") from None


# -- plans, by ordinary operations ---------------------------------------------------------------------------


def plans(s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, spec: Spec, bounds: Bounds) -> Tensor:
    """Plans (..., n, m) of similarities between ``bounds``; weights (..., n) and (..., m), 0 at padding."""
    # Plan: the kernel in the given precision, or in float64, where no exponent is lost; else the logarithms.
    # The constant of the official loop outweighs what float64 loses.
    (low, high), given = bounds, s.dtype
    span = (max(high, 1.0) - low if spec.epsilon else high - low) / spec.lam
    dtype = given if span <= SPAN[given] else torch.float64
    s, p, q = s.to(dtype), p.to(dtype), q.to(dtype)
    valid = (p > 0).unsqueeze(-1) & (q > 0).unsqueeze(-2)
    valid = valid if mask is None else valid & mask
    p, q = torch.where(valid.any(-1), p, 0.0), torch.where(valid.any(-2), q, 0.0)
    solve = _scaled if spec.epsilon or span <= SPAN[dtype] else _in_logarithms
    return solve(s, p, q, valid, spec).to(given)


def _scaled(s: Tensor, p: Tensor, q: Tensor, valid: Tensor, spec: Spec) -> Tensor:
    """Plans by products with the kernel, whose exponents are counted from the largest of a problem."""
    lam, passes, epsilon = spec
    x = torch.where(valid, s / lam, -FAR)
    top = x.detach().amax((-2, -1), keepdim=True)
    kernel = torch.where(valid, (x - top).clamp_min(DEEPEST[s.dtype]).exp(), 0.0)
    if epsilon:
        # (k / (sum k + eps)) with k = exp((s - 1) / lam), written so that nothing underflows
        kernel = kernel / (kernel.sum((-2, -1), keepdim=True) + epsilon * constants_weight(top, lam))
    u, v, tiny = torch.ones_like(p), (q > 0).to(q.dtype), torch.finfo(s.dtype).tiny
    for _ in range(passes):
        rows = (kernel @ v.unsqueeze(-1)).squeeze(-1)
        u = u * p / (u * rows + epsilon) if epsilon else p / rows.clamp_min(tiny)
        columns = (u.unsqueeze(-2) @ kernel).squeeze(-2)
        v = v * q / (v * columns + epsilon) if epsilon else q / columns.clamp_min(tiny)
    return kernel * u.unsqueeze(-1) * v.unsqueeze(-2)


def _in_logarithms(s: Tensor, p: Tensor, q: Tensor, valid: Tensor, spec: Spec) -> Tensor:
    """Plans by log-sum-exp: exact scaling at any range of exponents."""
    x = torch.where(valid, s / spec.lam, NEVER)
    log_p, log_q = (torch.where(weight > 0, weight, 1.0).log() for weight in (p, q))
    f, g = torch.zeros_like(p), torch.zeros_like(q)
    for _ in range(spec.passes):
        f = torch.where(p > 0, log_p - torch.logsumexp(x + g.unsqueeze(-2), -1), NEVER)
        g = torch.where(q > 0, log_q - torch.logsumexp(x + f.unsqueeze(-1), -2), NEVER)
    return torch.where(valid, (x + f.unsqueeze(-1) + g.unsqueeze(-2)).exp(), 0.0)


def constants_weight(top: Tensor, lam: float) -> Tensor:
    """Weight of the constant beside the kernel's total after the shift: exp(1 / lambda - top)."""
    return (1 / lam - top).clamp_max(80.0 if top.dtype == torch.float32 else 650.0).exp()


def differentiable_gradients(
    out: Tensor, grad: Tensor, sides: Sequence[Tensor], needs: Sequence[bool]
) -> Iterator[Tensor | None]:
    """Give the gradient of each side that needs one, itself differentiable, from that of ``out``."""
    wanted = [x for x, need in zip(sides, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return (next(found) if need else None for need in needs)


# -- plans, in NumPy -----------------------------------------------------------------------------------------


def _fitting(s: Tensor, mask: Tensor | None, spec: Spec, bounds: Bounds, far: float) -> torch.dtype | None:
    """Precision in which NumPy makes plans of similarities between ``bounds``; None where none holds them.

    ``far`` is the range of the weights. Exponents of the scalings have the range of both; where a mask may
    leave no plan at all, they grow with every pass. The official loop's kernel is divided by the constant
    at least.
    """
    low, high = bounds
    span = (high - low) / spec.lam
    if spec.epsilon:
        span = max(span, (1 - low) / spec.lam + math.log(spec.epsilon))
    span += far if mask is None else spec.passes * (far + math.log(max(s.shape[-2:])))
    return next((x for x in (s.dtype, torch.float64) if span <= FIRST[x]), None)


def _plans_in_numpy(
    s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, spec: Spec, bounds: Bounds, dtype: torch.dtype
) -> Tensor:
    """What :func:`plans` gives. A node is made only for gradients: it costs as much as one problem."""
    given = s.dtype
    s, p, q = s.to(dtype), p.to(dtype), q.to(dtype)
    if torch.is_grad_enabled() and (s.requires_grad or p.requires_grad or q.requires_grad):
        plan: Tensor = _ScalingPlan.apply(s, p, q, mask, spec, bounds)
    else:
        problems, loop = _in_numpy(s, p, q, mask, spec, bounds)
        plan = torch.from_numpy(small_cpu.plans(problems, loop)).view(s.shape)
    return plan.to(given)


def _in_numpy(
    s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, spec: Spec, bounds: Bounds
) -> tuple[small_cpu.Problems, small_cpu.Passes]:
    """State the problems of :func:`plans` as arrays; a row or column that nothing can reach weighs 0."""
    n, m = s.shape[-2:]
    allowed = None
    if mask is not None:
        valid = (p > 0).unsqueeze(-1) & (q > 0).unsqueeze(-2) & mask
        p, q, allowed = p * valid.any(-1), q * valid.any(-2), valid.view(-1, n, m).numpy()
    sides = s.reshape(-1, n, m), p.reshape(-1, n), q.reshape(-1, m)
    similarities, rows, columns = (x.detach().numpy() for x in sides)
    return small_cpu.Problems(similarities, rows, columns, allowed), small_cpu.Passes(*spec, bounds[1])


class _ScalingPlan(torch.autograd.Function):
    """The plans of :func:`plans` and their first derivatives, in NumPy."""

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, spec: Spec, bounds: Bounds
    ) -> Tensor:
        problems, loop = _in_numpy(s, p, q, mask, spec, bounds)
        us, vs = (np.empty((spec.passes, *w.shape), w.dtype) for w in (problems.p, problems.q))
        ctx.scalings = us, vs
        ctx.save_for_backward(s, p, q, mask)
        ctx.settings = spec, bounds
        return torch.from_numpy(small_cpu.plans(problems, loop, us, vs)).view(s.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, p, q, mask = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient itself is to be differentiated
            plan = plans(s, p, q, mask, *ctx.settings)
            return (*differentiable_gradients(plan, grads[0], (s, p, q), needs), None, None, None)
        problems, loop = _in_numpy(s, p, q, mask, *ctx.settings)
        grad = grads[0].reshape(problems.s.shape).numpy(force=True)
        us, vs = ctx.scalings
        found = small_cpu.gradients(problems, loop, us, vs, grad)
        back = [torch.from_numpy(x).view(of.shape) for x, of in zip(found, (s, p, q), strict=True)]
        return (*(x if need else None for x, need in zip(back, needs, strict=True)), None, None, None)
