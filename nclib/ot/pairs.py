"""Similarities that the plans of all pairs of images and captions collect.

On a CPU :func:`transport_scores` keeps no plan: one autograd node holds the similarities and the T pairs of
scaling vectors, computes the kernel again in the backward pass and runs the vector recursions in reverse,
block by block in the cache. Its tensors have the pairs last, (n, m, P), so that sums over regions or words
run along whole lines of memory. Elsewhere the formulas stand as they are, for a compiler to fuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.ot.small import DEEPEST, FAR, LOOPS, Spec, constants_weight, differentiable_gradients, plans

#: Entries of a block of pairs on a CPU: about 2 MB in float32.
BLOCK_ENTRIES = 512 * 36 * 32
#: Largest exponents, of either sign, of a kernel that is not shifted.
DIRECT = {torch.float32: 80.0, torch.float64: 600.0}
#: NumPy's products can report floating-point flags that another library left behind.
QUIET = np.errstate(all="ignore")


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


def _pair_plans(s: Tensor, p: Tensor, q: Tensor, spec: Spec) -> Tensor:
    """Plans (B, n, m, C) of cosines and weights in the layout of :func:`transport_scores`."""
    sides = s.permute(0, 3, 1, 2), p.permute(0, 2, 1), q.permute(0, 2, 1)
    return plans(*sides, None, spec, (-1.0, 1.0)).permute(0, 2, 3, 1)


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
        reach = constants_weight(shift, lam) if epsilon else 0.0
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
            reach = constants_weight(shift, self.lam).flatten() if self.epsilon else 0.0
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
            return (*differentiable_gradients(scores, grads[0], (s, p, q), needs), None, None)
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
