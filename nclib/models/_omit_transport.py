"""Transport scores of all pairs of images and captions: a few scaling passes, one autograd node.

The similarities of a block are (B, n, m, C): images, regions, words, captions. With the captions last, every
sum over words or over regions runs along whole rows of memory, however short the captions are. Work goes in
blocks of images that stay in the cache. The node keeps the similarities and the T pairs of scaling vectors;
the backward pass computes the kernel again, so that nothing of the size of the plans is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nclib.ot.small import DEEPEST, FAR, RELEASED_EPSILON, _exp, _step_back

#: Entries of a block on a CPU: about 1 MB in float32.
BLOCK_ENTRIES = 256 * 36 * 32
#: The constant in the sums of each loop: the one of OMIT's released code, and none.
LOOPS = {"released": RELEASED_EPSILON, "log": 0.0}
#: Lowest exponents of a kernel that is not shifted: no result is subnormal, which is slow on a CPU.
DIRECT = {torch.float32: -80.0, torch.float64: -600.0}


def transport_scores(
    s: Tensor, p: Tensor, q: Tensor, *, lam: float, iterations: int, loop: str, skip: int, plain: bool = False
) -> Tensor:
    """Similarity that the plan of every pair collects: the sum of P_ij s_ij over i, j >= skip.

    Parameters
    ----------
    s : Tensor, (B, n, m, C)
        Cosines of regions and words, dustbins first if there are any.
    p, q : Tensor, (B or 1, n, C or 1) and (B or 1, m, C)
        Marginals of regions (above 0) and words (0 at padding). Gradients reach them.
    lam : float
        Weight of the entropy.
    iterations : int
        Row and column updates, rows first.
    loop : {"released", "log"}
        The loop of OMIT's released code, with 1e-6 in every sum, or exact scaling.
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
    run = _plain_scores if plain else _TransportScores.apply
    scores: Tensor = run(*sides, lam, iterations, LOOPS[loop], skip)
    return scores.to(s.dtype)


def _precision(dtype: torch.dtype, lam: float, loop: str) -> torch.dtype:
    """Number type of the scaling: with a small lambda the released constant leaves the range of float32."""
    return torch.float64 if loop == "released" and not _is_direct(dtype, lam, RELEASED_EPSILON) else dtype


def transport_plans(s: Tensor, p: Tensor, q: Tensor, lam: float, iterations: int, loop: str) -> Tensor:
    """Plans (B, n, m, C) by ordinary operations; the arguments are those of :func:`transport_scores`."""
    form = _precision(s.dtype, lam, loop)
    return _plain_plans(s.to(form), p.to(form), q.to(form), lam, iterations, LOOPS[loop]).to(s.dtype)


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
    """What is taken from the exponents x so that nothing that matters underflows, and the first v.

    The released loop needs its constant in proportion to the kernel's total: one maximum per pair. Exact
    scaling absorbs a maximum per row and then one per column, which the first v gives back.
    """
    if epsilon:
        return x.amax((1, 2), keepdim=True), None, valid.to(x.dtype)
    rows = x.amax(2, keepdim=True)
    columns = (x - rows).amax(1, keepdim=True)
    start = columns.squeeze(1).clamp_min(DEEPEST[x.dtype]).exp() * valid.to(x.dtype)
    return rows, columns, start


def _reach(top: Tensor, lam: float) -> Tensor:
    """What the constant beside the kernel's total is worth after the shift: exp(1 / lambda - top)."""
    return (1 / lam - top).clamp_max(80.0 if top.dtype == torch.float32 else 650.0).exp()


def _is_direct(dtype: torch.dtype, lam: float, epsilon: float) -> bool:
    """Whether exp(s / lambda) of cosines can be taken as it is, and no scaling leaves the type's range."""
    return (1 if epsilon else 2) / lam <= -DIRECT[dtype]


