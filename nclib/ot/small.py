"""Many small problems with a fixed number of Sinkhorn passes, differentiable throughout.

:func:`scaling_plan` and :func:`transport_plans` give plans by ordinary operations; on a CPU the former leaves
plans and first derivatives to :mod:`nclib.ot.small_cpu` where the precision holds. :func:`transport_scores`
gives the similarity that the plans of all pairs of images and captions collect. On a CPU it keeps no plan:
one autograd node that holds the similarities and the T pairs of scaling vectors, computes the kernel again in
the backward pass and runs the vector recursions in reverse, block by block in the cache. Its tensors have the
pairs last, (n, m, P), so that sums over regions or words run along whole lines of memory. Elsewhere the
formulas stand as they are, for a compiler to fuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nclib.ot import small_cpu
from nclib.ot.problem import check_choice, check_cost, check_reg, lowest_and_highest, weights

#: The constant in the sums of each loop: that of OMIT's official code, and none.
LOOPS = {"released": 1e-6, "log": 0.0}
#: Entries of a block of pairs on a CPU: about 2 MB in float32.
BLOCK_ENTRIES = 512 * 36 * 32
#: Taken from the exponents of padding.
FAR = 1e6
#: Smallest exponents of a shifted kernel: on a CPU, subnormal results cost 40 times as much.
DEEPEST = {torch.float32: -86.0, torch.float64: -700.0}
#: Largest exponents, of either sign, of a kernel that is not shifted.
DIRECT = {torch.float32: 80.0, torch.float64: 600.0}
#: Widest range of exponents of a kernel that keeps them all: second derivatives divide by its cubes.
SPAN = {torch.float32: 25.0, torch.float64: 200.0}
#: Widest range of exponents that the NumPy path, which gives no second derivatives, takes.
FIRST = {torch.float32: 75.0, torch.float64: 200.0}
#: Logarithm in place of minus infinity, whose gradients would not be numbers.
NEVER = -1e30
#: Largest difference between the totals of p and q, relative to them.
TOTALS = 1e-4
#: NumPy's products can report floating-point flags that another library left behind.
QUIET = np.errstate(all="ignore")

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
    return _plans(similarity, p, q, mask, spec, (low, high))


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


def transport_scores(
    s: Tensor, p: Tensor, q: Tensor, *, lam: float, iterations: int, loop: str, skip: int, plain: bool = False
) -> Tensor:
    """Similarity that the plan of every pair collects: the sum of P_ij s_ij over i, j >= skip (OMIT, Eq. 5).

    Parameters
    ----------
    s : Tensor, (B, n, m, C)
        Cosines of regions and words, dustbins first if there are any.
    p, q : Tensor, (B or 1, n, C or 1) and (B or 1, m, C)
        Marginals of regions (above 0) and words (0 at padding). Gradients reach them.
    lam, iterations, loop
        Weight of the entropy, passes and kind as of :func:`scaling_plan`.
    skip : int
        Leading rows and columns whose similarity does not count: 1 drops what goes to the dustbins.
    plain : bool
        Ordinary operations instead of the node: the same values, more memory.

    Returns
    -------
    Tensor, (B, C)
        Differentiable, also twice.
    """
    form = _precision(s.dtype, lam, loop)
    sides = s.to(form), p.to(form), q.to(form)
    spec = Spec(lam, iterations, LOOPS[loop])
    if plain:
        scores = _plain_scores(*sides, spec, skip)
    elif s.device.type == "cpu":
        scores = _TransportScores.apply(*sides, spec, skip)
    else:
        scores = _formula_scores(*sides, spec, skip)
    return scores.to(s.dtype)


def transport_plans(s: Tensor, p: Tensor, q: Tensor, lam: float, iterations: int, loop: str) -> Tensor:
    """Plans (B, n, m, C) of every pair by ordinary operations; arguments as in :func:`transport_scores`."""
    return _pair_plans(s, p, q, Spec(lam, iterations, LOOPS[loop]))


def _precision(dtype: torch.dtype, lam: float, loop: str) -> torch.dtype:
    """Number type of the scaling: with a small lambda the official constant leaves the range of float32."""
    return torch.float64 if loop == "released" and not _is_direct(dtype, lam, LOOPS[loop]) else dtype


def _is_direct(dtype: torch.dtype, lam: float, epsilon: float) -> bool:
    """Whether exp(s / lambda) of cosines can be taken as it is, and no scaling leaves the type's range."""
    return (1 if epsilon else 2) / lam <= DIRECT[dtype]


