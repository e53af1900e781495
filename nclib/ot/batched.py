"""Many small problems with a fixed number of scaling passes, forward and backward, in one autograd node.

:func:`scaling_plan` gives plans; :func:`transport_scores` gives the similarity that the plans of all pairs of
images and captions collect, and keeps no plan. Each has a kernel of its own, because the layouts differ:
plans are wanted problem by problem, (b, n, m), where products of small matrices are fastest; the scores of
all pairs are sums over (n, m, P) with the pairs last, along whole lines of memory. One kernel for both made
plans two to five times as slow. Both nodes keep the similarities and the T pairs of scaling vectors, compute
the kernel again in the backward pass and run the vector recursions in reverse, on a CPU chunk by chunk in the
cache. Plans are made in NumPy there (:mod:`nclib.ot.backends.cpu_plans`), whose calls cost less than torch's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot.backends import cpu_plans, fused
from nclib.ot.backends.cpu_plans import FAR, Loop
from nclib.ot.problem import check_choice, check_cost, check_reg, check_rounding, weights

#: The constant in the sums of each loop: that of OMIT's official code, and none.
LOOPS = {"released": 1e-6, "log": 0.0}
#: Entries of a block of pairs on a CPU: about 2 MB in float32.
BLOCK_ENTRIES = 512 * 36 * 32
#: Smallest exponents of a shifted kernel: on a CPU, subnormal results cost 40 times as much.
DEEPEST = {torch.float32: -86.0, torch.float64: -700.0}
#: Largest exponents, of either sign, of a kernel that is not shifted.
DIRECT = {torch.float32: 80.0, torch.float64: 600.0}
#: Widest range of similarities, in units of the regularisation, for one shift for all problems.
SPAN = {torch.float32: 75.0, torch.float64: 600.0}
#: Largest difference between the totals of p and q, relative to them.
TOTALS = 1e-4
#: NumPy's products can report floating-point flags that another library left behind.
QUIET = np.errstate(all="ignore")


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
    low, high = _range(similarity, mask)
    reg = check_reg(reg)
    check_rounding(max(abs(1 - low), abs(1 - high)), reg)
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(f"passes must be a positive integer, got {passes!r}")
    check_choice("loop", loop, LOOPS)
    *batch, n, m = similarity.shape
    if p is None or q is None:
        uniform = weights(None, None, similarity, mask, valid_only=True)
        p, q = (uniform[0] if p is None else p), (uniform[1] if q is None else q)
    p, q = _side(p, "p", (*batch, n)), _side(q, "q", (*batch, m))
    sums = [x.detach().sum(-1) for x in (p, q)]
    off = (sums[0] - sums[1]).abs_().sub_(sums[0], alpha=TOTALS)
    if off.numel() and float(off.max()) > 0:
        totals = (float(x.flatten()[int(off.argmax())]) for x in sums)
        raise ValueError("p sums to {:.6g} but q to {:.6g}; make the totals equal".format(*totals))
    given, dtype = similarity, similarity.dtype
    if dtype == torch.float32 and not _fits(low, high, reg, LOOPS[loop]):
        similarity = similarity.double()
    top = high if (high - low) / reg <= SPAN[similarity.dtype] else None
    p, q = p.to(similarity.dtype), q.to(similarity.dtype)
    allowed = None if mask is None else mask.expand(similarity.shape).reshape(-1, n, m)
    flat, settings = (similarity, p, q), Loop(reg, passes, LOOPS[loop], top)
    if len(batch) != 1:
        flat = similarity.reshape(-1, n, m), p.reshape(-1, n), q.reshape(-1, m)
    fits = top is not None or not settings.epsilon  # the kernels know one shift for the constant
    if fits and fused.takes(flat[0], n, m):
        spec = fused.Spec(reg, passes, settings.epsilon, top or 0.0)
        plan: Tensor = fused.FusedPlans.apply(*flat, allowed, spec)
    elif torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        plan = _ScalingPlan.apply(*flat, allowed, settings)
    else:  # for one problem, making a node costs as much as solving it
        s, p, q = (x.detach() for x in flat)
        plan = _plans(s, p, q, allowed, settings)
    return (plan if len(batch) == 1 else plan.reshape(given.shape)).to(dtype)


def _range(similarity: Tensor, mask: Tensor | None) -> tuple[float, float]:
    """Smallest and largest similarity, after all checks; one pass where nothing is wrong."""
    simple = mask is None and isinstance(similarity, Tensor) and similarity.dtype in DEEPEST
    simple = simple and similarity.layout == torch.strided and not similarity.is_meta
    if not simple or similarity.ndim < 2 or 0 in similarity.shape:
        check_cost(similarity, mask)
    low, high = (float(x) for x in similarity.detach().aminmax())
    if simple and not math.isfinite(high - low):
        check_cost(similarity, mask)
    return low, high


def _side(weight: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return weights of a scaling plan in full shape, after a check."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        kind = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{name} must be a floating tensor, got {kind}")
    low, high = (float(x) for x in weight.detach().aminmax()) if weight.numel() else (0.0, 0.0)
    if not (low >= 0 and high < math.inf):
        raise ValueError(f"{name} must be finite and not negative")
    try:
        return weight if weight.shape == shape else weight.expand(shape)
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
    epsilon = LOOPS[loop]
    if not plain and fused.takes(sides[0], s.shape[1], s.shape[2]):

        def again(s: Tensor, p: Tensor, q: Tensor) -> Tensor:
            return _plain_scores(s, p, q, lam, iterations, epsilon, skip)

        spec = fused.Spec(lam, iterations, epsilon)
        scores: Tensor = fused.FusedScores.apply(*sides, spec, skip, again)
    else:
        run = _plain_scores if plain else _TransportScores.apply
        scores = run(*sides, lam, iterations, epsilon, skip)
    return scores.to(s.dtype)


def transport_plans(s: Tensor, p: Tensor, q: Tensor, lam: float, iterations: int, loop: str) -> Tensor:
    """Plans (B, n, m, C) of every pair by ordinary operations; arguments as in :func:`transport_scores`."""
    form = _precision(s.dtype, lam, loop)
    return _plain_plans(s.to(form), p.to(form), q.to(form), lam, iterations, LOOPS[loop]).to(s.dtype)


def _precision(dtype: torch.dtype, lam: float, loop: str) -> torch.dtype:
    """Number type of the scaling: with a small lambda the official constant leaves the range of float32."""
    return torch.float64 if loop == "released" and not _is_direct(dtype, lam, LOOPS[loop]) else dtype


def _is_direct(dtype: torch.dtype, lam: float, epsilon: float) -> bool:
    """Whether exp(s / lambda) of cosines can be taken as it is, and no scaling leaves the type's range."""
    return (1 if epsilon else 2) / lam <= DIRECT[dtype]


