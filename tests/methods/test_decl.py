"""DECL against worked numbers, naive loops and exact distributions, and its corner cases."""

import json
import math

import numpy as np
import pytest
import tiny
import torch
from torch.distributions import Dirichlet, kl_divergence

from nclib import methods
from nclib.methods import Batch, Truth
from nclib.methods.decl import (
    DECL,
    correspondence,
    dynamic_hinge,
    evidence,
    evidential_loss,
    hardness,
)
from nclib.runs import resolve

R = torch.tensor([[0.9, 0.1, -0.3], [0.2, 0.4, -0.1], [-0.5, 0.3, 0.7]], dtype=torch.float64)


def targets(*labels):
    return torch.diag(torch.tensor(labels, dtype=torch.float64))


def both(labels, lam2=0.1):
    E = evidence(R, 0.1)
    return evidential_loss(E + 1, targets(*labels), lam2), evidential_loss(E.T + 1, targets(*labels), lam2)


def close(actual, expected):
    assert actual.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-12)


# ------------------------------------------------------------------------------------------ worked numbers


def test_evidence_uncertainty_and_prediction():
    E = evidence(R, 0.1)
    close(E[0], [1290.75, 2.70927, 0.0543057])
    close(E[1], [7.19764, 44.6784, 0.369103])
    close(E[2], [0.00984126, 18.4143, 421.44])
    close(3 / (E + 1).sum(1), [0.0023139, 0.0543034, 0.00677408])
    p_clean, share, uncertainty = correspondence(R, 0.1)
    assert (p_clean > 0.5).tolist() == [True, True, True]
    close(share, [0.996152, 0.756959, 0.978128])
    close(uncertainty, (3 / (E + 1).sum(1) + 3 / (E + 1).sum(0)).tolist())


def test_evidential_loss_of_matched_pairs():
    i2t, t2i = both((1, 1, 1))
    L_m, _ = both((1, 1, 1), lam2=0.0)
    close(L_m, [2.79918e-05, 0.0578424, 0.00425253])
    close((i2t - L_m) / 0.1, [0.835521, 1.77629, 3.42999])
    close(i2t, [0.0835801, 0.235472, 0.347252])
    close(t2i, [0.196287, 0.478839, 0.00538304])
    assert (i2t + t2i).mean().item() == pytest.approx(0.448938, rel=1e-5)


def test_evidential_loss_with_a_predicted_mismatch():
    i2t, t2i = both((1, 0, 1))
    close(i2t, [0.0835801, 1.08083, 0.347252])
    close(t2i, [0.196287, 0.840058, 0.00538304])
    assert (i2t + t2i).mean().item() == pytest.approx(0.851130, rel=1e-5)


@pytest.mark.parametrize(("labels", "total"), [((1, 1, 1), 0.500454), ((1, 0, 1), 0.851130)])
def test_total_with_hinge(labels, total):
    H = R.tanh()
    close(dynamic_hinge(H, 1, 0.2), [0, 0.128790, 0])
    close(dynamic_hinge(H, 2, 0.2), [0, 0.0643950, 0])
    i2t, t2i = both(labels)
    h = (dynamic_hinge(H, 2, 0.2) * torch.tensor(labels)).sum()
    assert ((i2t + t2i).mean() + 0.8 * h).item() == pytest.approx(total, rel=1e-5)


def test_hardness():
    steps = (1, 40, 41, 1133, 4000, 4919, 4920, 10**6)
    assert [hardness(s, 128) for s in steps] == [127, 127, 126, 99, 28, 5, 5, 5]
    assert hardness(1, 4) == 5  # a batch below mu: the hinge then takes what there is


# ----------------------------------------------------------------------------------- against first principles


def test_loss_is_the_expected_error_and_the_divergence_of_the_dirichlet_distribution():
    g = torch.Generator().manual_seed(0)
    alpha = 1 + 30 * torch.rand(6, 5, generator=g, dtype=torch.float64)
    y = torch.eye(6, 5, dtype=torch.float64)  # the last query has no partner
    rest = y + (1 - y) * alpha
    divergence = kl_divergence(Dirichlet(rest), Dirichlet(torch.ones_like(rest)))
    d = Dirichlet(alpha)
    error = ((y - d.mean).square() + d.variance).sum(1)  # E |y - p|^2
    assert torch.allclose(evidential_loss(alpha, y, 0.3), error + 0.3 * divergence, rtol=1e-9)


