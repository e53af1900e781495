"""Transport scores of all pairs of images and captions: a few scaling passes, one autograd node.

The similarities of a block are (B, n, m, C): images, regions, words, captions. Work goes in blocks of images
that stay in the cache, as (n, m, P) with the pairs last: every sum over words or over regions then runs along
whole rows of memory, however short the captions are. The node keeps the similarities and the T pairs of
scaling vectors; the backward pass computes the kernel again, so nothing of the size of the plans is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot.small import DEEPEST, FAR, QUIET, RELEASED_EPSILON, _exp, _step_back

#: Entries of a block on a CPU: about 2 MB in float32. Smaller ones are all calls.
BLOCK_ENTRIES = 512 * 36 * 32
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

    Attributes
    ----------
    x, k : Tensor, (n, m, P)
        Similarities over lambda, and the kernel; far below and next to nothing at padding. P are the pairs
        of the block's images with all captions.
    p, q : Tensor, (n, P) and (m, P)
        Marginals.
    start : Tensor, (m, P)
        The first v.
    rows : Tensor, (n, P)
        Sums of the kernel times the first v.
    scale : Tensor, (P,), or None
        What the released loop multiplies the kernel with: its total, with the constant, comes to 1.
    """

    def __init__(self, s: Tensor, p: Tensor, q: Tensor, lam: float, epsilon: float) -> None:
        n_images, n, m, n_captions = s.shape
        self.size = n_images
        if s.device.type == "cpu":
            self.size = max(1, min(n_images, BLOCK_ENTRIES // (n * m * n_captions)))
        self.lam, self.epsilon, self.direct = lam, epsilon, _is_direct(s.dtype, lam, epsilon)
        valid = (q > 0).to(s.dtype)
        padding = (valid - 1).mul_(-DIRECT[s.dtype] if self.direct else FAR)
        self.s = s.permute(1, 2, 0, 3)  # (n, m, B, C)
        self.sides = [
            side.expand(n_images, -1, n_captions).permute(1, 0, 2) for side in (p, q, valid, padding)
        ]  # (n or m, B, C)
        self.memory = s.new_empty(2, n * m * self.size * n_captions)

    def __iter__(self) -> Iterator[tuple[slice, slice]]:
        """Prepare one block after the other; give which images it holds, and which of all pairs."""
        n_images, n_captions = self.s.shape[2:]
        for first in range(0, n_images, self.size):
            images = slice(first, min(first + self.size, n_images))
            self._load(self.s[:, :, images], *(side[:, images] for side in self.sides))
            yield images, slice(images.start * n_captions, images.stop * n_captions)

    def _load(self, s: Tensor, p: Tensor, q: Tensor, valid: Tensor, padding: Tensor) -> None:
        self.x, self.k = (x[: s.numel()].view(*s.shape[:2], -1) for x in self.memory)
        torch.add(padding, s, alpha=1 / self.lam, out=self.x.view(s.shape))
        self.p, self.q, self.start = (side.reshape(len(side), -1) for side in (p, q, valid))
        if self.direct:
            _exp(self.x, self.k)
            reach: Tensor | float = math.exp(1 / self.lam)
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
        keep = any(ctx.needs_input_grad[:3])
        n_images, n, m, n_captions = s.shape
        kept = iterations if keep else 0
        us = s.new_empty(kept, n, n_images * n_captions)
        vs = s.new_empty(kept, m, n_images * n_captions)
        scores = s.new_empty(n_images * n_captions)
        blocks = _Blocks(s, p, q, lam, epsilon)
        for _, pairs in blocks:
            k, scale, v, u = blocks.k, blocks.scale, blocks.start, None
            for t in range(iterations):
                rows = _over_words(k, v) if t else blocks.rows
                u = _update(u, blocks.p, rows, scale, epsilon)  # (n, P)
                v = _update(v if t else None, blocks.q, _over_regions(k, u), scale, epsilon)  # (m, P)
                if keep:
                    us[t, :, pairs], vs[t, :, pairs] = u, v
            assert u is not None
            weighted = blocks.x.mul_(k)[skip:, skip:]  # the similarity over lambda is the exponent itself
            collected = _over_regions(weighted, u[skip:]).mul_(v[skip:]).sum(0).mul_(lam)
            scores[pairs] = collected if scale is None else collected.mul_(scale)
        if keep:
            ctx.save_for_backward(s, p, q, us, vs)
            ctx.settings = (lam, iterations, epsilon, skip)
        return scores.view(n_images, n_captions)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, p, q, us, vs = ctx.saved_tensors
        lam, iterations, epsilon, skip = ctx.settings
        needs = ctx.needs_input_grad[:3]
        nothing = (None,) * 4
        if torch.is_grad_enabled():  # the gradient itself is to be differentiated
            scores = _plain_scores(s, p, q, lam, iterations, epsilon, skip)
            wanted = [x for x, need in zip((s, p, q), needs, strict=True) if need]
            found = iter(torch.autograd.grad(scores, wanted, grads[0], create_graph=True))
            return (*(next(found) if need else None for need in needs), *nothing)
        n_images, n, m, n_captions = s.shape
        grad_of = grads[0].reshape(-1)
        ds = torch.empty_like(s, memory_format=torch.contiguous_format)
        ds_of = ds.permute(1, 2, 0, 3)  # (n, m, B, C)
        dp, dq = s.new_zeros(n, n_images * n_captions), s.new_zeros(m, n_images * n_captions)
        blocks = _Blocks(s, p, q, lam, epsilon)
        buffer = torch.empty_like(blocks.memory[0])
        for images, pairs in blocks:
            x, k, start, grad = blocks.x.mul_(lam), blocks.k, blocks.start, grad_of[pairs]  # x: similarities
            sums = buffer[: x.numel()].view(x.shape)
            if blocks.scale is not None:
                k.mul_(blocks.scale)
            ones = torch.ones_like(blocks.p)
            # score = sum of u k x v over the entries that count
            u, v = grad * us[-1, :, pairs], vs[-1, :, pairs].clone()
            u[:skip], v[:skip] = 0, 0
            torch.mul(k, x, out=sums)
            du, dv = grad * _over_words(sums, v), _over_regions(sums, u)
            du[:skip], dv[:skip] = 0, 0
            torch.mul(u.unsqueeze(1), v, out=sums).mul_(x)  # becomes the gradient for k
            direct = torch.mul(u.unsqueeze(1), v, out=x)  # how the score depends on k x
            for t in range(iterations - 1, -1, -1):
                u, v = us[t, :, pairs], vs[t, :, pairs]
                u0, v0 = (us[t - 1, :, pairs], vs[t - 1, :, pairs]) if t else (ones, start)
                dsum, share, dv0 = _step_back(dv, v, v0, blocks.q, epsilon)  # v = v0 q / (v0 k'u + eps)
                sums.addcmul_(u.unsqueeze(1), dsum)
                dq[:, pairs] += share
                du = du + _over_words(k, dsum)
                dsum, share, du0 = _step_back(du, u, u0, blocks.p, epsilon)  # u = u0 p / (u0 k v0 + eps)
                sums.addcmul_(dsum.unsqueeze(1), v0)
                dp[:, pairs] += share
                if t:
                    dv = dv0 + _over_regions(k, dsum)
                    du = du0
            sums.mul_(k)
            if epsilon:  # the kernel was divided by its total
                sums.addcmul_(k, sums.sum((0, 1)), value=-1.0)
            sums.mul_(1 / lam).addcmul_(direct, k)
            ds_of[:, :, images] = sums.view(n, m, -1, n_captions)
        back = [x.view(-1, n_images, n_captions).permute(1, 0, 2) for x in (dp, dq)]
        return (
            ds if needs[0] else None,
            back[0].sum_to_size(p.shape) if needs[1] else None,
            back[1].sum_to_size(q.shape) if needs[2] else None,
            *nothing,
        )
