"""The Triton kernels of partial transport, which :mod:`nclib.ot.kernels` launches.

A program computes one problem, in float64, its m columns padded to a power of two. :func:`published` holds
all n rows in registers. :func:`published_in_tiles` and :func:`accurate` take some rows at a time, and keep
the kernel matrix in memory.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


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
def _loaded(cost_at, mask_at, problem, i, j, ab, an, am, n, m, MASKED: tl.constexpr):
    """Costs of the rows i and columns j of a problem in float64, which are inside, and which are allowed."""
    inside = (i < n)[:, None] & (j < m)[None, :]
    c = tl.load(cost_at + problem * n * m + i[:, None] * m + j[None, :], mask=inside, other=0.0)
    valid = inside
    if MASKED:
        allowed_at = mask_at + problem * ab + i[:, None] * an + j[None, :] * am
        valid = inside & (tl.load(allowed_at, mask=inside, other=0) != 0)
    return c.to(tl.float64), inside, valid


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
    c, inside, valid = _loaded(cost_at, mask_at, problem, i, j, ab, an, am, n, m, MASKED)
    p = tl.load(p_at + problem * pb + i * pn, mask=in_rows, other=0.0)
    q = tl.load(q_at + problem * qb + j * qm, mask=in_columns, other=0.0)
    mass, reg = tl.load(mass_at + problem * wb), tl.load(reg_at)
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
    tl.store(plan_at + problem * n * m + i[:, None] * m + j[None, :], plan, mask=inside)
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


@triton.jit
def published_in_tiles(
    cost_at, mask_at, p_at, q_at, mass_at, reg_at,
    plan_at, f_at, g_at, slacks_at, errors_at, iterations_at, converged_at, kernel_at,
    ab, an, am, pb, pn, qb, qm, wb, K, n, m, tol, max_iter, widest, honest, rounding, first,
    MASKED: tl.constexpr, N: tl.constexpr, M: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """What :func:`published` does, N rows at a time; problems from ``first`` on, each with its kernel."""
    # Plan: as there, each step a sweep over the rows. A pass reads the kernel once: a tile's row potentials
    # give its part of the column sums. The sums of the rows lie in the memory of the potentials f, which the
    # last sweep writes. Barriers: threads read what others wrote.
    slot = tl.program_id(0).to(tl.int64)
    problem = first + slot
    tile, j = tl.arange(0, N), tl.arange(0, M)
    in_columns = j < m
    q = tl.load(q_at + problem * qb + j * qm, mask=in_columns, other=0.0)
    filled = q > 0
    mass, reg = tl.load(mass_at + problem * wb), tl.load(reg_at)

    top, top_valid = tl.full((), float("-inf"), tl.float64), tl.full((), float("-inf"), tl.float64)
    low, spoilt, bad = (
        tl.full((), float("inf"), tl.float64),
        tl.full((), 0, tl.int32),
        tl.full((), 0, tl.int32),
    )
    p_sum, p_max = tl.zeros((), tl.float64), tl.full((), float("-inf"), tl.float64)
    p_min, rows_live = tl.full((), float("inf"), tl.float64), tl.full((), 0, tl.int32)
    in_row, closed_columns = tl.full((), 0, tl.int32), tl.zeros((M,), tl.int32)
    load = tl.zeros((M,), tl.float64)
    for start in range(0, TILES * N, N):
        i = start + tile
        in_rows = i < n
        c, inside, valid = _loaded(cost_at, mask_at, problem, i, j, ab, an, am, n, m, MASKED)
        p = tl.load(p_at + problem * pb + i * pn, mask=in_rows, other=0.0)
        live = p > 0
        infinite = ~(c < float("inf"))  # or NaN
        spoilt = tl.maximum(spoilt, tl.max(tl.max(infinite.to(tl.int32), 1)))
        bad = tl.maximum(bad, tl.max(tl.max((valid & infinite).to(tl.int32), 1)))
        top = tl.maximum(top, tl.max(tl.max(tl.where(inside & ~infinite, c, float("-inf")), 1)))
        top_valid = tl.maximum(top_valid, tl.max(tl.max(tl.where(valid, c, float("-inf")), 1)))
        low = tl.minimum(low, tl.min(tl.min(tl.where(valid, c, float("inf")), 1)))
        p_sum += tl.sum(p)
        p_max = tl.maximum(p_max, tl.max(tl.where(in_rows, p, float("-inf"))))
        p_min = tl.minimum(p_min, tl.min(tl.where(in_rows, p, float("inf"))))
        rows_live += tl.sum(live.to(tl.int32))
        if MASKED:
            closed = (live[:, None] & filled[None, :] & ~valid).to(tl.int32)
            in_row = tl.maximum(in_row, tl.max(tl.sum(closed, 1)))
            closed_columns += tl.sum(closed, 0)
            reach = tl.where(valid, q[None, :], 0.0)
            share = p / tl.where(live, tl.sum(reach, 1), 1.0)
            load += tl.sum(reach * share[:, None], 0)
    top = tl.where(spoilt == 0, top, top_valid)

    in_range = (tl.maximum(top - low, tl.abs(top + low)) <= widest * reg) & (bad == 0)
    q_sum = tl.sum(q)
    p_sum = tl.where(tl.abs(p_sum - 1.0) < 1e-12, 1.0, p_sum)
    q_sum = tl.where(tl.abs(q_sum - 1.0) < 1e-12, 1.0, q_sum)
    flow = tl.minimum(p_sum, q_sum)
    if MASKED:
        in_column = tl.max(closed_columns)
        in_range &= (in_row < tl.sum(filled.to(tl.int32))) & (in_column < rows_live)
        cut = p_sum - in_column * p_max + q_sum - in_row * tl.max(q)
        flow = tl.minimum(flow, tl.maximum(cut, tl.sum(tl.minimum(load, q))))
    flows = (mass >= 0) & (mass <= flow + flow * rounding)
    flows &= (p_min >= 0) & (tl.min(q) >= 0) & (p_sum < float("inf")) & (q_sum < float("inf"))
    good = in_range & flows
    to_column, to_row = tl.maximum(p_sum - mass, 0.0), tl.maximum(q_sum - mass, 0.0)

    for start in range(0, TILES * N, N):
        i = start + tile
        c, inside, valid = _loaded(cost_at, mask_at, problem, i, j, ab, an, am, n, m, MASKED)
        k = tl.where(valid, tl.exp((low - c) * (1.0 / reg)), 0.0)
        tl.store(kernel_at + slot * n * m + i[:, None] * m + j[None, :], k, mask=inside)
        tl.store(f_at + problem * n + i, tl.full((N,), 1.0, tl.float64), mask=i < n)
    tl.debug_barrier()
    corner = tl.exp(-(low + top) / reg)
    threshold = (tol / reg).to(tl.float32)
    b = tl.where(in_columns, 1.0, 0.0).to(tl.float64)
    alpha, beta = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    old_dummy = tl.full((), 1.0, tl.float64)
    passes, moved = tl.full((), 0, tl.int32), tl.full((), float("inf"), tl.float32)
    last = tl.where(good, max_iter, 0)
    while (passes < last) & (moved >= threshold):
        sent, steps = tl.zeros((), tl.float64), tl.zeros((), tl.float32)
        reached = tl.zeros((M,), tl.float64)
        for start in range(0, TILES * N, N):
            i = start + tile
            in_rows = i < n
            inside = in_rows[:, None] & in_columns[None, :]
            k = tl.load(kernel_at + slot * n * m + i[:, None] * m + j[None, :], mask=inside, other=0.0)
            p = tl.load(p_at + problem * pb + i * pn, mask=in_rows, other=0.0)
            old = tl.load(f_at + problem * n + i, mask=in_rows, other=1.0)
            sums = tl.where(p > 0, tl.sum(k * b[None, :], 1) + beta, 1.0)
            a = p / sums
            sent += tl.sum(a)
            reached += tl.sum(k * a[:, None], 0)
            steps += tl.sum(tl.where(in_rows, _log_square(old / sums), 0.0))
            tl.debug_barrier()
            tl.store(f_at + problem * n + i, sums, mask=in_rows)
        dummy = tl.sum(b) + corner * beta
        alpha = to_row / dummy
        b = q / tl.where(filled, reached + alpha, 1.0)
        beta = to_column / (sent + corner * alpha)
        steps += tl.where(to_row > 0, _log_square(old_dummy / dummy), 0.0)
        moved = tl.where(passes > 0, tl.sqrt(steps), float("inf"))
        old_dummy = dummy
        passes += 1
        tl.debug_barrier()

    fault = tl.where(good, 0.0, float("nan"))
    scale = tl.where(mass > 0, mass, 1.0)
    off, sent, reached = tl.zeros((), tl.float64), tl.zeros((), tl.float64), tl.zeros((M,), tl.float64)
    for start in range(0, TILES * N, N):
        i = start + tile
        in_rows = i < n
        inside = in_rows[:, None] & in_columns[None, :]
        k = tl.load(kernel_at + slot * n * m + i[:, None] * m + j[None, :], mask=inside, other=0.0)
        p = tl.load(p_at + problem * pb + i * pn, mask=in_rows, other=0.0)
        a = p / tl.load(f_at + problem * n + i, mask=in_rows, other=1.0)
        plan = (k * a[:, None] * b[None, :] + fault).to(plan_at.dtype.element_ty)
        tl.store(plan_at + problem * n * m + i[:, None] * m + j[None, :], plan, mask=inside)
        plan = tl.where(inside, plan.to(tl.float64), 0.0)
        rows = tl.sum(plan, 1)
        off += tl.sum(tl.abs(rows + a * beta - p))
        sent += tl.sum(rows)
        reached += tl.sum(plan, 0)
        tl.debug_barrier()
        tl.store(f_at + problem * n + i, reg * tl.log(a) + low + fault, mask=in_rows)
    off, off_columns = off / scale, tl.sum(tl.abs(reached + b * alpha - q)) / scale
    tl.store(g_at + problem * m + j, reg * tl.log(b) + fault, mask=in_columns)
    tl.store(slacks_at + problem, reg * tl.log(alpha) + fault)
    tl.store(slacks_at + K + problem, reg * tl.log(beta) - low + fault)
    tl.store(errors_at + problem, off)
    tl.store(errors_at + K + problem, off_columns)
    met = (off <= honest) & (off_columns <= honest) & (tl.abs(sent - mass) / scale <= honest)
    tl.store(converged_at + problem, met.to(tl.uint8))
    tl.store(iterations_at + problem, passes.to(tl.int64))


@triton.jit
def _solved(t, w, mass, z, steps, enough):
    """Newton in log z on ``sum(w t / (t + z)) = mass`` until a step is below ``enough``; 0 stays 0."""
    taken, step = tl.full((), 0, tl.int32), tl.full((), float("inf"), tl.float64)
    while (taken < steps) & (tl.abs(step) >= enough) & (z > 0):
        level = tl.where(w > 0, t + z, 1.0)
        moved = w * t / level
        slope = z * tl.sum(moved / level)
        step = tl.where(slope > 0, (tl.sum(moved) - mass) / slope, 0.0)
        z *= tl.exp(tl.minimum(tl.maximum(step, -3.0), 3.0))
        taken += 1
    return z


@triton.jit
def accurate(
    cost_at, mask_at, p_at, q_at, mass_at, reg_at,
    plan_at, f_at, g_at, slacks_at, errors_at, iterations_at, converged_at, room_at,
    ab, an, am, pb, pn, qb, qm, wb, K, n, m, tol, max_iter, widest, least, no_slack, mass_tol, first,
    MASKED: tl.constexpr, N: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One problem (n, m) in float64, N rows at a time, to the tolerance; else it does not say "converged"."""
    # Plan: 1. range, and weights of what can be reached, without slack that is only rounding; 2. passes:
    # sums of the rows, their dummy's scalar, row scalings, sums of the columns, their scalar, then the log b
    # that the fixed point's last two residuals extrapolate to (Anderson, of depth 1); 3. the mass to the last
    # digit, the plan and its errors. Each sweep takes N rows of the kernel, which lies in memory with
    # the row weights and scalings behind it. Barriers: threads read what others wrote.
    slot = tl.program_id(0).to(tl.int64)
    problem = first + slot
    tile, j, every = tl.arange(0, N), tl.arange(0, M), tl.arange(0, ROWS)
    in_columns, of_rows = j < m, every < n
    kernel_at = room_at + slot * (n * m + 2 * n)
    weight_at, row_at = kernel_at + n * m, kernel_at + n * m + n
    q = tl.load(q_at + problem * qb + j * qm, mask=in_columns, other=0.0)
    mass, reg = tl.load(mass_at + problem * wb), tl.load(reg_at)
    sane = (mass >= 0) & ((mass >= least) | (mass == 0)) & (tl.min(q) >= 0)

    top, low = tl.full((), float("-inf"), tl.float64), tl.full((), float("inf"), tl.float64)
    bad, reached = tl.full((), 0, tl.int32), tl.zeros((M,), tl.int32)
    for start in range(0, TILES * N, N):
        i = start + tile
        in_rows = i < n
        c, inside, valid = _loaded(cost_at, mask_at, problem, i, j, ab, an, am, n, m, MASKED)
        p = tl.load(p_at + problem * pb + i * pn, mask=in_rows, other=0.0)
        bad = tl.maximum(bad, tl.max(tl.max((valid & ~(tl.abs(c) < float("inf"))).to(tl.int32), 1)))
        bad = tl.maximum(bad, tl.max((in_rows & ~(p >= 0)).to(tl.int32)))
        useful = valid & (p > 0)[:, None] & (q > 0)[None, :]
        top = tl.maximum(top, tl.max(tl.max(tl.where(useful, c, float("-inf")), 1)))
        low = tl.minimum(low, tl.min(tl.min(tl.where(useful, c, float("inf")), 1)))
        reached = tl.maximum(reached, tl.max(useful.to(tl.int32), 0))
        p = tl.where(tl.max(useful.to(tl.int32), 1) > 0, p, 0.0)
        tl.store(weight_at + i, p, mask=in_rows)
    for start in range(0, TILES * N, N):
        i = start + tile
        c, inside, valid = _loaded(cost_at, mask_at, problem, i, j, ab, an, am, n, m, MASKED)
        k = tl.where(valid, tl.exp((low - c) * (1.0 / reg)), 0.0)
        tl.store(kernel_at + i[:, None] * m + j[None, :], k, mask=inside)
    tl.debug_barrier()

    p = tl.load(weight_at + every, mask=of_rows, other=0.0)
    q = tl.where(reached > 0, q, 0.0)
    to_column, to_row = tl.sum(p) - mass, tl.sum(q) - mass
    sane &= (to_column < float("inf")) & (to_row < float("inf"))
    near = tl.abs(to_column) <= no_slack * tl.sum(p)
    p, to_column = tl.where(near, p * (mass / tl.sum(p)), p), tl.where(near, 0.0, to_column)
    near = tl.abs(to_row) <= no_slack * tl.sum(q)
    q, to_row = tl.where(near, q * (mass / tl.sum(q)), q), tl.where(near, 0.0, to_row)
    live, filled, moves = p > 0, q > 0, mass > 0
    sane &= (bad == 0) & ((to_column >= 0) & (to_row >= 0) & (top - low <= widest * reg) | (mass == 0))
    tl.debug_barrier()
    tl.store(weight_at + every, p, mask=of_rows)
    tl.debug_barrier()

    y = tl.where(filled, tl.log(tl.where(filled, q, 1.0)), 0.0)
    t, s, past, old = tl.zeros((ROWS,), tl.float64), tl.zeros((M,), tl.float64), y, tl.zeros((M,), tl.float64)
    alpha, beta = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    before, passes = tl.full((), 0.0, tl.float64), tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    last = tl.where(sane & moves, max_iter, 0)
    while (passes < last) & (going > 0):
        b = tl.where(filled, tl.exp(y), 0.0)
        for start in range(0, TILES * N, N):
            i = start + tile
            inside = (i < n)[:, None] & in_columns[None, :]
            k = tl.load(kernel_at + i[:, None] * m + j[None, :], mask=inside, other=0.0)
            tl.store(row_at + i, tl.sum(k * b[None, :], 1), mask=i < n)
        tl.debug_barrier()
        t = tl.load(row_at + every, mask=of_rows, other=0.0)
        tl.debug_barrier()
        beta = tl.where(passes == 0, tl.sum(p * t) / tl.sum(p) * to_column / mass, beta)
        beta = _solved(t, p, mass, beta, 6, 0.1)
        tl.store(row_at + every, tl.where(live, p / (t + beta), 0.0), mask=of_rows)
        tl.debug_barrier()
        s = tl.zeros((M,), tl.float64)
        for start in range(0, TILES * N, N):
            i = start + tile
            inside = (i < n)[:, None] & in_columns[None, :]
            k = tl.load(kernel_at + i[:, None] * m + j[None, :], mask=inside, other=0.0)
            s += tl.sum(k * tl.load(row_at + i, mask=i < n, other=0.0)[:, None], 0)
        tl.debug_barrier()
        error = tl.sum(tl.abs(b * (s + to_row / tl.sum(b)) - q)) / mass
        alpha = tl.where(passes == 0, tl.sum(q * s) / tl.sum(q) * to_row / mass, alpha)
        alpha = _solved(s, q, mass, alpha, 6, 0.1)
        residual = tl.where(filled, tl.log(tl.where(filled, q / (s + alpha), 1.0)) - y, 0.0)
        moved, bent = y - past, residual - old
        length, curve = tl.sum(q * moved * moved), tl.sum(q * bent * bent)
        known = (passes > 0) & (curve > 0)
        curve = tl.where(known, curve, 1.0)
        spread = tl.where(known, tl.minimum(tl.maximum(tl.sqrt(length / curve), 1.0), 1e3), 1.0)
        going = tl.where(error * spread <= 0.8 * tol, 0, 1)  # spread: distance to the optimum over the error
        share = tl.where(known & (error <= 2.0 * before), tl.sum(q * bent * residual) / curve, 0.0)
        past, old, before = y, residual, error
        # b stays at the end: t and s are its sums
        y = tl.where(going > 0, y + residual - share * (moved + bent), y)
        passes += 1

    b = tl.where(filled, tl.exp(tl.where(going > 0, past, y)), 0.0)
    beta = _solved(t, p, mass, beta, 50, 1e-5)
    a = tl.where(live, p / (t + beta), 0.0)
    alpha = to_row / tl.sum(b)
    missed = tl.abs(tl.sum(a * t) - mass)
    tl.store(row_at + every, a, mask=of_rows)
    tl.store(f_at + problem * n + every, tl.where(moves, reg * tl.log(a) + low, float("-inf")), mask=of_rows)
    tl.debug_barrier()
    s = tl.zeros((M,), tl.float64)
    for start in range(0, TILES * N, N):
        i = start + tile
        inside = (i < n)[:, None] & in_columns[None, :]
        k = tl.load(kernel_at + i[:, None] * m + j[None, :], mask=inside, other=0.0)
        k *= tl.load(row_at + i, mask=i < n, other=0.0)[:, None]
        plan = tl.where(moves, k * b[None, :], 0.0).to(plan_at.dtype.element_ty)
        tl.store(plan_at + problem * n * m + i[:, None] * m + j[None, :], plan, mask=inside)
        s += tl.sum(k, 0)
    error = tl.sum(tl.abs(b * (s + alpha) - q)) / mass
    met = (error <= tol) & (missed <= mass * tl.minimum(tl.maximum(tol, 1e-9), mass_tol))
    met &= (tl.min(tl.where(live, t, 1.0)) > 0) & (tl.min(tl.where(filled, s, 1.0)) > 0)
    none = float("-inf")
    tl.store(g_at + problem * m + j, tl.where(moves, reg * tl.log(b), none), mask=in_columns)
    tl.store(slacks_at + problem, tl.where(moves, reg * tl.log(alpha), none))
    tl.store(slacks_at + K + problem, tl.where(moves, reg * tl.log(beta) - low, none))
    tl.store(errors_at + problem, 0.0)
    tl.store(errors_at + K + problem, tl.where(moves, error, 0.0))
    tl.store(converged_at + problem, (sane & (met | (mass == 0))).to(tl.uint8))
    tl.store(iterations_at + problem, passes.to(tl.int64))