@QUIET
def _exp(x: Tensor, out: Tensor) -> None:
    """Exponential of x into ``out``, which may be x; NumPy's is twice as quick."""
    if x.device.type == "cpu":
        np.exp(x.numpy(), out=out.numpy())
    else:
        torch.exp(x, out=out)


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


# -- plans, problem by problem -------------------------------------------------------------------------------


def _fits(low: float, high: float, reg: float, epsilon: float) -> bool:
    """Whether float32 holds the scalings of words far from all regions, or the constant beside the kernel."""
    wide = SPAN[torch.float32] if epsilon else DIRECT[torch.float32]
    return high - low <= wide * reg and (not epsilon or 1 - high <= DIRECT[torch.float32] * reg)


def _plans(
    s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, loop: Loop, us: Any = None, vs: Any = None
) -> Tensor:
    """Plans, on a CPU in NumPy; the scalings of all passes into the tensors ``us`` and ``vs`` if given."""
    if s.device.type == "cpu":
        kept = (None, None) if us is None else (us.numpy(), vs.numpy())
        return torch.from_numpy(cpu_plans.plans(_in_numpy(s, p, q, mask), loop, *kept))
    return _device_plans(s, p, q, mask, loop, us, vs)


def _device_plans(
    s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, loop: Loop, us: Any = None, vs: Any = None
) -> Tensor:
    k, tiny = _kernel(s, p, q, mask, loop), torch.finfo(s.dtype).tiny
    u, v = torch.ones_like(p), (q > 0).to(q.dtype)
    for t in range(loop.passes):
        if loop.epsilon:
            u = (u * p).div_(_times(k, v).mul_(u).add_(loop.epsilon))
            v = (v * q).div_(_turned(k, u).mul_(v).add_(loop.epsilon))
        else:
            u = p / _times(k, v).clamp_min_(tiny)
            v = q / _turned(k, u).clamp_min_(tiny)
        if us is not None:
            us[t], vs[t] = u, v
    return k.mul_(u.unsqueeze(-1)).mul_(v.unsqueeze(-2))