@QUIET
def _exp(x: Tensor, out: Tensor) -> None:
    """Exponential of x into ``out``, which may be x; NumPy's is twice as quick."""
    np.exp(x.numpy(), out=out.numpy())


def _step_back(
    grad: Tensor, new: Tensor, old: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``new = old * weight / (old * sum + epsilon)`` for the sum, the weight and ``old``."""
    inverse = torch.where(weight > 0, 1 / weight, 0.0)
    share = new * inverse  # old / (old * sum + epsilon)
    dsum = -grad * new * share
    if not epsilon:
        return dsum, grad * share, torch.zeros_like(grad)
    tiny = torch.finfo(old.dtype).tiny
    over = torch.where(old > 0, share / old.clamp_min(tiny), 0.0)  # 1 / (old * sum + epsilon)
    return dsum, grad * share, grad * epsilon * weight * over * over


# -- plans, by ordinary operations ---------------------------------------------------------------------------


def _plans(s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, spec: Spec, bounds: Bounds) -> Tensor:
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
        kernel = kernel / (kernel.sum((-2, -1), keepdim=True) + epsilon * _reach(top, lam))
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


def _pair_plans(s: Tensor, p: Tensor, q: Tensor, spec: Spec) -> Tensor:
    """Plans (B, n, m, C) of cosines and weights in the layout of :func:`transport_scores`."""
    sides = s.permute(0, 3, 1, 2), p.permute(0, 2, 1), q.permute(0, 2, 1)
    return _plans(*sides, None, spec, (-1.0, 1.0)).permute(0, 2, 3, 1)


def _plain_scores(s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int) -> Tensor:
    plan = _pair_plans(s, p, q, spec)
    return (plan * s)[:, skip:, skip:].sum((1, 2))


def _formula_scores(s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int) -> Tensor:
    """Scores (B, C) straight from the formulas, captions last: what a compiler makes one graph of."""
    lam, passes, epsilon = spec
    valid = q > 0  # (B or 1, m, C)
    x, v = s / lam, valid.to(s.dtype)
    reach: Tensor | float = 0.0
    if _is_direct(s.dtype, lam, epsilon):
        reach = math.exp(1 / lam) if epsilon else 0.0
    else:  # shifts that change no score: no gradient goes through them
        x = torch.where(valid[:, None], x, -FAR)
        shift, columns, v = _shifts(x.detach(), valid, epsilon)
        x = (x - shift if columns is None else x - shift - columns).clamp_min(DEEPEST[s.dtype])
        reach = _reach(shift, lam) if epsilon else 0.0
    k = x.exp() * valid[:, None]  # (B, n, m, C)
    if epsilon:
        k = k / (k.sum((1, 2), keepdim=True) + epsilon * reach)
    u, tiny = torch.ones_like(k[:, :, 0]), torch.finfo(s.dtype).tiny
    for _ in range(passes):
        rows = (k * v[:, None]).sum(2)
        u = u * p / (u * rows + epsilon) if epsilon else p / rows.clamp_min(tiny)
        sums = (k * u[:, :, None]).sum(1)
        v = v * q / (v * sums + epsilon) if epsilon else q / sums.clamp_min(tiny)
    plan = k * u[:, :, None] * v[:, None]
    return (plan * s)[:, skip:, skip:].sum((1, 2))


def _shifts(x: Tensor, valid: Tensor, epsilon: float) -> tuple[Tensor, Tensor | None, Tensor]:
    """Shifts of the exponents x that keep all that matters from underflow, and the first v.

    The official loop needs its constant in proportion to the kernel's total: one maximum per pair. Exact
    scaling absorbs a maximum per row and then one per column, which the first v gives back.
    """
    if epsilon:
        return x.amax((1, 2), keepdim=True), None, valid.to(x.dtype)
    rows = x.amax(2, keepdim=True)
    columns = (x - rows).amax(1, keepdim=True)
    start = columns.squeeze(1).clamp_min(DEEPEST[x.dtype]).exp() * valid.to(x.dtype)
    return rows, columns, start


def _reach(top: Tensor, lam: float) -> Tensor:
    """Weight of the constant beside the kernel's total after the shift: exp(1 / lambda - top)."""
    return (1 / lam - top).clamp_max(80.0 if top.dtype == torch.float32 else 650.0).exp()


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
    """What :func:`_plans` gives. A node is made only for gradients: it costs as much as one problem."""
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
) -> tuple[small_cpu.Problems, small_cpu.Loop]:
    """State the problems of :func:`_plans` as arrays; a row or column that nothing can reach weighs 0."""
    n, m = s.shape[-2:]
    allowed = None
    if mask is not None:
        valid = (p > 0).unsqueeze(-1) & (q > 0).unsqueeze(-2) & mask
        p, q, allowed = p * valid.any(-1), q * valid.any(-2), valid.view(-1, n, m).numpy()
    sides = s.reshape(-1, n, m), p.reshape(-1, n), q.reshape(-1, m)
    similarities, rows, columns = (x.detach().numpy() for x in sides)
    return small_cpu.Problems(similarities, rows, columns, allowed), small_cpu.Loop(*spec, bounds[1])


