"""NCR against naive loops, and the order of its two steps."""

import pytest
import torch

from nclib import losses, methods
from nclib.methods import Batch
from nclib.methods.coteaching import Division
from nclib.methods.ncr import predicted_correspondence, rectified_label

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


def test_label_moves_from_the_posterior_towards_one():
    g = torch.Generator().manual_seed(0)
    w, P = torch.rand(100, generator=g), torch.rand(100, generator=g)
    y = rectified_label(w, P)
    torch.testing.assert_close(y, w + (1 - w) * P)


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
    assert list(steps) == []
    assert [set(terms) for terms in method.step(loop, (clean, None))] == [{"clean"}]
