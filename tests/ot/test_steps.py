"""Single steps of the solvers: scalar equations, Newton steps, dual values, and the pace of the blocks."""

from dataclasses import replace

import numpy as np
import torch

from nclib.ot import cpu, device
from nclib.ot.cpu import One, _Pace, _Scaled, _Verdict
from nclib.ot.device import LogPass, Weights

MASS, REG = 0.6, 0.02


def problem():
    """A problem with holes whose rows and columns have unequal totals, (12, 8)."""
    rng = np.random.default_rng(0)
    cost, allowed = rng.random((12, 8)), rng.random((12, 8)) < 0.85
    allowed[0], allowed[:, 0] = True, True
    p, q = rng.random(12) + 0.2, rng.random(8) + 0.2
    p, q = p / p.sum(), q / q.sum() / 0.9
    slack = p.sum() - MASS, q.sum() - MASS
    return One(np.where(allowed, cost, np.inf), p, q, MASS, slack, REG, 1e-12, allowed)


def weights(one, count=1):
    whole = (one.p, one.q, np.float64(one.mass), *map(np.float64, one.slack))
    return Weights(*(torch.from_numpy(np.repeat(x[None], count, 0)) for x in whole))


def exponents(one, count=1):
    return torch.from_numpy((one.cost.min() - one.cost) / one.reg).expand(count, -1, -1)


def test_newton_steps_square_the_error_in_the_extended_problem():
    one = problem()
    scaled = _Scaled(one.kernel()[0], one.p, one.q, MASS, *one.slack)
    x = scaled.start()
    for _ in range(30):
        scaled.columns(x)
        error = scaled.rows(x)
        x.alpha = cpu._scalar(x.s, one.q, MASS, x.alpha)
    assert 1e-7 < error < 1e-5
    x, error = scaled.newton(x)
    assert error < 2e-11  # the direction is computed in float32
    assert scaled.newton(x)[1] < 1e-13
    _, left = scaled.newton(scaled.newton(x)[0]) or (None, 0)
    assert left < 1e-15


def test_the_residual_is_the_slope_of_the_dual_value(monkeypatch):
    one, step = problem(), 1e-6
    logk, w = exponents(one, 17), weights(one, 17)  # each column up, each down, and as it is
    state = device.begin(w)
    device.enter(LogPass(logk, state.x, state.y), w, state)
    state = device.block(LogPass(logk, state.x, state.y), w, state)
    up = torch.cat([torch.eye(8), -torch.eye(8), torch.zeros(1, 8)]).double() * step
    monkeypatch.setattr(device, "_direction", lambda *_: up)
    moved = device.newton(logk, LogPass(logk, state.x, state.y), w, replace(state, y=state.y - 0.1), w.mass)
    dual = device.dual(w, moved)
    slope = (dual[:8] - dual[8:16]) / (2 * step)
    torch.testing.assert_close(slope, (w.q - moved.column)[-1], rtol=1e-5, atol=1e-9)


def test_the_pace_goes_by_the_contraction_of_the_error():
    def verdicts(*errors, goal=1e-9, price=5.0, wait=0, newton=True):
        pace = _Pace(goal, price, wait)
        return pace, [pace.judge(error, newton, False) for error in errors]

    B, N, H, D, G = (_Verdict[name] for name in ("BLOCK", "NEWTON", "HALF", "DONE", "GIVE_UP"))
    assert verdicts(1e-9)[1] == [D]
    assert verdicts(1e-2, 5e-3)[1] == [B, N]  # 23 blocks more would cost more than a Newton step
    assert verdicts(1e-2, 5e-3, price=30.0)[1] == [B, B]
    assert verdicts(1e-2, 5e-3, 2.5e-3, wait=2)[1] == [B, B, N]  # not before three blocks
    assert verdicts(1e-2, 5e-3, newton=False)[1] == [B, G]
    assert verdicts(1e-2, 1e-5)[1] == [B, B]
    assert verdicts(1e-5, 1e-8)[1] == [B, H]  # the next error, 1e-11 by the rate, is below the goal
    assert verdicts(1e-2, 9e-10 / 10)[1] == [B, D]
    assert verdicts(1.2e-9, 0.9e-9)[1] == [B, B]  # at this rate the distance is four times the error
    assert verdicts(1.2e-9, 0.9e-9, 0.2e-9)[1] == [B, B, D]
    assert verdicts(float("inf"))[1] == [G]
    assert verdicts(1e-2, 0.99e-2, price=1e9)[1] == [B, N]  # hardly any progress
    assert _Pace(1e-9, 5.0, 0).judge(1e-2, True, True) is G  # no passes left
    pace, _ = verdicts(1e-2, 5e-3)
    pace.stepped(True)
    assert pace.judge(1e-3, True, False) is N  # after a step that helped, another one
    pace.stepped(False)
    assert (pace.newtons, pace.failures) == (2, 1)
    assert [pace.judge(e, True, False) for e in 0.5 ** np.arange(12)] == [B] * 10 + [N] * 2
    pace.newtons = cpu.MAX_NEWTON
    assert pace.judge(0.5**12, True, False) is B