class _ScalingPlan(torch.autograd.Function):
    """The plans of :func:`_plans` and their first derivatives, in NumPy."""

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
            plan = _plans(s, p, q, mask, *ctx.settings)
            wanted = [x for x, need in zip((s, p, q), needs, strict=True) if need]
            given = iter(torch.autograd.grad(plan, wanted, grads[0], create_graph=True))
            return (*(next(given) if need else None for need in needs), None, None, None)
        problems, loop = _in_numpy(s, p, q, mask, *ctx.settings)
        grad = grads[0].reshape(problems.s.shape).numpy(force=True)
        us, vs = ctx.scalings
        found = small_cpu.gradients(problems, loop, us, vs, grad)
        back = [torch.from_numpy(x).view(of.shape) for x, of in zip(found, (s, p, q), strict=True)]
        return (*(x if need else None for x, need in zip(back, needs, strict=True)), None, None, None)


# -- scores of all pairs, by a node --------------------------------------------------------------------------


@QUIET
def _over_words(k: Tensor, v: Tensor) -> Tensor:
    """Sum of k_ij v_j over j: (n, m, P) and (m, P) to (n, P); NumPy's needs no room for the products."""
    return torch.from_numpy(np.einsum("ijp,jp->ip", k.numpy(), v.numpy()))


@QUIET
def _over_regions(k: Tensor, u: Tensor) -> Tensor:
    """Sum of k_ij u_i over i: (n, m, P) and (n, P) to (m, P)."""
    return torch.from_numpy(np.einsum("ijp,ip->jp", k.numpy(), u.numpy()))


def _update(old: Tensor | None, weight: Tensor, sums: Tensor, scale: Tensor | None, epsilon: float) -> Tensor:
    """One scaling: the vector that gives the sums their weights, or nearly so with the constant."""
    if scale is None:
        return weight / sums.clamp_min_(torch.finfo(sums.dtype).tiny)
    sums.mul_(scale)
    if old is None:
        return weight / sums.add_(epsilon)
    return (old * weight).div_(sums.mul_(old).add_(epsilon))


