"""NCR against worked numbers, naive loops, and the order of its two steps."""

import pytest
import tiny
import torch
from tiny import SCORES as S

from nclib import losses, methods
from nclib.methods import Batch
from nclib.methods.coteaching import Division
from nclib.methods.ncr import predicted_correspondence, rectified_label

W = torch.tensor([0.95, 0.55, 0.9, 0.7], dtype=torch.float64)
LABEL = torch.tensor([1, 0.735625, 1, 0.986875], dtype=torch.float64)


# ------------------------------------------------------------------------------------------ worked numbers


def test_worked_losses_and_prediction():
    ell = losses.triplet(S, 0.2, "mean")
    assert ell.tolist() == pytest.approx([0, 0.235, 0, 0.0175], abs=1e-12)
    assert ell.sum().item() == pytest.approx(0.2525)
    assert (0.2 - ell / 2).tolist() == pytest.approx([0.2, 0.0825, 0.2, 0.19125])
    assert predicted_correspondence(S, 0.2).tolist() == pytest.approx([1, 0.4125, 1, 0.95625])


def test_worked_labels_margins_and_loss():
    y = rectified_label(W, predicted_correspondence(S, 0.2))
    assert y.tolist() == pytest.approx(LABEL.tolist(), abs=1e-12)
    margins = losses.soft_margins(y)
    assert margins.tolist() == pytest.approx([0.2, 0.0986739, 0.2, 0.193385], rel=1e-5)
    assert losses.soft_margin_triplet(S, margins).sum().item() == pytest.approx(0.440732, rel=1e-5)


# ---------------------------------------------------------------------------------------------- prediction


@pytest.mark.parametrize("B", [2, 9, 10, 35])
def test_prediction_equals_a_plain_loop(B):
    scores = torch.rand(B, B, generator=torch.Generator().manual_seed(B), dtype=torch.float64)
    p = []
    for i in range(B):
        ell = sum(max(0.0, 0.2 + float(scores[i, j] - scores[i, i])) for j in range(B) if j != i)
        ell += sum(max(0.0, 0.2 + float(scores[j, i] - scores[i, i])) for j in range(B) if j != i)
        p.append(min(max(0.2 - ell / B / 2, 0.0), 0.2))
    top = sorted(p, reverse=True)[: B // 10 + 1]
    scale = sum(top) / len(top)
    expected = [min(max(v / scale, 0.0), 1.0) if scale > 0 else 0.0 for v in p]
    assert predicted_correspondence(scores, 0.2).tolist() == pytest.approx(expected, abs=1e-12)


def test_prediction_of_a_batch_in_which_nothing_stands_out_is_zero():
    scores = torch.rand(6, 6) + 5
    scores.fill_diagonal_(0.0)
    assert predicted_correspondence(scores, 0.2).tolist() == [0.0] * 6


def test_label_lies_between_posterior_and_one():
    g = torch.Generator().manual_seed(0)
    w, P = torch.rand(100, generator=g), torch.rand(100, generator=g)
    y = rectified_label(w, P)
    assert (y >= w).all()
    assert (y <= 1).all()
    assert torch.equal(rectified_label(torch.zeros(100), P), P)


# ------------------------------------------------------------------------------------------------ one step


class Loop:
    """Two tiny networks that score 20 pairs; counts who is asked in which mode."""

    device, n_pairs, batch_size, active = torch.device("cpu"), 20, 6, 0

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.weights = [torch.nn.Parameter(torch.randn(5, 5, generator=g)) for _ in range(2)]
        self.images, self.texts = (torch.randn(20, 5, generator=g) for _ in range(2))
        self.asked = []

    def evaluating(self):
        return torch.no_grad()

    def batch(self, index):
        return Batch(index, self.images[index], index)

    def similarity(self, batch, network=None):
        network = self.active if network is None else network
        self.asked.append((network, torch.is_grad_enabled()))
        return torch.sigmoid(batch.images @ self.weights[network] @ self.texts[batch.captions].T)


def method_with(loop, p):
    method = methods.build("ncr")
    method.divisions = [Division(p[k], p[k], p[k] > 0.5, torch.zeros(0, 3)) for k in (0, 1)]
    return method


@pytest.mark.parametrize("active", [0, 1])
def test_two_steps_with_labels_from_before(active):
    loop = Loop()
    loop.active = active
    p = torch.rand(2, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    method = method_with(loop, p)
    clean, noisy = loop.batch(torch.arange(6)), loop.batch(torch.arange(10, 16))
    with torch.no_grad():
        P = [predicted_correspondence(loop.similarity(noisy, k)) for k in (0, 1)]
        own = predicted_correspondence(loop.similarity(clean, active))
        y_clean = p[1 - active][:6].float() + (1 - p[1 - active][:6].float()) * own
        y_noisy = (P[0] + P[1]) / 2
        first = losses.soft_margin_triplet(loop.similarity(clean), losses.soft_margins(y_clean)).sum()
    loop.asked.clear()
    steps = method.step(loop, (clean, noisy))
    terms = next(steps)
    assert set(terms) == {"clean"}
    assert terms["clean"].item() == pytest.approx(first.item(), rel=1e-6)
    assert sorted(loop.asked[:3]) == sorted([(active, False), (0, False), (1, False)])
    terms["clean"].backward()
    assert loop.weights[1 - active].grad is None  # the peer only judges
    with torch.no_grad():
        loop.weights[active] += 0.1  # the clean step
        second = losses.soft_margin_triplet(loop.similarity(noisy), losses.soft_margins(y_noisy)).sum()
    terms = next(steps)
    assert set(terms) == {"noisy"}
    assert terms["noisy"].item() == pytest.approx(second.item(), rel=1e-6)  # new weights, old labels
    with pytest.raises(StopIteration):
        next(steps)


def test_without_noisy_pairs_there_is_one_step():
    loop = Loop()
    method = method_with(loop, torch.rand(2, 20, dtype=torch.float64))
    assert [set(t) for t in method.step(loop, (loop.batch(torch.arange(6)), None))] == [{"clean"}]


# --------------------------------------------------------------------------------------------- in real runs


def test_noisy_loss_enters_in_the_second_half(tmp_path):
    record = tiny.run("ncr", tmp_path, epochs=3, data_options=tiny.SMALLER)
    assert ["loss_noisy" in row for row in record.curves] == [False, False, True, True]
    assert {"auc", "ece", "division_precision", "called_matched"} <= set(record.diagnostics)
