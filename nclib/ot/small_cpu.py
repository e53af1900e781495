"""Plans of many small problems after a fixed number of passes, and their gradients, in NumPy.

The work of :func:`nclib.ot.scaling_plan` on a CPU. A call of NumPy costs a third of one of torch, and one
problem of 36 x 32 is little else than calls. The problems are taken in chunks that stay in the cache; nothing
is kept of them but the scalings of each pass, and the kernel is computed again in the backward pass. The
formula itself stands in :mod:`nclib.ot.small`, for the tests and for second derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Entries of a chunk: about 1 MB in float32.
CHUNK_ENTRIES = 256 * 36 * 32


class Passes(NamedTuple):
    """Settings of the passes."""

    reg: float
    passes: int
    epsilon: float  # added to every sum
    top: float  # similarity whose kernel is 1: the largest of all problems


class Problems(NamedTuple):
    """Similarities (b, n, m), weights (b, n) and (b, m), and what is allowed, (b, n, m), or None for all."""

    s: Array
    p: Array
    q: Array
    mask: Array | None

    def chunks(self) -> Iterator[tuple[slice, Problems]]:
        """Give the problems that are solved at a time, with their places."""
        size = max(1, CHUNK_ENTRIES // (self.s.shape[1] * self.s.shape[2]))
        for first in range(0, len(self.s), size):
            at = slice(first, first + size)
            mask = None if self.mask is None else self.mask[at]
            yield at, Problems(self.s[at], self.p[at], self.q[at], mask)


@np.errstate(all="ignore")
def plans(problems: Problems, loop: Passes, us: Array | None = None, vs: Array | None = None) -> Array:
    """Return the plans (b, n, m); the scalings of each pass go into ``us`` (T, b, n) and ``vs`` (T, b, m)."""
    plan = np.empty(problems.s.shape, problems.s.dtype)
    tiny, epsilon = np.finfo(plan.dtype).tiny, loop.epsilon
    for at, one in problems.chunks():
        k, p, q = _kernel(one, loop, plan[at]), one.p, one.q
        u, v = np.ones_like(p), (q > 0).astype(q.dtype)
        for t in range(loop.passes):
            if epsilon:
                u = u * p / (u * _rows(k, v) + epsilon)
                v = v * q / (v * _columns(k, u) + epsilon)
            else:
                u = p / np.maximum(_rows(k, v), tiny)
                v = q / np.maximum(_columns(k, u), tiny)
            if us is not None and vs is not None:
                us[t, at], vs[t, at] = u, v
        k *= u[..., None]
        k *= v[..., None, :]
    return plan


@np.errstate(all="ignore")
def gradients(
    problems: Problems, loop: Passes, us: Array, vs: Array, grad: Array
) -> tuple[Array, Array, Array]:
    """Return the gradients of the similarities and of the weights, from that of the plans."""
    # Plan, chunk by chunk: 1. the kernel again; 2. the passes in reverse give the kernel's gradient as a
    # product of two thin matrices; 3. with that of the last product, times the kernel, the similarities'.
    s, p, q, _ = problems
    ds, dp, dq = np.empty(s.shape, s.dtype), np.empty(p.shape, p.dtype), np.empty(q.shape, q.dtype)
    for at, one in problems.chunks():
        k, g = _kernel(one, loop, np.empty(one.s.shape, s.dtype)), ds[at]
        np.multiply(grad[at], k, out=g)
        left, right, dp[at], dq[at] = _reverse(k, g, us[:, at], vs[:, at], one.p, one.q, loop.epsilon)
        g *= us[-1, at, :, None]
        g *= vs[-1, at, None, :]
        thin = np.matmul(left, right)
        thin *= k
        g += thin
        if loop.epsilon:  # the kernel was divided by its total, in which padding does not count
            k *= g.sum((-2, -1), keepdims=True) * (one.p > 0)[..., None]
            k *= (one.q > 0)[..., None, :]
            g -= k
        g *= 1 / loop.reg
    return ds, dp, dq


def _rows(k: Array, v: Array) -> Array:
    """Return ``k @ v`` of every problem, (b, n)."""
    return np.matmul(k, v[..., None])[..., 0]


def _columns(k: Array, u: Array) -> Array:
    """Return ``k.T @ u`` of every problem, (b, m)."""
    return np.matmul(u[..., None, :], k)[..., 0, :]


def _kernel(one: Problems, loop: Passes, out: Array) -> Array:
    """Kernel, in the official loop divided by its total; 0 where forbidden, anything at padding."""
    np.subtract(one.s, loop.top, out=out)
    out *= 1 / loop.reg
    np.exp(out, out=out)
    if one.mask is not None:
        np.copyto(out, 0, where=~one.mask)
    if loop.epsilon:
        # (k / (sum k + eps)) with k = exp((s - 1) / reg), written so that nothing underflows
        total = (_rows(out, (one.q > 0).astype(out.dtype)) * (one.p > 0)).sum(-1)[..., None, None]
        total += loop.epsilon * math.exp((1 - loop.top) / loop.reg)
        out *= 1 / total
    return out


def _reverse(
    k: Array, g: Array, us: Array, vs: Array, p: Array, q: Array, epsilon: float
) -> tuple[Array, Array, Array, Array]:
    """Run the passes backwards from ``g``, the gradient of the plan times the kernel.

    Return left (b, n, 2 T) and right (b, 2 T, m), whose product is the gradient for the kernel but for that
    of the last product, and the gradients of the weights, (b, n) and (b, m).
    """
    left = np.empty((*p.shape, 2 * len(us)), p.dtype)
    right = np.empty((len(q), 2 * len(us), q.shape[1]), q.dtype)
    first_u, first_v = np.ones_like(p), (q > 0).astype(q.dtype)
    share_u, over_u = _updates(us, first_u, p, epsilon)
    share_v, over_v = _updates(vs, first_v, q, epsilon)
    du, dv = _rows(g, vs[-1]), _columns(g, us[-1])
    dp, dq = np.zeros_like(p), np.zeros_like(q)
    for t in range(len(us) - 1, -1, -1):
        left[..., 2 * t] = us[t]
        dsum = right[:, 2 * t]  # for k'u in v = v0 q / (v0 k'u + eps)
        np.multiply(dv, vs[t], out=dsum)
        dsum *= share_v[t]
        dq -= dv * share_v[t]
        du += _rows(k, dsum)
        dsum = du * us[t]  # for k v0 in u = u0 p / (u0 k v0 + eps)
        dsum *= share_u[t]
        dp -= du * share_u[t]
        left[..., 2 * t + 1] = dsum
        right[:, 2 * t + 1] = vs[t - 1] if t else first_v
        if t:
            before, dv = dv, _columns(k, dsum)
            if epsilon:
                dv += before * over_v[t] * (epsilon * q) * over_v[t]
                du *= over_u[t] * (epsilon * p)
                du *= over_u[t]
            else:
                du = np.zeros_like(du)
    return left, right, dp, dq


def _updates(new: Array, first: Array, weight: Array, epsilon: float) -> tuple[Array, Array]:
    """What the derivatives of all updates ``new = old * weight / (old * sum + epsilon)`` are made of.

    Return ``-old / (old * sum + epsilon)`` and, with ``epsilon``, ``1 / (old * sum + epsilon)``, of shape
    (T, b, n) and zero at padding; ``first`` is the first ``old``. Products of two of them are taken beside a
    gradient only: alone they leave the range of float32.
    """
    share = np.divide(new, -weight, out=np.zeros_like(new), where=weight > 0)
    if not epsilon:
        return share, share
    old = np.concatenate([first[None], new[:-1]])
    return share, np.divide(share, -old, out=np.zeros_like(old), where=old > 0)
