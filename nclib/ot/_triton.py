"""The Triton kernels of the published rule of partial transport, which :mod:`nclib.ot.published` starts.

A program computes one problem, in float64, its m columns padded to a power of two. :func:`published` holds
all n rows in registers. :func:`published_in_tiles` takes some rows at a time, and keeps the kernel matrix in
memory.
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
        inside = in_rows[:, None] & in_columns[None, :]
        c = tl.load(cost_at + problem * n * m + i[:, None] * m + j[None, :], mask=inside, other=0.0).to(
            tl.float64
        )
        p = tl.load(p_at + problem * pb + i * pn, mask=in_rows, other=0.0)
        valid = inside
        if MASKED:
            allowed_at = mask_at + problem * ab + i[:, None] * an + j[None, :] * am
            valid = inside & (tl.load(allowed_at, mask=inside, other=0) != 0)
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
        inside = (i < n)[:, None] & in_columns[None, :]
        c = tl.load(cost_at + problem * n * m + i[:, None] * m + j[None, :], mask=inside, other=0.0).to(
            tl.float64
        )
        valid = inside
        if MASKED:
            allowed_at = mask_at + problem * ab + i[:, None] * an + j[None, :] * am
            valid = inside & (tl.load(allowed_at, mask=inside, other=0) != 0)
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
