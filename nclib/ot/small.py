"""Many small problems, a few scaling passes each: regions against words, forward and backward.

A plan of T passes (rows first) is differentiated through all of them, in one autograd node. It keeps the
kernel and the T pairs of scaling vectors; the backward pass runs the vector recursions in reverse, so that
nothing of the size of the plan is stored per pass. Work goes in chunks that stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nclib.ot._checks import check_cost, check_reg, weights

#: Constant that the released code of OMIT adds to every sum.
RELEASED_EPSILON = 1e-6
#: Entries of one chunk on a CPU: about 1 MB in float32.
CHUNK_ENTRIES = 256 * 36 * 32
#: Exponents are not smaller than this: on a CPU, results that are subnormal cost 40 times as much.
DEEPEST = {torch.float32: -86.0, torch.float64: -700.0}
#: Taken from the exponents of padding and forbidden entries.
FAR = 1e6
#: Widest range of float32 similarities, in units of the regularisation, that is not computed in float64.
SAFE_RANGE = 80.0


@dataclass(frozen=True)
class _Loop:
    """One of the two loops: the constant in the sums, and what the kernel is divided by."""

    epsilon: float
    total: bool  # divide by the total of the kernel (else by the largest entry of each row)


#: The loop of OMIT's released code, with its constant, and exact scaling.
LOOPS = {"released": _Loop(RELEASED_EPSILON, True), "log": _Loop(0.0, False)}


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
        Weights; 0 for padding. They may depend on parameters: gradients reach them. Default uniform over
        the rows (columns) that have any allowed entry.
    mask : Tensor of bool, broadcastable to ``similarity``, optional
        True where transport is allowed. Rectangular padding needs no mask when p and q are given.
    loop : {"log", "released"}
        ``"log"``: exact scaling, the iterates of a log-domain loop. ``"released"``: the loop of OMIT's
        code, which divides the kernel by its total and adds 1e-6 to every sum; below a regularisation of
        about 0.05 that constant changes the plan. The two must not be mixed in one table.

    Returns
    -------
    Tensor, shape (..., n, m)
        The plan; zero at forbidden entries and padding.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what was given and what is allowed.

    Notes
    -----
    OMIT (arXiv 2603.14349), Algorithm A1 and released code. The memory that grows with ``passes`` is
    ``n + m`` numbers per problem and pass.
    """
    check_cost(similarity, mask)
    reg = check_reg(reg)
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
        raise ValueError(f"passes must be a positive integer, got {passes!r}")
    if loop not in LOOPS:
        raise ValueError(f"loop must be one of {', '.join(LOOPS)}, got {loop!r}")
    n, m = similarity.shape[-2:]
    batch = similarity.shape[:-2]
    if p is None or q is None:
        uniform = weights(None, None, similarity, mask, valid_only=True)
        p, q = (uniform[0] if p is None else p), (uniform[1] if q is None else q)
    given, dtype = similarity, similarity.dtype
    if dtype == torch.float32 and loop == "log":
        low, high = similarity.detach().aminmax()
        if not bool(high - low <= SAFE_RANGE * reg):  # a word could underflow in the rows of every region
            similarity = similarity.double()
    sides = []
    for name, weight, size in (("p", p, n), ("q", q, m)):
        try:
            weight = weight.to(similarity.dtype).expand(*batch, size)
        except RuntimeError:
            raise ValueError(f"{name} of shape {tuple(weight.shape)} does not fit {(*batch, size)}") from None
        sides.append(weight.reshape(-1, size))
    allowed = None if mask is None else mask.expand(similarity.shape).reshape(-1, n, m)
    plan = _ScalingPlan.apply(similarity.reshape(-1, n, m), *sides, allowed, reg, passes, LOOPS[loop])
    return plan.reshape(given.shape).to(dtype)


def _times(kernel: Tensor, v: Tensor, out: Tensor) -> Tensor:
    """``kernel @ v`` as a product and a sum: several times quicker than small batched products on a CPU."""
    return torch.mul(kernel, v.unsqueeze(-2), out=out).sum(-1)


def _turned(kernel: Tensor, u: Tensor, out: Tensor) -> Tensor:
    """``kernel.mT @ u``."""
    return torch.mul(kernel, u.unsqueeze(-1), out=out).sum(-2)


def _kernel(
    s: Tensor, p: Tensor, q: Tensor, mask: Tensor | None, reg: float, loop: _Loop, out: Tensor
) -> Tensor:
    """Kernel divided as the loop wants it; forbidden entries 0, padding negligible (its scalings are 0)."""
    # padding far below everything: arithmetic with float masks, boolean ones are 20 times slower
    torch.add((q > 0).to(s.dtype).sub_(1).mul_(FAR).unsqueeze(-2), s, alpha=1 / reg, out=out)
    if mask is not None:
        out.copy_(torch.where(mask, out, -FAR))
    if loop.total:
        out.add_((p > 0).to(s.dtype).sub_(1).mul_(FAR).unsqueeze(-1))
        top = out.amax((-2, -1), keepdim=True)
    else:
        top = out.amax(-1, keepdim=True)
    out.sub_(top).clamp_min_(DEEPEST[s.dtype]).exp_()
    if mask is not None:
        out.mul_(mask.to(s.dtype))
    if loop.total:
        # (k / (sum k + eps)) with k = exp((s - 1) / reg), written so that nothing underflows
        extra = (1 / reg - top).clamp_max(80.0 if s.dtype == torch.float32 else 650.0).exp_()
        out.div_(out.sum((-2, -1), keepdim=True) + loop.epsilon * extra)
    return out


