"""Many small problems, a few scaling passes each: regions against words, forward and backward.

A plan of T passes (rows first) is differentiated through all of them, in one autograd node. It keeps the
similarities and the T pairs of scaling vectors; the backward pass computes the kernel again and runs the
vector recursions in reverse, so that nothing of the size of the plan is stored. Work goes in chunks that
stay in the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
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
#: Widest range of similarities, in units of the regularisation, for one maximum for all problems.
SPAN = {torch.float32: 75.0, torch.float64: 600.0}


#: NumPy's products can report floating-point flags that another library left behind.
QUIET = np.errstate(all="ignore")


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
    low, high = _range(similarity, mask)
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
    if dtype == torch.float32 and not _fits(low, high, reg, LOOPS[loop]):
        similarity = similarity.double()
    top = high if (high - low) / reg <= SPAN[similarity.dtype] else None
    sides = []
    for name, weight, size in (("p", p, n), ("q", q, m)):
        if similarity.ndim == 3 and weight.shape == (*batch, size) and weight.dtype == similarity.dtype:
            sides.append(weight)  # as it comes: every call counts when there are few problems
            continue
        try:
            weight = weight.to(similarity.dtype).expand(*batch, size)
        except RuntimeError:
            raise ValueError(f"{name} of shape {tuple(weight.shape)} does not fit {(*batch, size)}") from None
        sides.append(weight.reshape(-1, size))
    allowed = None if mask is None else mask.expand(similarity.shape).reshape(-1, n, m)
    flat = similarity if similarity.ndim == 3 else similarity.reshape(-1, n, m), *sides
    if torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        plan: Tensor = _ScalingPlan.apply(*flat, allowed, reg, passes, LOOPS[loop], top)
    else:  # for one problem, making a node costs as much as solving it
        s_, p_, q_ = (x.detach() for x in flat)
        plan = _plans(s_, p_, q_, allowed, reg, passes, LOOPS[loop], top)
    return plan if similarity is given and given.ndim == 3 else plan.reshape(given.shape).to(dtype)


def _range(similarity: Tensor, mask: Tensor | None) -> tuple[float, float]:
    """Smallest and largest similarity, after all checks; one pass when nothing is wrong."""
    simple = mask is None and isinstance(similarity, Tensor) and similarity.dtype in DEEPEST
    if not simple or similarity.ndim < 2 or 0 in similarity.shape:
        check_cost(similarity, mask)
    low, high = (float(x) for x in similarity.detach().aminmax())
    if simple and not math.isfinite(high - low):
        check_cost(similarity, mask)
    return low, high


def _fits(low: float, high: float, reg: float, loop: _Loop) -> bool:
    """Whether float32 holds the scalings of words far from all regions, or the constant beside the kernel."""
    if loop.epsilon:
        return high - low <= SPAN[torch.float32] * reg and 1 - high <= SAFE_RANGE * reg
    return high - low <= SAFE_RANGE * reg


@QUIET
def _times(kernel: Tensor, v: Tensor) -> Tensor:
    """``kernel @ v``; NumPy calls the products of small matrices with a third of the overhead."""
    if kernel.device.type == "cpu":
        return torch.from_numpy(np.matmul(kernel.numpy(), v.unsqueeze(-1).numpy())[..., 0])
    return (kernel * v.unsqueeze(-2)).sum(-1)


@QUIET
def _turned(kernel: Tensor, u: Tensor) -> Tensor:
    """``kernel.mT @ u``."""
    if kernel.device.type == "cpu":
        return torch.from_numpy(np.matmul(u.unsqueeze(-2).numpy(), kernel.numpy())[..., 0, :])
    return (kernel * u.unsqueeze(-1)).sum(-2)


def _kernel(
    s: Tensor,
    p: Tensor,
    q: Tensor,
    mask: Tensor | None,
    reg: float,
    loop: _Loop,
    top: float | None,
    out: Tensor,
) -> Tensor:
    """Kernel divided as the loop wants it, forbidden entries 0; padding, where the scalings are 0, anything.

    With ``top`` exponents are taken below this one similarity, else below the largest of a problem or row.
    """
    if top is not None:
        torch.sub(s, top, out=out).mul_(1 / reg)
    else:
        # padding far below everything: arithmetic with float masks, boolean ones are 20 times slower
        torch.add((q > 0).to(s.dtype).sub_(1).mul_(FAR).unsqueeze(-2), s, alpha=1 / reg, out=out)
        if mask is not None:
            out.copy_(torch.where(mask, out, -FAR))
        if loop.total:
            out.add_((p > 0).to(s.dtype).sub_(1).mul_(FAR).unsqueeze(-1))
        highest = out.amax((-2, -1) if loop.total else -1, keepdim=True)
        out.sub_(highest).clamp_min_(DEEPEST[s.dtype])
    _exp(out, out)
    if mask is not None:
        out.mul_(mask.to(s.dtype))
    if loop.total:
        # (k / (sum k + eps)) with k = exp((s - 1) / reg), written so that nothing underflows
        total = (_times(out, (q > 0).to(s.dtype)) * (p > 0)).sum(-1)[:, None, None]
        if top is not None:
            total += loop.epsilon * math.exp((1 - top) / reg)
        else:
            limit = 80.0 if s.dtype == torch.float32 else 650.0
            total = total + loop.epsilon * (1 / reg - highest).clamp_max(limit).exp_()
        out.mul_(total.reciprocal_())
    return out


@QUIET
def _exp(x: Tensor, out: Tensor) -> None:
    """Exponential of x into ``out``, which may be x; NumPy's is twice as quick."""
    if x.device.type == "cpu":
        np.exp(x.numpy(), out=out.numpy())
    else:
        torch.exp(x, out=out)