class _Blocks:
    """Blocks of images whose kernels are made one after the other in the same memory.

    P counts the pairs of the block's images with all captions. ``x`` and ``k``, (n, m, P), are similarities
    over lambda and the kernel, far below and next to nothing at padding; ``p`` (n, P) and ``q`` (m, P) the
    marginals; ``start`` (m, P) the first v; ``rows`` (n, P) the sums of the kernel times it; ``scale`` (P,)
    the factor of the official loop's kernel, whose total with the constant becomes 1, or None.
    """

    def __init__(self, s: Tensor, p: Tensor, q: Tensor, lam: float, epsilon: float) -> None:
        n_images, n, m, n_captions = s.shape
        self.size = max(1, min(n_images, BLOCK_ENTRIES // (n * m * n_captions)))
        self.lam, self.epsilon, self.direct = lam, epsilon, _is_direct(s.dtype, lam, epsilon)
        valid = (q > 0).to(s.dtype)
        padding = (valid - 1).mul_(DIRECT[s.dtype] if self.direct else FAR)
        self.s = s.permute(1, 2, 0, 3)  # (n, m, B, C)
        self.sides = [
            side.expand(n_images, -1, n_captions).permute(1, 0, 2) for side in (p, q, valid, padding)
        ]  # (n or m, B, C)
        self.memory = s.new_empty(2, n * m * self.size * n_captions)

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        """Prepare one block after the other; give its images and its places among all pairs."""
        n_images, n_captions = self.s.shape[2:]
        for first in range(0, n_images, self.size):
            images = slice(first, min(first + self.size, n_images))
            self._load(self.s[:, :, images], *(side[:, images] for side in self.sides))
            yield images, slice(images.start * n_captions, images.stop * n_captions)

    def _load(self, s: Tensor, p: Tensor, q: Tensor, valid: Tensor, padding: Tensor) -> None:
        # Plan: exponents with padding far below; shifted where the range asks for it; the kernel; its row
        # sums with the first v, which both loops need first.
        self.x, self.k = (x[: s.numel()].view(*s.shape[:2], -1) for x in self.memory)
        torch.add(padding, s, alpha=1 / self.lam, out=self.x.view(s.shape))
        self.p, self.q, self.start = (side.reshape(len(side), -1) for side in (p, q, valid))
        if self.direct:
            _exp(self.x, self.k)
            reach: Tensor | float = math.exp(1 / self.lam) if self.epsilon else 0.0
        else:
            shift, columns, start = _shifts(self.x[None], self.start[None] > 0, self.epsilon)
            torch.sub(self.x, shift[0], out=self.k)
            if columns is not None:
                self.k.sub_(columns[0])
                self.start = start[0]
            _exp(self.k.clamp_min_(DEEPEST[s.dtype]), self.k)
            reach = _reach(shift, self.lam).flatten() if self.epsilon else 0.0
        # with the first v 1 at words, the kernel is next to nothing at padding
        plain = self.epsilon or self.direct
        self.rows = self.k.sum(1) if plain else _over_words(self.k, self.start)
        self.scale = (self.rows.sum(0) + self.epsilon * reach).reciprocal_() if self.epsilon else None


class _TransportScores(torch.autograd.Function):
    """See :func:`transport_scores`."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, q: Tensor, spec: Spec, skip: int) -> Tensor:
        lam, iterations, epsilon = spec
        wanted = any(ctx.needs_input_grad[:3])
        n_images, n, m, n_captions = s.shape
        kept = iterations if wanted else 0
        us, vs = (s.new_empty(kept, size, n_images * n_captions) for size in (n, m))
        scores = s.new_empty(n_images * n_captions)
        blocks = _Blocks(s, p, q, lam, epsilon)
        for _, pairs in blocks:
            k, scale, v, u = blocks.k, blocks.scale, blocks.start, None
            for t in range(iterations):
                rows = _over_words(k, v) if t else blocks.rows
                u = _update(u, blocks.p, rows, scale, epsilon)  # (n, P)
                v = _update(v if t else None, blocks.q, _over_regions(k, u), scale, epsilon)  # (m, P)
                if wanted:
                    us[t, :, pairs], vs[t, :, pairs] = u, v
            assert u is not None
            weighted = blocks.x.mul_(k)[skip:, skip:]  # the similarity over lambda is the exponent itself
            collected = _over_regions(weighted, u[skip:]).mul_(v[skip:]).sum(0).mul_(lam)
            scores[pairs] = collected if scale is None else collected.mul_(scale)
        if wanted:
            ctx.save_for_backward(s, p, q, us, vs)
            ctx.settings = spec, skip
        return scores.view(n_images, n_captions)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Plan, block by block: 1. the kernel again; 2. the gradients of the score for the last u, the last v
        # and the kernel; 3. the passes in reverse, each of which adds an outer product to the kernel's
        # gradient; 4. from the kernel to the similarities, with the score's own dependence on them.
        s, p, q, us, vs = ctx.saved_tensors
        spec, skip = ctx.settings
        lam, iterations, epsilon = spec
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient itself is to be differentiated
            scores = _plain_scores(s, p, q, spec, skip)
            wanted = [x for x, need in zip((s, p, q), needs, strict=True) if need]
            given = iter(torch.autograd.grad(scores, wanted, grads[0], create_graph=True))
            return (*(next(given) if need else None for need in needs), None, None)
        n_images, n, m, n_captions = s.shape
        ds = torch.empty_like(s, memory_format=torch.contiguous_format)
        ds_of = ds.permute(1, 2, 0, 3)  # (n, m, B, C)
        dp, dq = s.new_zeros(n, n_images * n_captions), s.new_zeros(m, n_images * n_captions)
        blocks = _Blocks(s, p, q, lam, epsilon)
        buffer = torch.empty_like(blocks.memory[0])
        for images, pairs in blocks:
            k, start, last = blocks.k, blocks.start, (us[-1, :, pairs], vs[-1, :, pairs])
            k_grad = buffer[: k.numel()].view(k.shape)
            if blocks.scale is not None:
                k.mul_(blocks.scale)
            grad = grads[0].reshape(-1)[pairs]
            du, dv, also = _of_scores(blocks.x.mul_(lam), k, grad, *last, skip, k_grad)
            ones = torch.ones_like(blocks.p)
            for t in range(iterations - 1, -1, -1):
                u, v = us[t, :, pairs], vs[t, :, pairs]
                u0, v0 = (us[t - 1, :, pairs], vs[t - 1, :, pairs]) if t else (ones, start)
                dsum, share, dv0 = _step_back(dv, v, v0, blocks.q, epsilon)  # v = v0 q / (v0 k'u + eps)
                k_grad.addcmul_(u.unsqueeze(1), dsum)
                dq[:, pairs] += share
                du = du + _over_words(k, dsum)
                dsum, share, du0 = _step_back(du, u, u0, blocks.p, epsilon)  # u = u0 p / (u0 k v0 + eps)
                k_grad.addcmul_(dsum.unsqueeze(1), v0)
                dp[:, pairs] += share
                if t:
                    dv = dv0 + _over_regions(k, dsum)
                    du = du0
            k_grad.mul_(k)
            if epsilon:  # the kernel was divided by its total
                k_grad.addcmul_(k, k_grad.sum((0, 1)), value=-1.0)
            k_grad.mul_(1 / lam).addcmul_(also, k)
            ds_of[:, :, images] = k_grad.view(n, m, -1, n_captions)
        back = [x.view(-1, n_images, n_captions).permute(1, 0, 2) for x in (dp, dq)]
        found = (ds, *(x.sum_to_size(given.shape) for x, given in zip(back, (p, q), strict=True)))
        return (*(x if need else None for x, need in zip(found, needs, strict=True)), None, None)


def _of_scores(
    x: Tensor, k: Tensor, grad: Tensor, last_u: Tensor, last_v: Tensor, skip: int, k_grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``grad * sum u k x v`` over the entries that count, for u, v and x; for k into ``k_grad``.

    The gradient for x, still without its factor k, replaces x.
    """
    u, v = grad * last_u, last_v.clone()
    u[:skip], v[:skip] = 0, 0
    torch.mul(k, x, out=k_grad)
    du, dv = grad * _over_words(k_grad, v), _over_regions(k_grad, u)
    du[:skip], dv[:skip] = 0, 0
    torch.mul(u.unsqueeze(1), v, out=k_grad).mul_(x)
    return du, dv, torch.mul(u.unsqueeze(1), v, out=x)
