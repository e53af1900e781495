"""Triton kernels, imported where triton is installed and a GPU asks for them.

:func:`published` is the loop of :mod:`nclib.ot.published`. The others are those of :mod:`nclib.ot._fused`: a
program holds a tile (P, N, M) in registers, P problems whose entries lie side by side in memory, n regions
and m words padded to powers of two. The names are those of :mod:`nclib.ot.small`.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

FAR = tl.constexpr(-1e6)  # exponents of padding
DEEPEST = tl.constexpr(-86.0)  # smallest exponent, as in nclib.ot.small
TINY = tl.constexpr(1.1754943508222875e-38)  # smallest normal float32


@triton.jit
def _problem(
    s_at, p_at, q_at, entries, inside, rows_at, in_rows, columns_at, in_columns,
    inverse, constant,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Similarities, kernel, weights, and the first v of a tile."""
    s = tl.load(s_at + entries, mask=inside, other=0.0)
    p = tl.load(p_at + rows_at, mask=in_rows, other=0.0)  # (P, N)
    q = tl.load(q_at + columns_at, mask=in_columns, other=0.0)  # (P, M)
    valid = inside & (p > 0)[:, :, None] & (q > 0)[:, None, :]
    if EXACT:  # a maximum per row and one per column, which the first v gives back
        x = tl.where(valid, s * inverse, FAR)
        x = tl.where(valid, x - tl.max(x, 2)[:, :, None], FAR)
        top = tl.max(x, 1)
        x = x - top[:, None, :]
        v = tl.where(q > 0, tl.exp(tl.maximum(top, DEEPEST)), 0.0)
        k = tl.where(valid, tl.exp(tl.maximum(x, DEEPEST)), 0.0)
    else:  # the kernel divided by its total
        v = tl.where(q > 0, 1.0, 0.0)
        k = tl.where(valid, tl.exp(s * inverse), 0.0)
        total = tl.sum(tl.sum(k, 2), 1) + constant
        k = k / total[:, None, None]
    return s, k, p, q, v


@triton.jit
def _update(old, weight, sums, epsilon, EXACT: tl.constexpr):
    """One scaling: the vector that gives the sums their weights, or nearly so with the constant."""
    if EXACT:  # noqa: SIM108  # a branch of the compiler
        new = weight / tl.maximum(sums, TINY)
    else:
        new = old * weight / (old * sums + epsilon)
    return new


@triton.jit
def _step_back(grad, new, old, weight, epsilon, EXACT: tl.constexpr):
    """Gradients of ``new = old * weight / (old * sum + epsilon)`` for the sum, the weight and ``old``."""
    share = tl.where(weight > 0, new / tl.where(weight > 0, weight, 1.0), 0.0)
    if EXACT:
        dold = tl.zeros_like(grad)
    else:
        over = tl.where(old > 0, share / tl.maximum(old, TINY), 0.0)
        dold = grad * epsilon * weight * over * over
    return -grad * new * share, grad * share, dold


@triton.jit
def _places(n, m, C, P: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    """Image, captions, regions and words of a program, and which of its rows and columns there are."""
    blocks = tl.cdiv(C, P)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks) * P + tl.arange(0, P)
    i, j = tl.arange(0, N), tl.arange(0, M)
    in_rows = (c < C)[:, None] & (i < n)[None, :]
    in_columns = (c < C)[:, None] & (j < m)[None, :]
    return image, c, i, j, in_rows, in_columns


