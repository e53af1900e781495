"""Plans beside those of a plain log-domain loop, written for this test alone and run until nothing moves."""

import numpy as np
import pytest
import torch

import nclib.ot


def log_sum_exp(x, axis):
    top = x.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.squeeze(top, axis) + np.log(np.exp(x - top).sum(axis))


@np.errstate(all="ignore")
def plain_loop(cost, mask, p, q, mass, reg, *, passes=60_000):
    """Alternate on the extended matrix, corner forbidden, from a large regularisation down to ``reg``."""
    n, m = cost.shape
    extended = np.zeros((n + 1, m + 1))
    extended[:n, :m] = np.where(mask, cost, np.inf)
    extended[n, m] = np.inf
    log_p = np.log(np.append(p, q.sum() - mass))
    log_q = np.log(np.append(q, p.sum() - mass))
    level, g = 1.0, np.zeros(m + 1)
    while True:
        level = max(0.5 * level, reg)
        logk, y = -extended / level, g / level
        for _ in range(passes if level == reg else 300):
            x = np.where(np.isfinite(log_p), log_p - log_sum_exp(logk + y, 1), -np.inf)
            new = np.where(np.isfinite(log_q), log_q - log_sum_exp(logk + x[:, None], 0), -np.inf)
            moved = np.abs(np.where(np.isfinite(new), new - y, 0)).max()
            y = new
            if moved < 1e-13:
                break
        g = y * level
        if level == reg:
            return np.exp(logk + x[:, None] + y)[:n, :m]


def problem(name):
    rng = np.random.default_rng(5)
    n, m = {"square": (9, 9), "holes": (11, 7), "wide": (6, 8), "labels": (12, 4)}[name]
    cost, mask = rng.random((n, m)), rng.random((n, m)) < 0.8
    mask[0], mask[:, 0] = True, True
    p, q = np.full(n, 1 / n), np.full(m, 1 / m)
    if name == "holes":  # weights of zero and a row that nothing can leave
        p, q = rng.random(n) + 0.1, rng.random(m) + 0.1
        p[2] = q[1] = 0
        p, q = p / p.sum(), q / q.sum()
        mask[3] = False
    if name == "labels":
        mask[:], q = True, np.array([0.1, 0.2, 0.3, 0.4])
    return cost, mask, p, q


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "reg"), [("square", 0.01), ("holes", 0.01), ("wide", 0.002), ("labels", 0.01)]
)
def test_plans_equal_those_of_a_plain_loop(name, reg, dtype):
    cost, mask, p, q = problem(name)
    rounded = torch.from_numpy(cost).to(dtype)
    masses = (0.1, 0.6)
    want = [plain_loop(rounded.double().numpy(), mask, p, q, mass, reg) for mass in masses]
    tolerance = 1e-8 if dtype == torch.float64 else 1e-5
    rows, cols, allowed = (torch.from_numpy(x) for x in (p, q, mask))
    both = torch.tensor(masses, dtype=torch.float64)
    batch = nclib.ot.partial_sinkhorn(rounded.expand(2, *cost.shape), both, rows, cols, reg=reg, mask=allowed)
    for k, mass in enumerate(masses):
        if name == "labels":
            one = nclib.ot.label_transport(rounded, mass, cols, reg=reg)
        else:
            one = nclib.ot.partial_sinkhorn(rounded, mass, rows, cols, reg=reg, mask=allowed)
        assert one.converged
        assert one.mass_error.item() <= 1e-6
        for plan in (one.plan, batch.plan[k]):
            assert np.abs(plan.double().numpy() - want[k]).sum() <= tolerance * mass
