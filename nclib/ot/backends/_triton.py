"""Triton kernels of :mod:`nclib.ot.backends.fused` and :mod:`nclib.ot.backends.fused_partial`.

They alone import this file, where triton is installed. Small problems: a program holds a tile (P, N, M) in
registers, P problems whose entries lie side by side in memory, n regions and m words padded to powers of two.
The names are those of :mod:`nclib.ot.batched`. Partial transport: a program solves one problem; the names
are those of :mod:`nclib.ot.backends.cpu_extended`.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

FAR = tl.constexpr(-1e6)  # exponents where nothing is allowed
DEEPEST = tl.constexpr(-86.0)  # smallest exponent, as in nclib.ot.batched
TINY = tl.constexpr(1.1754943508222875e-38)  # smallest normal float32
ROUNDING = tl.constexpr(2.0**-24)  # of float32


@triton.jit
def _problem(
    s_at, p_at, q_at, mask_at, entries, inside, rows_at, in_rows, columns_at, in_columns,
    inverse, shift, constant,
    EXACT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Similarities, kernel, weights, and the first v of a tile."""
    s = tl.load(s_at + entries, mask=inside, other=0.0)
    p = tl.load(p_at + rows_at, mask=in_rows, other=0.0)  # (P, N)
    q = tl.load(q_at + columns_at, mask=in_columns, other=0.0)  # (P, M)
    valid = inside & (p > 0)[:, :, None] & (q > 0)[:, None, :]
    if MASKED:
        valid = valid & (tl.load(mask_at + entries, mask=inside, other=0) != 0)
    if EXACT:  # a maximum per row and one per column, which the first v gives back
        x = tl.where(valid, s * inverse, FAR)
        x = tl.where(valid, x - tl.max(x, 2)[:, :, None], FAR)
        top = tl.max(x, 1)
        x = x - top[:, None, :]
        v = tl.where(q > 0, tl.exp(tl.maximum(top, DEEPEST)), 0.0)
        k = tl.where(valid, tl.exp(tl.maximum(x, DEEPEST)), 0.0)
    else:  # the kernel divided by its total
        v = tl.where(q > 0, 1.0, 0.0)
        k = tl.where(valid, tl.exp((s - shift) * inverse), 0.0)
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
    s_at, p_at, q_at, mask_at, out_at, us_at, vs_at,
    n, m, C, sb, sn, sm, sc, pb, pn, pc, qb, qm, qc, ub, vb, ut, vt,
    passes, skip, lam_inverse, shift, constant, epsilon,
    EXACT: tl.constexpr, MASKED: tl.constexpr, SCORES: tl.constexpr, KEPT: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Scores (B, C) or plans (B, n, m, C); the scalings of all passes into us (T, B, n, C) and vs."""
    image, c, i, j, in_rows, in_columns = _places(n, m, C, P, N, M)
    inside = in_rows[:, :, None] & in_columns[:, None, :]
    entries = image * sb + c[:, None, None] * sc + i[None, :, None] * sn + j[None, None, :] * sm
    s, k, p, q, v = _problem(
        s_at, p_at, q_at, mask_at, entries, inside,
        image * pb + c[:, None] * pc + i[None, :] * pn, in_rows,
        image * qb + c[:, None] * qc + j[None, :] * qm, in_columns,
        lam_inverse, shift, constant, EXACT, MASKED,
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
    if SCORES:
        counted = (i >= skip)[None, :, None] & (j >= skip)[None, None, :]
        score = tl.sum(tl.sum(tl.where(counted, plan * s, 0.0), 2), 1)
        tl.store(out_at + image * C + c, score, mask=c < C)
    else:
        at = image * n * m * C + (i[None, :, None] * m + j[None, None, :]) * C + c[:, None, None]
        tl.store(out_at + at, plan, mask=inside)


@triton.jit
def backward(
    s_at, p_at, q_at, mask_at, grad_at, us_at, vs_at, ds_at, dp_at, dq_at,
    n, m, C, sb, sn, sm, sc, pb, pn, pc, qb, qm, qc, ub, vb, ut, vt,
    passes, skip, lam_inverse, shift, constant, epsilon,
    EXACT: tl.constexpr, MASKED: tl.constexpr, SCORES: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Gradients for similarities (B, n, m, C) and weights (B, n, C), (B, m, C)."""
    # Plan: 1. the kernel again; 2. the gradients of what was asked for the plan, the last u and the last v;
    # 3. the passes in reverse, each of which adds an outer product to the kernel's gradient; 4. from the
    # kernel to the similarities, with the score's own dependence on them.
    image, c, i, j, in_rows, in_columns = _places(n, m, C, P, N, M)
    inside = in_rows[:, :, None] & in_columns[:, None, :]
    entries = image * sb + c[:, None, None] * sc + i[None, :, None] * sn + j[None, None, :] * sm
    s, k, p, q, start = _problem(
        s_at, p_at, q_at, mask_at, entries, inside,
        image * pb + c[:, None] * pc + i[None, :] * pn, in_rows,
        image * qb + c[:, None] * qc + j[None, :] * qm, in_columns,
        lam_inverse, shift, constant, EXACT, MASKED,
    )  # fmt: skip
    at = image * n * m * C + (i[None, :, None] * m + j[None, None, :]) * C + c[:, None, None]
    rows = image * ub + i[None, :] * C + c[:, None]
    columns = image * vb + j[None, :] * C + c[:, None]
    u = tl.load(us_at + rows + (passes - 1) * ut, mask=in_rows, other=0.0)
    v = tl.load(vs_at + columns + (passes - 1) * vt, mask=in_columns, other=0.0)
    scaled = u[:, :, None] * v[:, None, :]
    if SCORES:
        grad = tl.load(grad_at + image * C + c, mask=c < C, other=0.0)
        counted = (i >= skip)[None, :, None] & (j >= skip)[None, None, :]
        pull = tl.where(counted, grad[:, None, None], 0.0)
        also = pull * scaled * k
        pull = pull * s
    else:
        pull = tl.load(grad_at + at, mask=inside, other=0.0)
        also = tl.zeros_like(k)
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