class _ScalingPlan(torch.autograd.Function):
    """Plans (b, n, m) of similarities (b, n, m) and weights (b, n), (b, m)."""

    @staticmethod
    def forward(
        ctx: Any,
        s: Tensor,
        p: Tensor,
        q: Tensor,
        mask: Tensor | None,
        reg: float,
        passes: int,
        loop: _Loop,
    ) -> Tensor:
        keep = any(ctx.needs_input_grad[:3])
        tiny = torch.finfo(s.dtype).tiny
        count, n, m = s.shape
        chunk = max(1, CHUNK_ENTRIES // (n * m)) if s.device.type == "cpu" else count
        plan = torch.empty_like(s, memory_format=torch.contiguous_format)
        kernels = torch.empty_like(plan) if keep else plan.new_empty(0)
        us = s.new_empty(passes if keep else 0, count, n)
        vs = s.new_empty(passes if keep else 0, count, m)
        scratch = torch.empty_like(plan[:chunk])
        for i in range(0, count, chunk):
            part = slice(i, i + chunk)
            pk, qk, block = p[part], q[part], plan[part]
            target = kernels[part] if keep else scratch[: len(block)]
            k = _kernel(s[part], pk, qk, None if mask is None else mask[part], reg, loop, target)
            u, v = torch.ones_like(pk), (qk > 0).to(qk.dtype)
            for t in range(passes):
                if loop.epsilon:
                    u = u * pk / (u * _times(k, v, block)).add_(loop.epsilon)
                    v = v * qk / (v * _turned(k, u, block)).add_(loop.epsilon)
                else:
                    u = pk / _times(k, v, block).clamp_min_(tiny)
                    v = qk / _turned(k, u, block).clamp_min_(tiny)
                if keep:
                    us[t, part], vs[t, part] = u, v
            torch.mul(k, u.unsqueeze(-1), out=block).mul_(v.unsqueeze(-2))
        if keep:
            ctx.save_for_backward(kernels, us, vs, p, q)
            ctx.settings = (reg, passes, loop, chunk)
        return plan

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernels, us, vs, p, q = ctx.saved_tensors
        reg, passes, loop, chunk = ctx.settings
        plan_grad = grads[0]
        ds = torch.empty_like(kernels)
        dp, dq = torch.zeros_like(p), torch.zeros_like(q)
        scratch = torch.empty_like(kernels[:chunk])
        for i in range(0, len(kernels), chunk):
            part = slice(i, i + chunk)
            k, g, pk, qk = kernels[part], ds[part], p[part], q[part]
            out = scratch[: len(k)]
            u, v = us[-1, part], vs[-1, part]
            torch.mul(plan_grad[part], k, out=g)
            du, dv = _times(g, v, out), _turned(g, u, out)
            g.mul_(u.unsqueeze(-1)).mul_(v.unsqueeze(-2))  # kernel gradient times kernel, last product
            left, right = [], []
            for t in range(passes - 1, -1, -1):
                u = us[t, part]
                u0 = us[t - 1, part] if t else torch.ones_like(pk)
                v0 = vs[t - 1, part] if t else (qk > 0).to(qk.dtype)
                # v = v0 q / (v0 s + eps) with s = K'u
                dsum, dq_t, dv0 = _step_back(dv, vs[t, part], v0, qk, loop.epsilon)
                left.append(u)
                right.append(dsum)
                du = du + _times(k, dsum, out)
                # u = u0 p / (u0 t + eps) with t = K v0
                dsum, dp_t, du0 = _step_back(du, u, u0, pk, loop.epsilon)
                left.append(dsum)
                right.append(v0)
                dv = dv0 + _turned(k, dsum, out) if t else dv0
                du = du0
                dp[part] += dp_t
                dq[part] += dq_t
            # all outer products of the passes in one batched product
            g.add_(torch.bmm(torch.stack(left, 2), torch.stack(right, 1)).mul_(k))
            if loop.total:  # the kernel was divided by its total
                g.addcmul_(k, g.sum((-2, -1), keepdim=True), value=-1.0)
            g.mul_(1 / reg)
        needs = ctx.needs_input_grad
        return (ds, dp if needs[1] else None, dq if needs[2] else None, None, None, None, None)


def _step_back(
    grad: Tensor, new: Tensor, old: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``new = old * weight / (old * sum + epsilon)`` for the sum, the weight and ``old``."""
    inverse = torch.where(weight > 0, 1 / weight, 0.0)
    share = new * inverse  # old / (old * sum + epsilon)
    dsum = -grad * new * share
    if not epsilon:
        return dsum, grad * share, torch.zeros_like(grad)
    over = torch.where(
        old > 0, share / old.clamp_min(torch.finfo(old.dtype).tiny), 0.0
    )  # 1 / (old * sum + epsilon)
    return dsum, grad * share, grad * epsilon * weight * over * over