def _in_numpy(s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None) -> cpu_plans.Problems:
    return cpu_plans.Problems(s.numpy(), p.numpy(), q.numpy(), None if mask is None else mask.numpy())


def _times(kernel: Tensor, v: Tensor) -> Tensor:
    """``kernel @ v``."""
    return (kernel * v.unsqueeze(-2)).sum(-1)


def _turned(kernel: Tensor, u: Tensor) -> Tensor:
    """``kernel.mT @ u``."""
    return (kernel * u.unsqueeze(-1)).sum(-2)


def _kernel(s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, loop: Loop) -> Tensor:
    """Kernel, in the official loop divided by its total; 0 where forbidden, anything at padding."""
    reg, _, epsilon, top = loop
    if top is not None:
        x = (s - top).mul_(1 / reg)
    else:
        x = torch.where((q > 0).unsqueeze(-2), s / reg, -FAR)
        if mask is not None:
            x = torch.where(mask, x, -FAR)
        if epsilon:
            x = torch.where((p > 0).unsqueeze(-1), x, -FAR)
        highest = x.amax((-2, -1) if epsilon else -1, keepdim=True)
        x = x.sub_(highest).clamp_min_(DEEPEST[s.dtype])
    x = x.exp_()
    if mask is not None:
        x.mul_(mask)
    if epsilon:
        # (k / (sum k + eps)) with k = exp((s - 1) / reg), written so that nothing underflows
        total = (_times(x, (q > 0).to(s.dtype)) * (p > 0)).sum(-1)[:, None, None]
        reach = math.exp((1 - top) / reg) if top is not None else _reach(highest, reg)
        x.mul_((total + epsilon * reach).reciprocal_())
    return x


class _ScalingPlan(torch.autograd.Function):
    """Plans (b, n, m) of similarities (b, n, m) and weights (b, n), (b, m)."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, loop: Loop) -> Tensor:
        us, vs = (s.new_empty(loop.passes, len(s), size) for size in s.shape[1:])
        plan = _plans(s, p, q, mask, loop, us, vs)
        ctx.save_for_backward(s, p, q, mask, us, vs)
        ctx.loop = loop
        return plan

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, p, q, mask, us, vs = ctx.saved_tensors
        needs, loop = ctx.needs_input_grad, ctx.loop
        if s.device.type == "cpu":
            problems, given = _in_numpy(s, p, q, mask), (x.numpy() for x in (us, vs, grads[0]))
            g, dp, dq = (torch.from_numpy(x) for x in cpu_plans.gradients(problems, loop, *given))
        else:
            g, dp, dq = _device_gradients(s, p, q, mask, loop, us, vs, grads[0])
        return (g, dp if needs[1] else None, dq if needs[2] else None, None, None)


def _device_gradients(
    s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, loop: Loop, us: Tensor, vs: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    # Plan: 1. the kernel again; 2. the passes in reverse give the kernel's gradient as a product of two thin
    # matrices; 3. with that of the last product, times the kernel, the similarities'.
    k = _kernel(s, p, q, mask, loop)
    g = grad * k
    left, right, dp, dq = _reverse(k, g, us, vs, p, q, loop.epsilon)
    g.mul_(us[-1].unsqueeze(-1)).mul_(vs[-1].unsqueeze(-2))
    g.addcmul_(torch.bmm(left, right), k)
    if loop.epsilon:  # the kernel was divided by its total
        g.addcmul_(k, g.sum((-2, -1), keepdim=True), value=-1.0)
    return g.mul_(1 / loop.reg), dp, dq


def _reverse(
    k: Tensor, g: Tensor, us: Tensor, vs: Tensor, p: Tensor, q: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the passes backwards from ``g``, the gradient of the plan times the kernel.

    Return left (b, n, 2 T) and right (b, 2 T, m), whose product is the gradient for the kernel but for that
    of the last product, and the gradients of the weights, (b, n) and (b, m).
    """
    one_p, one_q = torch.ones_like(p), (q > 0).to(q.dtype)
    du, dv = _times(g, vs[-1]), _turned(g, us[-1])
    dp, dq = torch.zeros_like(p), torch.zeros_like(q)
    left, right = [], []
    for t in range(len(us) - 1, -1, -1):
        u0, v0 = (us[t - 1], vs[t - 1]) if t else (one_p, one_q)
        dsum, share, dv0 = _step_back(dv, vs[t], v0, q, epsilon)  # v = v0 q / (v0 k'u + eps)
        dq += share
        left.append(us[t])
        right.append(dsum)
        du = du + _times(k, dsum)
        dsum, share, du = _step_back(du, us[t], u0, p, epsilon)  # u = u0 p / (u0 k v0 + eps)
        dp += share
        left.append(dsum)
        right.append(v0)
        if t:
            dv = dv0 + _turned(k, dsum)
    return torch.stack(left, 2), torch.stack(right, 1), dp, dq