def test_gradients_by_finite_differences():
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 5, generator=g, dtype=torch.float64, requires_grad=True)
    y = targets(1, 0, 1, 1, 0)
    assert torch.autograd.gradcheck(lambda r: evidential_loss(evidence(r, 0.5) + 1, y), logits)
    assert torch.autograd.gradcheck(lambda r: dynamic_hinge(r.tanh(), 2), logits)


def test_float32_agrees_with_float64_at_the_largest_evidence():
    logits = torch.tensor([[9.0, -9, 8], [7, 9, -8], [9, -7, 9]], dtype=torch.float64)
    for y in (targets(1, 1, 1), targets(0, 0, 0)):
        exact = evidential_loss(evidence(logits) + 1, y)
        single = evidential_loss(evidence(logits.float()) + 1, y.float())
        assert single.dtype == torch.float32
        assert torch.allclose(single.double(), exact, rtol=2e-5)


@pytest.mark.parametrize("n", [1, 3, 6, 7, 8, 100])
def test_hinge_against_nested_loops(n):
    g = torch.Generator().manual_seed(2)
    H = torch.rand(7, 7, generator=g, dtype=torch.float64) * 2 - 1
    effective = n if n <= 7 else 6
    for i, h in enumerate(dynamic_hinge(H, n, 0.2).tolist()):
        captions = [0.0 if j == i else max(0.0, 0.2 + float(H[i, j] - H[i, i])) for j in range(7)]
        images = [0.0 if j == i else max(0.0, 0.2 + float(H[j, i] - H[i, i])) for j in range(7)]
        expected = sum(sum(sorted(c, reverse=True)[:effective]) for c in (captions, images)) / effective
        assert h == pytest.approx(expected, abs=1e-12)
    assert dynamic_hinge(H[:1, :1], n).tolist() == [0.0]


def test_a_predicted_mismatch_is_still_a_negative_of_the_others():
    H = R.tanh().requires_grad_()
    (dynamic_hinge(H, 2, 0.9) * torch.tensor([1.0, 0.0, 1.0])).sum().backward()
    assert H.grad[1, 1] == 0  # nothing is asked of the pair itself
    assert H.grad[0, 1] > 0
    assert H.grad[1, 0] > 0


def test_probability_is_above_one_half_exactly_for_predicted_matches():
    g = torch.Generator().manual_seed(3)
    for scale in (0.3, 1.0, 30.0):  # the last one saturates tanh in float32 and makes ties
        logits = torch.randn(40, 40, generator=g) * scale
        p_clean, share, uncertainty = correspondence(logits)
        E = evidence(logits)
        first = (E + E.T).argmax(1) == torch.arange(40)
        assert torch.equal(p_clean > 0.5, first)
        assert ((p_clean >= 0) & (p_clean <= 1) & (share >= 0) & (share <= 1)).all()
        assert ((uncertainty > 0) & (uncertainty <= 2)).all()


def test_evidence_of_both_directions_is_added():
    """A pair can win although one direction prefers a rival, and lose although one direction prefers it."""
    base = torch.full((3, 3), -2.0, dtype=torch.float64).fill_diagonal_(0.3)
    for rival, matched in ((0.34, True), (0.45, False)):
        for place in ((0, 1), (1, 0)):  # another caption for image 0, another image for caption 0
            logits = base.clone()
            logits[place] = rival
            other_direction = logits.T if place == (0, 1) else logits
            assert other_direction[0].argmax() == 0
            assert other_direction[:, 0].argmax() == 1
            assert bool(correspondence(logits)[0][0] > 0.5) == matched


# ------------------------------------------------------------------------------------------- errors, settings


def test_hardness_reaches_its_floor_within_the_published_warm_up_and_halfway_through_a_quick_run():
    def steps_to_floor(s):
        return (s.schedule.batch_size - s.method_options.mu) / s.method_options.eta

    paper = resolve("decl", dataset="f30k", preset="paper", data_options={"root": "x"})
    assert steps_to_floor(paper) < paper.schedule.warmup_epochs * (145_000 // 128)
    quick = resolve("decl")  # from scratch on few noisy pairs, many negatives are needed for longer
    per_epoch = 12_500 // 32
    assert steps_to_floor(quick) > quick.schedule.warmup_epochs * per_epoch
    assert steps_to_floor(quick) < (quick.schedule.warmup_epochs + quick.schedule.epochs) * per_epoch


# ------------------------------------------------------------------------------------------------ one step


class Reader:
    """A loop that serves what a step needs, from a table of logits."""

    def __init__(self, B, n=40):
        self.batch_size, self.n_pairs, self.device = B, n, torch.device("cpu")
        g = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(n, n, generator=g))
        self.asked = []

    def similarity(self, batch, logits=False):
        self.asked.append(logits)
        return self.weight[batch.index][:, batch.index]