def _scale(
    k: Tensor, p: Tensor, q: Tensor, passes: int, epsilon: float, us: Tensor | None, vs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scaling vectors after the passes; all of them into ``us`` and ``vs`` if given."""
    if k.device.type == "cpu":
        return _scale_on_cpu(k, p, q, passes, epsilon, us, vs)
    tiny = torch.finfo(k.dtype).tiny
    u, v = torch.ones_like(p), (q > 0).to(q.dtype)
    for t in range(passes):
        if epsilon:
            u = u * p / (u * _times(k, v)).add_(epsilon)
            v = v * q / (v * _turned(k, u)).add_(epsilon)
        else:
            u = p / _times(k, v).clamp_min_(tiny)
            v = q / _turned(k, u).clamp_min_(tiny)
        if us is not None and vs is not None:
            us[t], vs[t] = u, v
    return u, v


@QUIET
def _scale_on_cpu(
    k: Tensor, p: Tensor, q: Tensor, passes: int, epsilon: float, us: Tensor | None, vs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same with NumPy, on the same memory."""
    kernel, rows, columns = k.numpy(), p.numpy(), q.numpy()
    tiny = np.finfo(kernel.dtype).tiny
    u = np.ones_like(rows) if us is None else us[0].numpy()
    v = (columns > 0).astype(columns.dtype)
    u[...] = 1
    for t in range(passes):
        new_u, new_v = (u, v) if us is None or vs is None else (us[t].numpy(), vs[t].numpy())
        sums = np.matmul(kernel, v[..., None])[..., 0]
        if epsilon:
            sums *= u
            sums += epsilon
            np.multiply(u, rows, out=new_u)
            np.divide(new_u, sums, out=new_u)
        else:
            np.maximum(sums, tiny, out=sums)
            np.divide(rows, sums, out=new_u)
        u = new_u
        sums = np.matmul(u[..., None, :], kernel)[..., 0, :]
        if epsilon:
            sums *= v
            sums += epsilon
            np.multiply(v, columns, out=new_v)
            np.divide(new_v, sums, out=new_v)
        else:
            np.maximum(sums, tiny, out=sums)
            np.divide(columns, sums, out=new_v)
        v = new_v
    return torch.from_numpy(u), torch.from_numpy(v)


def _chunk(s: Tensor) -> int:
    """Problems that are solved at a time."""
    return max(1, CHUNK_ENTRIES // (s.shape[1] * s.shape[2])) if s.device.type == "cpu" else len(s)


def _plans(
    s: Tensor,
    p: Tensor,
    q: Tensor,
    mask: Tensor | None,
    reg: float,
    passes: int,
    loop: _Loop,
    top: float | None,
    us: Tensor | None = None,
    vs: Tensor | None = None,
) -> Tensor:
    """Plans, chunk by chunk; the scalings of all passes into ``us`` and ``vs`` if given."""
    chunk = _chunk(s)
    plan = torch.empty_like(s, memory_format=torch.contiguous_format)
    for i in range(0, len(s), chunk):
        part = slice(i, i + chunk)
        pk, qk = p[part], q[part]
        k = _kernel(s[part], pk, qk, None if mask is None else mask[part], reg, loop, top, plan[part])
        stores = (None, None) if us is None or vs is None else (us[:, part], vs[:, part])
        u, v = _scale(k, pk, qk, passes, loop.epsilon, *stores)
        k.mul_(u.unsqueeze(-1)).mul_(v.unsqueeze(-2))
    return plan


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
        top: float | None,
    ) -> Tensor:
        us, vs = (s.new_empty(passes, len(s), size) for size in s.shape[1:])
        plan = _plans(s, p, q, mask, reg, passes, loop, top, us, vs)
        ctx.save_for_backward(s, p, q, mask, us, vs)
        ctx.settings = (reg, loop, top)
        return plan

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, p, q, mask, us, vs = ctx.saved_tensors
        reg, loop, top = ctx.settings
        chunk = _chunk(s)
        plan_grad = grads[0]
        ds = torch.empty_like(s, memory_format=torch.contiguous_format)
        dp, dq = torch.zeros_like(p), torch.zeros_like(q)
        weighted = any(ctx.needs_input_grad[1:3])
        scratch = torch.empty_like(ds[:chunk])
        for i in range(0, len(s), chunk):
            part = slice(i, i + chunk)
            g, pk, qk = ds[part], p[part], q[part]
            allowed = None if mask is None else mask[part]
            k = _kernel(s[part], pk, qk, allowed, reg, loop, top, scratch[: len(g)])
            u, v = us[-1, part], vs[-1, part]
            torch.mul(plan_grad[part], k, out=g)
            left, right, dpk, dqk = _reverse(k, g, us[:, part], vs[:, part], pk, qk, loop.epsilon)
            if weighted:
                dp[part], dq[part] = dpk, dqk
            # kernel gradient times kernel: of the last product, and all outer products of the passes at once
            g.mul_(u.unsqueeze(-1)).mul_(v.unsqueeze(-2))
            g.addcmul_(torch.bmm(left, right), k)
            if loop.total:  # the kernel was divided by its total
                g.addcmul_(k, g.sum((-2, -1), keepdim=True), value=-1.0)
            g.mul_(1 / reg)
        needs = ctx.needs_input_grad
        return (ds, dp if needs[1] else None, dq if needs[2] else None, *(None,) * 5)


@QUIET
def _reverse(
    k: Tensor, g: Tensor, us: Tensor, vs: Tensor, p: Tensor, q: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the passes backwards from ``g``, the gradient of the plan times the kernel.

    Returns
    -------
    left, right : Tensor, (b, n, 2 T) and (b, 2 T, m)
        Their product is the gradient for the kernel, but for that of the last product.
    dp, dq : Tensor, (b, n) and (b, m)
        Gradients of the weights.
    """
    arrays: list[Any] = [k, g, us, vs, p, q]
    on_cpu = k.device.type == "cpu"
    if on_cpu:  # the same lines for NumPy, which has less overhead
        arrays = [x.numpy() for x in arrays]
    kernel, pull, rows, columns, p_, q_ = arrays
    one_p, one_q = p_ * 0 + 1, q_ * 0 + (q_ > 0)
    inverse_p, inverse_q = (p_ > 0) / (p_ + (p_ == 0)), (q_ > 0) / (q_ + (q_ == 0))
    du = (pull @ columns[-1][..., None])[..., 0]
    dv = (rows[-1][..., None, :] @ pull)[..., 0, :]
    dp, dq = p_ * 0, q_ * 0
    left, right = [], []
    for t in range(len(rows) - 1, -1, -1):
        u, v = rows[t], columns[t]
        u0, v0 = (rows[t - 1], columns[t - 1]) if t else (one_p, one_q)
        # v = v0 q / (v0 s + eps) with s = K'u
        share = v * inverse_q  # v0 / (v0 s + eps)
        change = dv * share
        dq += change
        dsum = -change * v
        dv = change * (epsilon * q_) * share / (v0 * v0 + (v0 == 0)) if epsilon else 0
        left.append(u)
        right.append(dsum)
        du = du + (kernel @ dsum[..., None])[..., 0]
        # u = u0 p / (u0 t + eps) with t = K v0
        share = u * inverse_p
        change = du * share
        dp += change
        dsum = -change * u
        du = change * (epsilon * p_) * share / (u0 * u0 + (u0 == 0)) if epsilon else 0
        left.append(dsum)
        right.append(v0)
        if t:
            dv = dv + (dsum[..., None, :] @ kernel)[..., 0, :]
    if on_cpu:
        sides = np.stack(left, 2), np.stack(right, 1), dp, dq
        return tuple(torch.from_numpy(x) for x in sides)  # type: ignore[return-value]
    return torch.stack(left, 2), torch.stack(right, 1), dp, dq


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