# -- scores of all pairs, by ordinary operations -------------------------------------------------------------


def _plain_plans(s: Tensor, p: Tensor, q: Tensor, lam: float, iterations: int, epsilon: float) -> Tensor:
    valid = q > 0
    x = torch.where(valid.unsqueeze(1), s / lam, -FAR)
    with torch.no_grad():
        rows, columns, v = _shifts(x, valid, epsilon)
    x = x - rows if columns is None else x - rows - columns
    kernel = x.clamp_min(DEEPEST[s.dtype]).exp()
    if epsilon:
        kernel = kernel / (kernel.sum((1, 2), keepdim=True) + epsilon * _reach(rows, lam))
    u, tiny = torch.ones_like(p), torch.finfo(s.dtype).tiny
    for _ in range(iterations):
        if epsilon:
            u = u * p / (u * (kernel * v.unsqueeze(1)).sum(2) + epsilon)  # (B, n, C)
            v = v * q / (v * (kernel * u.unsqueeze(2)).sum(1) + epsilon)  # (B, m, C)
        else:
            u = p / (kernel * v.unsqueeze(1)).sum(2).clamp_min(tiny)
            v = q / (kernel * u.unsqueeze(2)).sum(1).clamp_min(tiny)
    return kernel * u.unsqueeze(2) * v.unsqueeze(1)


def _plain_scores(
    s: Tensor, p: Tensor, q: Tensor, lam: float, iterations: int, epsilon: float, skip: int
) -> Tensor:
    plan = _plain_plans(s, p, q, lam, iterations, epsilon)
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


# -- scores of all pairs, by a node --------------------------------------------------------------------------


@QUIET
def _over_words(k: Tensor, v: Tensor) -> Tensor:
    """Sum of k_ij v_j over j: (n, m, P) and (m, P) to (n, P); NumPy's needs no room for the products."""
    if k.device.type == "cpu":
        return torch.from_numpy(np.einsum("ijp,jp->ip", k.numpy(), v.numpy()))
    return (k * v).sum(1)


@QUIET
def _over_regions(k: Tensor, u: Tensor) -> Tensor:
    """Sum of k_ij u_i over i: (n, m, P) and (n, P) to (m, P)."""
    if k.device.type == "cpu":
        return torch.from_numpy(np.einsum("ijp,ip->jp", k.numpy(), u.numpy()))
    return (k * u.unsqueeze(1)).sum(0)


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
        self.size = n_images
        if s.device.type == "cpu":
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
    def forward(
        ctx: Any, s: Tensor, p: Tensor, q: Tensor, lam: float, iterations: int, epsilon: float, skip: int
    ) -> Tensor:
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
            ctx.settings = (lam, iterations, epsilon, skip)
        return scores.view(n_images, n_captions)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Plan, block by block: 1. the kernel again; 2. the gradients of the score for the last u, the last v
        # and the kernel; 3. the passes in reverse, each of which adds an outer product to the kernel's
        # gradient; 4. from the kernel to the similarities, with the score's own dependence on them.
        s, p, q, us, vs = ctx.saved_tensors
        lam, iterations, epsilon, skip = ctx.settings
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient itself is to be differentiated
            scores = _plain_scores(s, p, q, lam, iterations, epsilon, skip)
            wanted = [x for x, need in zip((s, p, q), needs, strict=True) if need]
            given = iter(torch.autograd.grad(scores, wanted, grads[0], create_graph=True))
            return (*(next(given) if need else None for need in needs), *(None,) * 4)
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
        return (*(x if need else None for x, need in zip(found, needs, strict=True)), *(None,) * 4)


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
