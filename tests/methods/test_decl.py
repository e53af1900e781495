"""DECL against naive loops and exact distributions, and its corner cases."""

import math

import numpy as np
import pytest
import tiny
import torch
from torch.distributions import Dirichlet, kl_divergence

from nclib import methods
from nclib.methods import Batch, Truth
from nclib.methods.decl import correspondence, dynamic_hinge, evidence, evidential_loss, hardness


def test_hardness():
    steps = (1, 40, 41, 1133, 4000, 4919, 4920, 10**6)
    assert [hardness(s, 128) for s in steps] == [127, 127, 126, 99, 28, 5, 5, 5]
    assert hardness(1, 4) == 5  # a batch below mu: the hinge then takes what there is


# ----------------------------------------------------------------------------------- against first principles


def test_evidence_and_what_it_says_of_a_pair_against_nested_loops():
    g = torch.Generator().manual_seed(0)
    R = torch.randn(7, 7, generator=g, dtype=torch.float64)
    E = [[math.exp(math.tanh(x) / 0.1) for x in row] for row in R.tolist()]
    torch.testing.assert_close(evidence(R, 0.1), torch.tensor(E, dtype=torch.float64))
    p_clean, share, uncertainty = correspondence(R, 0.1)
    for i in range(7):
        both = [E[i][j] + E[j][i] for j in range(7)]
        rival = max(both[:i] + both[i + 1 :])
        assert p_clean[i].item() == pytest.approx(both[i] / (both[i] + rival), abs=1e-5)
        assert share[i].item() == pytest.approx(both[i] / sum(both))
        strengths = sum(E[i]) + 7, sum(row[i] for row in E) + 7
        assert uncertainty[i].item() == pytest.approx(sum(7 / L for L in strengths))


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
    y = torch.tensor([1.0, 0, 1, 1, 0], dtype=torch.float64).diag()
    assert torch.autograd.gradcheck(lambda r: evidential_loss(evidence(r, 0.5) + 1, y), logits)
    assert torch.autograd.gradcheck(lambda r: dynamic_hinge(r.tanh(), 2), logits)


def test_float32_agrees_with_float64_at_the_largest_evidence():
    logits = torch.tensor([[9.0, -9, 8], [7, 9, -8], [9, -7, 9]], dtype=torch.float64)
    for y in (torch.eye(3), torch.zeros(3, 3)):
        exact = evidential_loss(evidence(logits) + 1, y.double())
        single = evidential_loss(evidence(logits.float()) + 1, y)
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
    H = (0.3 * torch.eye(3)).requires_grad_()
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
    method.predicted, method.steps = torch.ones(40), 0
    assert warm == method.step(loop, batch(*range(8)))
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


def test_report_calls_matched_what_the_method_predicts():
    method = methods.build("decl")
    method.p_clean = torch.tensor([0.9, 0.6, 0.5, 0.1])
    method.share = torch.tensor([0.9, 0.1, 0.4, 0.2])
    method.uncertainty = torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = method.diagnostics(Truth(np.array([True, False, True, False])))
    wanted = {"called_matched": 2, "division_precision": 0.5, "division_recall": 0.5}
    wanted |= {"auc": 0.75, "auc_share": 1.0, "auc_uncertainty": 0.75}
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("y", [torch.rand(4), torch.rand(4, 3)])
def test_targets_have_the_shape_of_the_evidence(y):
    with pytest.raises(ValueError, match="alpha and y"):  # a row of targets would be repeated in silence
        evidential_loss(torch.rand(3, 4) + 1, y)