# -- partial transport ---------------------------------------------------------------------------------------


@triton.jit
def _costs(cost_at, mask_at, p_at, pn, rows, columns, n, m, q, MASKED: tl.constexpr):
    """Costs of a block of rows, and which are allowed between a row and a column with weight."""
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    entries = rows[:, None] * m + columns[None, :]
    c = tl.load(cost_at + entries, mask=inside, other=0.0)
    p = tl.load(p_at + rows * pn, mask=rows < n, other=0.0)
    valid = inside & (p > 0)[:, None] & (q > 0)[None, :]
    if MASKED:
        valid = valid & (tl.load(mask_at + entries, mask=inside, other=0) != 0)
    return c, valid, p


@triton.jit
def _gibbs(c, valid, lowest, inverse):
    return tl.where(valid, tl.exp((lowest - c) * inverse), 0.0)


@triton.jit
def _stored(plan_at, rows, columns, n, m):
    """A block of the kernel that was stored in the place of the plan."""
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    return tl.load(plan_at + rows[:, None] * m + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _row_sums(k, b, plan_at, f_at, i, j, n, m, HELD: tl.constexpr, R: tl.constexpr):
    """Kernel times ``b``; the rows that are not held go through ``f_at``."""
    if HELD:
        t = tl.sum(k * b[None, :], 1)
    else:
        for first in range(0, n, R):
            rows = first + tl.arange(0, R)
            sums = tl.sum(_stored(plan_at, rows, j, n, m) * b[None, :], 1)
            tl.store(f_at + rows, sums.to(tl.float64), mask=rows < n)
        tl.debug_barrier()
        t = tl.load(f_at + i, mask=i < n, other=0.0).to(tl.float32)
        tl.debug_barrier()
    return t


@triton.jit
def _column_sums(k, a, plan_at, f_at, i, j, n, m, HELD: tl.constexpr, R: tl.constexpr, M: tl.constexpr):
    """``a`` times the kernel, in the same way."""
    if HELD:
        s = tl.sum(k * a[:, None], 0)
    else:
        tl.store(f_at + i, a.to(tl.float64), mask=i < n)
        tl.debug_barrier()
        products = tl.zeros((R, M), tl.float32)  # one sum over rows at the end: each one needs barriers
        for first in range(0, n, R):
            rows = first + tl.arange(0, R)
            own = tl.load(f_at + rows, mask=rows < n, other=0.0).to(tl.float32)
            products += _stored(plan_at, rows, j, n, m) * own[:, None]
        s = tl.sum(products, 0)
        tl.debug_barrier()
    return s


@triton.jit
def _scalings(sums, weight, z):
    return tl.where(weight > 0, weight / (sums + z), 0.0)


@triton.jit
def _scalar(sums, weight, mass, z, steps):
    """Newton steps in log z on ``sum(sums * weight / (sums + z)) = mass``; 0 stays 0."""
    for _ in range(steps):
        x = _scalings(sums, weight, z)
        slope = z * tl.sum(tl.where(weight > 0, x / (sums + z) * sums, 0.0))
        step = tl.where(slope > 0, (tl.sum(x * sums) - mass) / slope, 0.0)
        z *= tl.exp(tl.minimum(tl.maximum(step, -3.0), 3.0))
    return z


@triton.jit
def _first_scalar(sums, weight, mass, slack):
    """The scalar from a guess as if all sums were their weighted mean."""
    return _scalar(sums, weight, mass, tl.sum(weight * sums) / (slack + mass) * slack / mass, 6)


@triton.jit
def _without_rounding(weight, mass, near):
    """Weights scaled by a rounding error at most, so that no slack is exactly no slack; and the slack."""
    total = tl.sum(weight)
    full = tl.abs(total - mass) <= near * total
    return weight * tl.where(full, mass / total, 1.0), tl.where(full, 0.0, total - mass)


@triton.jit
def _potential(scalings, weight, reg, shift):
    """``reg * log(scalings) + shift``, minus infinity without weight."""
    log = tl.log(tl.where(weight > 0, scalings, 1.0).to(tl.float64))
    return tl.where(weight > 0, reg * log + shift, float("-inf"))


@triton.jit
def partial(
    cost_at, mask_at, p_at, q_at, mass_at, plan_at, f_at, g_at, f_slack_at, g_slack_at, error_at, passes_at,
    good_at, n, m, pb, pn, qb, qm, reg, inverse, tol, mass_tol, near, cap,
    MASKED: tl.constexpr, HELD: tl.constexpr, R: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Plan (n, m), potentials, error and passes of one extended problem, and whether they are good."""
    # Plan: 1. lowest cost, and rows and columns with an allowed entry; 2. the kernel, held, or stored in the
    # place of the plan; 3. passes, columns then rows, each side solved with its scalar, until the columns'
    # error over what their contraction leaves is small; 4. the mass exact in float64; 5. verdict and plan.
    problem = tl.program_id(0).to(tl.int64)
    cost_at += problem * n * m
    mask_at += problem * n * m
    plan_at += problem * n * m
    p_at += problem * pb
    f_at += problem * n
    g_at += problem * m
    i, j = tl.arange(0, N), tl.arange(0, M)
    q = tl.load(q_at + problem * qb + j * qm, mask=j < m, other=0.0)
    mass = tl.load(mass_at + problem)
    lowest, sound = tl.full((), float("inf"), tl.float32), tl.full((), 1, tl.int32)
    reached = tl.zeros((M,), tl.int32)
    for first in range(0, n, R):
        rows = first + tl.arange(0, R)
        c, valid, p = _costs(cost_at, mask_at, p_at, pn, rows, j, n, m, q, MASKED)
        lowest = tl.minimum(lowest, tl.min(tl.min(tl.where(valid, c, float("inf")), 1)))
        finite = tl.where(valid & ~(tl.abs(c) < float("inf")), 0, 1)
        sound = tl.minimum(sound, tl.min(tl.min(finite, 1)))
        reached = tl.maximum(reached, tl.max(valid.to(tl.int32), 0))
        tl.store(f_at + rows, tl.where(tl.max(valid.to(tl.int32), 1) > 0, p, 0.0), mask=rows < n)
    tl.debug_barrier()
    p64, slack_p = _without_rounding(tl.load(f_at + i, mask=i < n, other=0.0), mass, near)
    q64, slack_q = _without_rounding(tl.where(reached > 0, q, 0.0), mass, near)
    tl.debug_barrier()

    if HELD:
        c, valid, _ = _costs(cost_at, mask_at, p_at, pn, i, j, n, m, q, MASKED)
        k = _gibbs(c, valid, lowest, inverse)
    else:
        k = lowest  # not used
        for first in range(0, n, R):
            rows = first + tl.arange(0, R)
            c, valid, _ = _costs(cost_at, mask_at, p_at, pn, rows, j, n, m, q, MASKED)
            inside = (rows < n)[:, None] & (j < m)[None, :]
            block = _gibbs(c, valid, lowest, inverse)
            tl.store(plan_at + rows[:, None] * m + j[None, :], block, mask=inside)
        tl.debug_barrier()

    p, q, moved = p64.to(tl.float32), q64.to(tl.float32), mass.to(tl.float32)
    to_column, to_row = slack_p.to(tl.float32), slack_q.to(tl.float32)
    b = q
    t = _row_sums(k, b, plan_at, f_at, i, j, n, m, HELD, R)
    beta = _first_scalar(t, p, moved, to_column)
    s = _column_sums(k, _scalings(t, p, beta), plan_at, f_at, i, j, n, m, HELD, R, M)
    alpha = _first_scalar(s, q, moved, to_row)
    spread, away = tl.full((), 1.0, tl.float32), tl.full((), float("inf"), tl.float32)
    before, passes = tl.full((), float("inf"), tl.float32), tl.full((), 1, tl.int32)
    able = (sound > 0) & (slack_p >= 0) & (slack_q >= 0)  # finite costs, and a mass that can move
    able &= tol * moved > ROUNDING * (moved + to_row)  # the tolerance is above the rounding
    cap = tl.where(able, cap, 0)
    while (away > tol) & (passes < cap):
        b = _scalings(s, q, alpha)
        t = _row_sums(k, b, plan_at, f_at, i, j, n, m, HELD, R)
        beta = _scalar(t, p, moved, beta, 1)
        s = _column_sums(k, _scalings(t, p, beta), plan_at, f_at, i, j, n, m, HELD, R, M)
        off = tl.sum(tl.abs(b * (s + to_row / tl.sum(b)) - q)) / moved
        # the distance to the optimum is the error over 1 - rate; rounding ends what falls no more
        spread = tl.where(off < before, tl.minimum(before / (before - off), 1e3), spread)
        spread = tl.where(before < float("inf"), spread, 1.0)
        away = tl.where(off <= 0.1 * tol, off, off * spread)
        before = off
        alpha = _scalar(s, q, moved, alpha, 1)
        passes += 1

    t64 = t.to(tl.float64)
    beta64 = _scalar(t64, p64, mass, beta.to(tl.float64), 8)
    a64 = _scalings(t64, p64, beta64)
    a = a64.to(tl.float32)
    s = _column_sums(k, a, plan_at, f_at, i, j, n, m, HELD, R, M)
    total = tl.sum(b)
    alpha = to_row / total
    error = tl.sum(tl.abs(b * (s + alpha) - q)) / moved
    hidden = TINY * tl.sum(a) * total  # at most what the smallest kernel entries lost
    good = (away <= tol) & (error <= tol) & (hidden <= 0.1 * tol * moved)
    good &= tl.abs(tl.sum(a64 * t64) - mass) <= mass_tol * mass

    if HELD:
        inside = (i < n)[:, None] & (j < m)[None, :]
        tl.store(plan_at + i[:, None] * m + j[None, :], k * a[:, None] * b[None, :], mask=inside)
    else:  # the rows' scalings are in the place of f
        for first in range(0, n, R):
            rows = first + tl.arange(0, R)
            own = tl.load(f_at + rows, mask=rows < n, other=0.0).to(tl.float32)
            block = _stored(plan_at, rows, j, n, m) * own[:, None] * b[None, :]
            inside = (rows < n)[:, None] & (j < m)[None, :]
            tl.store(plan_at + rows[:, None] * m + j[None, :], block, mask=inside)
        tl.debug_barrier()
    tl.store(f_at + i, _potential(a64, p64, reg, lowest), mask=i < n)
    tl.store(g_at + j, _potential(b, q64, reg, 0.0), mask=j < m)
    tl.store(f_slack_at + problem, _potential(alpha, slack_q, reg, 0.0))
    tl.store(g_slack_at + problem, _potential(beta64, slack_p, reg, -lowest))
    tl.store(error_at + problem, error.to(tl.float64))
    tl.store(passes_at + problem, passes.to(tl.int64))
    tl.store(good_at + problem, good.to(tl.uint8))
