"""Losses against their printed numbers, naive nested loops, and degenerate batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nclib import losses

S4 = torch.tensor(
    [[0.82, 0.31, 0.12, 0.25], [0.28, 0.35, 0.47, 0.09], [0.15, 0.22, 0.76, 0.33], [0.05, 0.41, 0.18, 0.54]],
    dtype=torch.float64,
)
PLAN4 = torch.tensor(
    [[0, 0.02, 0.01, 0], [0.01, 0, 0.03, 0], [0, 0, 0, 0], [0.005, 0.015, 0.01, 0]], dtype=torch.float64
)
TAU = 0.05


def close(actual, expected, rtol=1e-6, atol=0.0):
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64),
        rtol=rtol, atol=atol,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ naive loops


def rows_of(S, tau):
    """Softmax of each row of S / tau, as nested lists."""
    out = []
    for row in S.tolist():
        top = max(row)
        e = [math.exp((s - top) / tau) for s in row]
        out.append([v / sum(e) for v in e])
    return out


def naive_triplet(S, margin, negatives):
    S, n = S.tolist(), len(S)
    out = []
    for i in range(n):
        captions = [max(0.0, margin + S[i][j] - S[i][i]) for j in range(n) if j != i]
        images = [max(0.0, margin + S[j][i] - S[i][i]) for j in range(n) if j != i]
        pick = {"hardest": lambda v: max(v, default=0.0), "mean": lambda v: sum(v) / n, "sum": sum}[negatives]
        out.append(pick(captions) + pick(images))
    return out


def naive_both(S, tau, per_row):
    first, second = rows_of(S, tau), rows_of(S.T, tau)
    return [per_row(i, first[i]) + per_row(i, second[i]) for i in range(len(S))]


def naive_rematch(S, plan, tau, floor, term):
    def one_way(S, plan):
        values = []
        for p, t in zip(rows_of(S, tau), plan.tolist(), strict=True):
            t = [max(v, floor) for v in t]
            t = [v / sum(t) for v in t]
            values.append(sum(term(a, b) for a, b in zip(t, p, strict=True)))
        return values

    return [a + b for a, b in zip(one_way(S, plan), one_way(S.T, plan.T), strict=True)]


NAIVE = {
    "info_nce": lambda i, p: -math.log(p[i]),
    "reverse_cross_entropy": lambda i, p: -sum(v * math.log((j == i) + 1e-7) for j, v in enumerate(p)),
    "complementary": lambda i, p: -sum(math.log(1 - v + 1e-10) for j, v in enumerate(p) if j != i),
    "generalised_cross_entropy": lambda i, p: (1 - p[i] ** 0.7) / 0.7,
}
TERMS = {
    "sym_kl": lambda t, p: 0.5 * (t * math.log(t / p) + p * math.log(p / t)),
    "kl": lambda t, p: t * math.log(t / p),
    "infonce": lambda t, p: -t * math.log(p),
}


@st.composite
def batches(draw):
    n = draw(st.integers(1, 7))
    seed = draw(st.integers(0, 2**31 - 1))
    g = torch.Generator().manual_seed(seed)
    S = torch.rand(n, n, generator=g, dtype=torch.float64)
    plan = torch.rand(n, n, generator=g, dtype=torch.float64)
    plan = plan * (torch.rand(n, n, generator=g) > 0.5)  # some entries, some whole rows without mass
    return S, plan / n


# ---------------------------------------------------------------------------------------- printed numbers


def test_printed_numbers():
    close(losses.info_nce(S4, TAU).mean(), 1.04474, 1e-5)
    close(losses.reverse_cross_entropy(S4, TAU).mean(), 7.26543, 1e-6)
    close(losses.infonce_rce(S4, TAU).mean(), 4.155086, 3e-7)
    close(losses.triplet(S4, negatives="mean"), [0, 0.235, 0, 0.0175], 1e-12, 1e-15)
    close(losses.triplet(S4), [0, 0.58, 0, 0.07], 1e-12, 1e-15)
    close(losses.rematch_sym_kl(S4, PLAN4, TAU).mean(), 16.266094, 1e-7)


@given(batch=batches(), q=st.sampled_from([0.01, 0.1, 0.5, 1.0]))
def test_rince_is_the_printed_formula_and_near_zero_has_the_gradient_of_infonce(batch, q):
    S, tau, lam = batch[0].requires_grad_(), 0.3, 0.2

    def one_way(rows):
        each = [[math.exp(s / tau) for s in row] for row in rows]
        return [-(e[i] ** q) / q + (lam * sum(e)) ** q / q for i, e in enumerate(each)]

    expected = [a + b for a, b in zip(one_way(S.tolist()), one_way(S.T.tolist()), strict=True)]
    close(losses.rince(S, tau, q, lam), expected, 1e-9, 1e-9)
    (found,) = torch.autograd.grad(losses.rince(S, tau, 1e-9, lam).sum(), S)
    (plain,) = torch.autograd.grad(losses.info_nce(S, tau).sum(), S)
    close(found, plain, 1e-5, 1e-5)


@pytest.mark.parametrize("ignored", [False, True])
@given(batch=batches())
def test_soft_margin_triplet_is_the_nested_loop(ignored, batch):
    S, plan = batch
    n, ignore = len(S), plan > 0.2 / len(S)
    margins = 0.3 * S.flip(0).diagonal()
    expected = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        texts = [j for j in others if not (ignored and ignore[i, j])]
        images = [j for j in others if not (ignored and ignore[j, i])]
        expected.append(
            max([0.0, *(float(margins[i] + S[i, j] - S[i, i]) for j in texts)])
            + max([0.0, *(float(margins[i] + S[j, i] - S[i, i]) for j in images)])
        )
    close(losses.soft_margin_triplet(S, margins, ignore if ignored else None), expected, 1e-9, 1e-12)


# -------------------------------------------------------------------------------------------- naive loops


@pytest.mark.parametrize("negatives", ["hardest", "mean", "sum"])
@given(batch=batches(), margin=st.floats(0, 1))
def test_triplet_is_the_nested_loop(negatives, batch, margin):
    S, _ = batch
    close(losses.triplet(S, margin, negatives), naive_triplet(S, margin, negatives), 1e-9, 1e-12)


@pytest.mark.parametrize("name", NAIVE)
@given(batch=batches(), tau=st.floats(0.05, 2))
def test_softmax_losses_are_the_nested_loop(name, batch, tau):
    S, _ = batch
    close(getattr(losses, name)(S, tau=tau), naive_both(S, tau, NAIVE[name]), 1e-7, 1e-7)


@pytest.mark.parametrize("name", TERMS)
@given(batch=batches(), tau=st.floats(0.05, 2), floor=st.sampled_from([1e-10, 1e-4]))
def test_rematch_is_the_nested_loop(name, batch, tau, floor):
    S, plan = batch
    expected = naive_rematch(S, plan, tau, floor, TERMS[name])
    close(losses.REMATCH[name](S, plan, tau, floor), expected, 1e-8, 1e-8)


# -------------------------------------------------------------------------------- stability and gradients

EVERY = {
    **{f"warmup:{k}": v for k, v in losses.WARMUP.items()},
    "complementary": lambda S: losses.complementary(S, tau=TAU),
    **{f"rematch:{k}": (lambda S, f=v: f(S, PLAN4[: len(S), : len(S)].to(S), TAU))
       for k, v in losses.REMATCH.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_gradient_is_the_finite_difference(name):
    torch.manual_seed(0)
    S = (S4 + 0.01 * torch.rand(4, 4, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(EVERY[name], (S,), eps=1e-7, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("size", [1, 2])
def test_degenerate_batch(name, size):
    S = S4[:size, :size].clone().requires_grad_()
    value = EVERY[name](S)
    assert value.shape == (size,)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(S.grad).all()
    if size == 1:  # a pair without negatives has nothing to learn from
        close(value, [0.0], atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_saturated_scores_stay_finite(name, dtype):
    S = torch.eye(4, dtype=dtype)
    S[1, 1], S[1, 2] = 0, 1
    S = (4 * S).requires_grad_()  # 80 temperatures apart: probabilities of exactly 0 and 1
    value = EVERY[name](S)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value).all()
    assert torch.isfinite(S.grad).all()


def test_targets_carry_no_gradient():
    plan = PLAN4.clone().requires_grad_()
    S = S4.clone().requires_grad_()
    for loss in losses.REMATCH.values():
        loss(S, plan, TAU).sum().backward()
    assert plan.grad is None
    assert S.grad.abs().sum() > 0