def _padding(q: Tensor, direct: bool) -> Tensor:
    """What is added to the exponents: far below everything where a word is padding, (B or 1, 1, m, C)."""
    far = DIRECT[q.dtype] if direct else -FAR
    return (q > 0).to(q.dtype).sub_(1).mul_(-far).unsqueeze(1)


def _kernel(
    s: Tensor, padding: Tensor, lam: float, epsilon: float, direct: bool, out: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Write the kernel of similarities (b, n, m, C) into ``out``.

    Returns
    -------
    start : Tensor, (b or 1, m, C)
        The first v.
    rows : Tensor, (b, n, C)
        Sums of the kernel times the first v.
    scale : Tensor, (b, 1, C), or None
        What the released loop multiplies the kernel with: its total, with the constant, comes to 1.
    """
    torch.add(padding, s, alpha=1 / lam, out=out)
    valid = padding.squeeze(1) == 0
    if direct:
        start, reach = valid.to(s.dtype), s.new_tensor(1 / lam).exp()
    else:
        shift, columns, start = _shifts(out, valid, epsilon)
        reach = _reach(shift, lam).squeeze(1) if epsilon else shift
        out.sub_(shift)
        if columns is not None:
            out.sub_(columns)
        out.clamp_min_(DEEPEST[s.dtype])
    _exp(out)
    plain = epsilon or direct  # then the first v is 1, and the kernel next to nothing at padding
    rows = out.sum(2) if plain else (out * start.unsqueeze(1)).sum(2)
    if not epsilon:
        return start, rows, None
    return start, rows, (rows.sum(1, keepdim=True) + epsilon * reach).reciprocal_()


def _over_words(k: Tensor, v: Tensor, out: Tensor) -> Tensor:
    """Sum of k_ij v_j over j: (b, n, C)."""
    return torch.mul(k, v.unsqueeze(1), out=out).sum(2)


def _over_regions(k: Tensor, u: Tensor, out: Tensor) -> Tensor:
    """Sum of k_ij u_i over i: (b, m, C)."""
    return torch.mul(k, u.unsqueeze(2), out=out).sum(1)


def _update(old: Tensor | None, weight: Tensor, sums: Tensor, scale: Tensor | None, epsilon: float) -> Tensor:
    """One scaling: the vector that gives the sums their weights, or nearly so with the constant."""
    if scale is None:
        return weight / sums.clamp_min_(torch.finfo(sums.dtype).tiny)
    sums = sums.mul_(scale)
    if old is None:
        return weight / sums.add_(epsilon)
    return old * weight / sums.mul_(old).add_(epsilon)


class _TransportScores(torch.autograd.Function):
    """See :func:`transport_scores`."""

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, p: Tensor, q: Tensor, lam: float, iterations: int, epsilon: float, skip: int
    ) -> Tensor:
        keep = any(ctx.needs_input_grad[:3])
        n_images, n, m, n_captions = s.shape
        block = n_images
        if s.device.type == "cpu":
            block = max(1, min(n_images, BLOCK_ENTRIES // (n * m * n_captions)))
        pe, qe = p.expand(n_images, n, n_captions), q.expand(n_images, m, n_captions)
        us = s.new_empty(iterations if keep else 0, n_images, n, n_captions)
        vs = s.new_empty(iterations if keep else 0, n_images, m, n_captions)
        scores = s.new_empty(n_images, n_captions)
        direct = _is_direct(s.dtype, lam, epsilon)
        padding = _padding(q, direct)
        buffers = s.new_empty(2, block, n, m, n_captions)
        for i in range(0, n_images, block):
            part = slice(i, i + block)
            pk, qk, sk = pe[part], qe[part], s[part]
            k, out = buffers[:, : len(sk)].unbind()
            far = padding if len(padding) == 1 else padding[part]
            v, rows, scale = _kernel(sk, far, lam, epsilon, direct, k)
            u = None
            for t in range(iterations):
                if t:
                    rows = _over_words(k, v, out)
                u = _update(u, pk, rows, scale, epsilon)
                v = _update(v, qk, _over_regions(k, u, out), scale, epsilon)
                if keep:
                    us[t, part], vs[t, part] = u, v
            # out still holds the kernel times u
            collected = out[:, skip:, skip:].mul_(sk[:, skip:, skip:]).sum(1).mul_(v[:, skip:])
            scores[part] = collected.sum(1) if scale is None else collected.sum(1).mul_(scale[:, 0])
        if keep:
            ctx.save_for_backward(s, p, q, us, vs)
            ctx.settings = (lam, iterations, epsilon, skip, block)
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, p, q, us, vs = ctx.saved_tensors
        lam, iterations, epsilon, skip, block = ctx.settings
        needs = ctx.needs_input_grad[:3]
        nothing = (None,) * 4
        if torch.is_grad_enabled():  # the gradient itself is to be differentiated
            scores = _plain_scores(s, p, q, lam, iterations, epsilon, skip)
            wanted = [x for x, need in zip((s, p, q), needs, strict=True) if need]
            found = iter(torch.autograd.grad(scores, wanted, grads[0], create_graph=True))
            return (*(next(found) if need else None for need in needs), *nothing)
        n_images, n, m, n_captions = s.shape
        pe, qe = p.expand(n_images, n, n_captions), q.expand(n_images, m, n_captions)
        ds, dp, dq = torch.empty_like(s), pe.new_zeros(pe.shape), qe.new_zeros(qe.shape)
        direct = _is_direct(s.dtype, lam, epsilon)
        padding = _padding(q, direct)
        buffers = s.new_empty(3, block, n, m, n_captions)
        for i in range(0, n_images, block):
            part = slice(i, i + block)
            pk, qk, sk, grad = pe[part], qe[part], s[part], grads[0][part].unsqueeze(1)
            k, pull, out = buffers[:, : len(sk)].unbind()
            sums = ds[part]
            far = padding if len(padding) == 1 else padding[part]
            start, _, scale = _kernel(sk, far, lam, epsilon, direct, k)
            if scale is not None:
                k.mul_(scale.unsqueeze(2))
            ones = torch.ones_like(pk)
            # score = sum of u k s v over the entries that count
            u, v = grad * us[-1, part], vs[-1, part].clone()
            u[:, :skip], v[:, :skip] = 0, 0
            weighted = torch.mul(k, sk, out=pull)
            du, dv = grad * _over_words(weighted, v, out), _over_regions(weighted, u, out)
            du[:, :skip], dv[:, :skip] = 0, 0
            torch.mul(u.unsqueeze(2), v.unsqueeze(1), out=pull)  # how the score depends on k s
            torch.mul(pull, sk, out=sums)  # becomes the gradient for k
            for t in range(iterations - 1, -1, -1):
                u, v = us[t, part], vs[t, part]
                u0, v0 = (us[t - 1, part], vs[t - 1, part]) if t else (ones, start)
                dsum, share, dv0 = _step_back(dv, v, v0, qk, epsilon)  # v = v0 q / (v0 k'u + eps)
                sums.addcmul_(u.unsqueeze(2), dsum.unsqueeze(1))
                dq[part] += share
                du = du + _over_words(k, dsum, out)
                dsum, share, du0 = _step_back(du, u, u0, pk, epsilon)  # u = u0 p / (u0 k v0 + eps)
                sums.addcmul_(dsum.unsqueeze(2), v0.unsqueeze(1))
                dp[part] += share
                if t:
                    dv = dv0 + _over_regions(k, dsum, out)
                    du = du0
            sums.mul_(k)
            if epsilon:  # the kernel was divided by its total
                sums.addcmul_(k, sums.sum((1, 2), keepdim=True), value=-1.0)
            sums.mul_(1 / lam).addcmul_(pull, k)
        return (
            ds if needs[0] else None,
            dp.sum_to_size(p.shape) if needs[1] else None,
            dq.sum_to_size(q.shape) if needs[2] else None,
            *nothing,
        )