@triton.jit
def forward(
    s_at, p_at, q_at, out_at, us_at, vs_at,
    n, m, C, sb, sn, sm, sc, pb, pn, pc, qb, qm, qc, ub, vb, ut, vt,
    passes, skip, lam_inverse, constant, epsilon,
    EXACT: tl.constexpr, KEPT: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Scores (B, C); the scalings of all passes into us (T, B, n, C) and vs (T, B, m, C)."""
    image, c, i, j, in_rows, in_columns = _places(n, m, C, P, N, M)
    inside = in_rows[:, :, None] & in_columns[:, None, :]
    entries = image * sb + c[:, None, None] * sc + i[None, :, None] * sn + j[None, None, :] * sm
    s, k, p, q, v = _problem(
        s_at, p_at, q_at, entries, inside,
        image * pb + c[:, None] * pc + i[None, :] * pn, in_rows,
        image * qb + c[:, None] * qc + j[None, :] * qm, in_columns,
        lam_inverse, constant, EXACT,
    )  # fmt: skip
    u = tl.full((P, N), 1.0, tl.float32)
    rows = image * ub + i[None, :] * C + c[:, None]
    columns = image * vb + j[None, :] * C + c[:, None]
    for _ in range(passes):
        u = _update(u, p, tl.sum(k * v[:, None, :], 2), epsilon, EXACT)
        v = _update(v, q, tl.sum(k * u[:, :, None], 1), epsilon, EXACT)
        if KEPT:
            tl.store(us_at + rows, u, mask=in_rows)
            tl.store(vs_at + columns, v, mask=in_columns)
            rows += ut
            columns += vt
    plan = k * u[:, :, None] * v[:, None, :]
    counted = (i >= skip)[None, :, None] & (j >= skip)[None, None, :]
    score = tl.sum(tl.sum(tl.where(counted, plan * s, 0.0), 2), 1)
    tl.store(out_at + image * C + c, score, mask=c < C)


@triton.jit
def backward(
    s_at, p_at, q_at, grad_at, us_at, vs_at, ds_at, dp_at, dq_at,
    n, m, C, sb, sn, sm, sc, pb, pn, pc, qb, qm, qc, ub, vb, ut, vt,
    passes, skip, lam_inverse, constant, epsilon,
    EXACT: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Gradients for similarities (B, n, m, C) and weights (B, n, C), (B, m, C)."""
    # Plan: 1. the kernel again; 2. the gradients of the scores for the plan, the last u and the last v;
    # 3. the passes in reverse, each of which adds an outer product to the kernel's gradient; 4. from the
    # kernel to the similarities, with the score's own dependence on them.
    image, c, i, j, in_rows, in_columns = _places(n, m, C, P, N, M)
    inside = in_rows[:, :, None] & in_columns[:, None, :]
    entries = image * sb + c[:, None, None] * sc + i[None, :, None] * sn + j[None, None, :] * sm
    s, k, p, q, start = _problem(
        s_at, p_at, q_at, entries, inside,
        image * pb + c[:, None] * pc + i[None, :] * pn, in_rows,
        image * qb + c[:, None] * qc + j[None, :] * qm, in_columns,
        lam_inverse, constant, EXACT,
    )  # fmt: skip
    at = image * n * m * C + (i[None, :, None] * m + j[None, None, :]) * C + c[:, None, None]
    rows = image * ub + i[None, :] * C + c[:, None]
    columns = image * vb + j[None, :] * C + c[:, None]
    u = tl.load(us_at + rows + (passes - 1) * ut, mask=in_rows, other=0.0)
    v = tl.load(vs_at + columns + (passes - 1) * vt, mask=in_columns, other=0.0)
    scaled = u[:, :, None] * v[:, None, :]
    grad = tl.load(grad_at + image * C + c, mask=c < C, other=0.0)
    counted = (i >= skip)[None, :, None] & (j >= skip)[None, None, :]
    pull = tl.where(counted, grad[:, None, None], 0.0)
    also = pull * scaled * k
    pull = pull * s
    du, dv = tl.sum(pull * k * v[:, None, :], 2), tl.sum(pull * k * u[:, :, None], 1)
    of_k = pull * scaled
    dp, dq = tl.zeros_like(p), tl.zeros_like(q)
    for back in range(passes):
        t = passes - 1 - back
        later_rows = tl.full((P, N), 0, tl.int32) + t > 0
        later_columns = tl.full((P, M), 0, tl.int32) + t > 0
        u0 = tl.load(us_at + rows + (t - 1) * ut, mask=in_rows & later_rows, other=0.0)
        u0 = tl.where(later_rows, u0, 1.0)
        v0 = tl.load(vs_at + columns + (t - 1) * vt, mask=in_columns & later_columns, other=0.0)
        v0 = tl.where(later_columns, v0, start)
        dsum, share, dv = _step_back(dv, v, v0, q, epsilon, EXACT)
        of_k += u[:, :, None] * dsum[:, None, :]
        dq += share
        du += tl.sum(k * dsum[:, None, :], 2)
        dsum, share, du = _step_back(du, u, u0, p, epsilon, EXACT)
        of_k += dsum[:, :, None] * v0[:, None, :]
        dp += share
        dv += tl.sum(k * dsum[:, :, None], 1)
        u, v = u0, v0
    ds = of_k * k
    if not EXACT:
        ds -= k * tl.sum(tl.sum(ds, 2), 1)[:, None, None]
    tl.store(ds_at + at, ds * lam_inverse + also, mask=inside)
    tl.store(dp_at + rows, dp, mask=in_rows)
    tl.store(dq_at + columns, dq, mask=in_columns)


# -- the published rule of partial transport -----------------------------------------------------------------


@triton.jit
def _log_square(ratio):
    """Square of a ratio's logarithm to all digits of float32, also near 1, where the GPU's has few."""
    d = (ratio - 1.0).to(tl.float32)
    s = d / (2.0 + d)
    t = s * s
    series = 2.0 * s * (1.0 + t * (1.0 / 3 + t * (1.0 / 5 + t / 7)))
    step = tl.where(tl.abs(s) < 0.1, series, tl.log(ratio.to(tl.float32)))
    return step * step


@triton.jit
def published(
    cost_at, mask_at, p_at, q_at, mass_at, reg_at,
    plan_at, f_at, g_at, slacks_at, errors_at, iterations_at, converged_at,
    ab, an, am, pb, pn, qb, qm, wb, K, n, m, tol, max_iter, widest, honest, rounding,
    MASKED: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """All passes of one problem (n, m) of K in float64; a NaN plan where this loop cannot answer for it."""
    # Plan: 1. the problem, with the largest cost of the official code; 2. whether its range is safe and its
    # mass can flow: no more than the weights, and no more than either a bound from the numbers of forbidden
    # entries or one feasible flow; 3. passes until the row potential, the dummy's too, moves by less than
    # tol; 4. plan, potentials, and errors of the plan as stored.
    problem = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, N), tl.arange(0, M)
    in_rows, in_columns = i < n, j < m
    inside = in_rows[:, None] & in_columns[None, :]
    entries = problem * n * m + i[:, None] * m + j[None, :]
    c = tl.load(cost_at + entries, mask=inside, other=0.0).to(tl.float64)
    p = tl.load(p_at + problem * pb + i * pn, mask=in_rows, other=0.0)
    q = tl.load(q_at + problem * qb + j * qm, mask=in_columns, other=0.0)
    mass, reg = tl.load(mass_at + problem * wb), tl.load(reg_at)
    valid = inside
    if MASKED:
        allowed_at = mask_at + problem * ab + i[:, None] * an + j[None, :] * am
        valid = inside & (tl.load(allowed_at, mask=inside, other=0) != 0)
    live, filled = p > 0, q > 0
    infinite = ~(c < float("inf"))  # or NaN
    spoilt = tl.max(tl.max(infinite.to(tl.int32), 1))
    top = tl.max(tl.max(tl.where(inside & (valid | (spoilt == 0)), c, float("-inf")), 1))
    low = tl.min(tl.min(tl.where(valid, c, float("inf")), 1))

    in_range = tl.maximum(top - low, tl.abs(top + low)) <= widest * reg
    in_range &= tl.max(tl.max((valid & infinite).to(tl.int32), 1)) == 0
    p_sum, q_sum = tl.sum(p), tl.sum(q)
    p_sum = tl.where(tl.abs(p_sum - 1.0) < 1e-12, 1.0, p_sum)
    q_sum = tl.where(tl.abs(q_sum - 1.0) < 1e-12, 1.0, q_sum)
    most = tl.minimum(p_sum, q_sum)
    flow = most
    if MASKED:
        closed = (live[:, None] & filled[None, :] & ~valid).to(tl.int32)
        in_row, in_column = tl.max(tl.sum(closed, 1)), tl.max(tl.sum(closed, 0))
        in_range &= (in_row < tl.sum(filled.to(tl.int32))) & (in_column < tl.sum(live.to(tl.int32)))
        reach = tl.where(valid, q[None, :], 0.0)
        share = p / tl.where(live, tl.sum(reach, 1), 1.0)
        load = tl.minimum(tl.sum(reach * share[:, None], 0), q)
        cut = p_sum - in_column * tl.max(p) + q_sum - in_row * tl.max(q)
        flow = tl.minimum(most, tl.maximum(cut, tl.sum(load)))
    flows = (mass >= 0) & (mass <= flow + flow * rounding)
    flows &= (tl.min(p) >= 0) & (tl.min(q) >= 0) & (p_sum < float("inf")) & (q_sum < float("inf"))
    good = in_range & flows
    to_column, to_row = tl.maximum(p_sum - mass, 0.0), tl.maximum(q_sum - mass, 0.0)

    k = tl.where(valid, tl.exp((low - c) * (1.0 / reg)), 0.0)
    corner = tl.exp(-(low + top) / reg)
    threshold = (tol / reg).to(tl.float32)
    a, b = tl.zeros((N,), tl.float64), tl.where(in_columns, 1.0, 0.0).to(tl.float64)
    alpha, beta = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    old, old_dummy = tl.full((N,), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
    passes, moved = tl.full((), 0, tl.int32), tl.full((), float("inf"), tl.float32)
    last = tl.where(good, max_iter, 0)
    while (passes < last) & (moved >= threshold):
        sums = tl.where(live, tl.sum(k * b[None, :], 1) + beta, 1.0)
        inverse = 1.0 / sums
        a = p * inverse
        dummy = tl.sum(b) + corner * beta
        alpha = to_row / dummy
        b = q / tl.where(filled, tl.sum(k * a[:, None], 0) + alpha, 1.0)
        beta = to_column / (tl.sum(a) + corner * alpha)
        steps = tl.sum(_log_square(old * inverse)) + tl.where(to_row > 0, _log_square(old_dummy / dummy), 0.0)
        moved = tl.where(passes > 0, tl.sqrt(steps), float("inf"))
        old, old_dummy = sums, dummy
        passes += 1

    fault = tl.where(good, 0.0, float("nan"))
    plan = (k * a[:, None] * b[None, :] + fault).to(plan_at.dtype.element_ty)
    tl.store(plan_at + entries, plan, mask=inside)
    plan = plan.to(tl.float64)
    tl.store(f_at + problem * n + i, reg * tl.log(a) + low + fault, mask=in_rows)
    tl.store(g_at + problem * m + j, reg * tl.log(b) + fault, mask=in_columns)
    tl.store(slacks_at + problem, reg * tl.log(alpha) + fault)
    tl.store(slacks_at + K + problem, reg * tl.log(beta) - low + fault)
    rows, scale = tl.sum(plan, 1), tl.where(mass > 0, mass, 1.0)
    off = tl.sum(tl.abs(rows + a * beta - p)) / scale
    off_columns = tl.sum(tl.abs(tl.sum(plan, 0) + b * alpha - q)) / scale
    tl.store(errors_at + problem, off)
    tl.store(errors_at + K + problem, off_columns)
    met = (off <= honest) & (off_columns <= honest) & (tl.abs(tl.sum(rows) - mass) / scale <= honest)
    tl.store(converged_at + problem, met.to(tl.uint8))
    tl.store(iterations_at + problem, passes.to(tl.int64))