def batch(*index):
    index = torch.tensor(index)
    return Batch(index, index, None)


def test_a_step_is_the_sum_of_its_published_parts():
    loop, method = Reader(8), methods.build("decl")
    method.steps = 100
    method.predicted = torch.zeros(40)
    method.predicted[[0, 2, 3, 7]] = 1
    terms = method.step(loop, batch(*range(8)))
    assert loop.asked == [True]  # the raw scores, before any sigmoid
    assert method.steps == 101
    logits = loop.weight[:8, :8].detach().double()
    y = torch.diag(method.predicted[:8].double())
    E = evidence(logits)
    L_e = evidential_loss(E + 1, y) + evidential_loss(E.T + 1, y)
    h = dynamic_hinge(logits.tanh(), 5)  # floor(8 - 0.025 * 101) = 5
    assert terms["evidential"].item() == pytest.approx(L_e.mean().item(), rel=1e-5)
    assert terms["hinge"].item() == pytest.approx(0.8 * h[[0, 2, 3, 7]].sum().item(), rel=1e-5)


def test_warm_up_takes_every_pair_as_matched_and_counts_its_steps():
    loop, method = Reader(8), methods.build("decl")
    warm = method.warmup_step(loop, batch(*range(8)))
    method.predicted = torch.ones(40)
    method.steps = 0
    assert {k: v.item() for k, v in warm.items()} == {
        k: v.item() for k, v in method.step(loop, batch(*range(8))).items()
    }
    assert method.steps == 1


@pytest.mark.parametrize("size", [2, 3, 8])
def test_nothing_predicted_to_match_and_batches_smaller_than_the_hardness(size):
    for predicted in (0.0, 1.0):
        loop, method = Reader(128), methods.build("decl")
        method.predicted = torch.full((40,), predicted)
        terms = method.step(loop, batch(*range(size)))
        sum(terms.values()).backward()
        assert loop.weight.grad.isfinite().all()
        assert loop.weight.grad.abs().sum() > 0
        assert math.isfinite(terms["evidential"].item())
        assert (terms["hinge"].item() == 0) == (predicted == 0)


# ---------------------------------------------------------------------------------------------- whole runs


def test_a_last_batch_without_enough_negatives_is_left_out_of_training_only(tmp_path):
    steps = {}
    for size in (39, 38):  # of 200 pairs a last batch of 5 and of 10
        record = tiny.run("decl", tmp_path, batch_size=size, epochs=1)
        steps[size] = [row["steps"] for row in record.curves]
    assert steps == {39: [6, 5], 38: [6, 6]}


def test_a_run_in_which_every_pair_is_called_mismatched(tmp_path, monkeypatch):
    def nothing(logits, tau):
        zero = torch.zeros(len(logits))
        return zero, zero, zero + 2

    monkeypatch.setattr("nclib.methods.decl.correspondence", nothing)
    record = tiny.run("decl", tmp_path)
    assert [row["loss_hinge"] for row in record.curves[1:]] == [0, 0]
    assert record.diagnostics["called_matched"] == 0
    assert record.diagnostics["division_precision"] is None
    assert json.loads((tmp_path / record.name / "record.json").read_text())


def test_report_calls_matched_what_the_method_predicts():
    method = methods.build("decl")
    assert isinstance(method, DECL)
    method.p_clean = torch.tensor([0.9, 0.6, 0.5, 0.1])
    method.share = torch.tensor([0.9, 0.1, 0.4, 0.2])
    method.uncertainty = torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = method.diagnostics(Truth(np.array([True, False, True, False])))
    assert found["called_matched"] == 2
    assert found["division_precision"] == 0.5
    assert found["division_recall"] == 0.5
    assert found["auc"] == 0.75
    assert found["auc_share"] == 1.0
    assert found["auc_uncertainty"] == 0.75
