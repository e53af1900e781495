"""UOT-RCL, MRL and ELRCMR against plain loops."""

import math

import pytest
import torch

from nclib import label_noise
from nclib.label_noise import LabelBatch
from nclib.label_noise.elrcmr import early_learning, moving_weight, update_targets, within_modality
from nclib.label_noise.mrl import multimodal_contrast, robust_clustering
from nclib.label_noise.parts import correction as correct
from nclib.label_noise.parts.label_report import label_report, relation_report
from nclib.label_noise.uot_rcl import row_shares
from nclib.ot import sinkhorn

DRAW = torch.Generator().manual_seed(0)
N, K, L = 12, 3, 4
ZV, ZT = torch.nn.functional.normalize(torch.randn(2, N, L, generator=DRAW, dtype=torch.float64), dim=2)
Y = torch.rand(N, K, generator=DRAW, dtype=torch.float64)
LABELS, OTHERS = torch.arange(N) % K, torch.arange(N) // 5
G = torch.tensor([0, 3, 7, 8])
MU = torch.nn.functional.normalize(torch.randn(L, K, generator=DRAW, dtype=torch.float64), dim=0)
BATCH = LabelBatch(torch.arange(N), ZV, ZT, LABELS, OTHERS)


def divergence(p, q):
    """Jensen-Shannon, term by term."""
    halves = [(a, (a + b) / 2) for pair in (zip(p, q, strict=True), zip(q, p, strict=True)) for a, b in pair]
    return sum(a * math.log(a / m) for a, m in halves if a > 0) / 2


def rows_of(f):
    return torch.stack([torch.as_tensor(f(i), dtype=torch.float64) for i in range(N)])


# -- votes, consistency and costs ---------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "q"), [([0.7, 0.2, 0.1, 0], [0.25] * 4), ([1, 0], [0, 1]), ([0.3, 0.7],) * 2])
def test_jensen_shannon(p, q):
    found = correct.jensen_shannon(*(torch.tensor(x, dtype=torch.float64) for x in (p, q)))
    assert found.item() == pytest.approx(divergence(p, q), abs=1e-12)


@pytest.mark.parametrize("k", [1, 4, 50])
@pytest.mark.parametrize("pool", [None, torch.tensor([9, 2, 5, 7, 1])])
def test_votes_equal_nested_loops(k, pool, monkeypatch):
    monkeypatch.setattr(correct, "ROWS", 5)
    chosen = list(range(N)) if pool is None else pool.tolist()
    n = min(k, len(chosen) - 1)  # at most all others

    def vote(i):
        near = sorted((j for j in chosen if j != i), key=lambda j: -float(ZV[i] @ ZV[j]))[:n]
        return sum(max(float(ZV[i] @ ZV[j]), 0) * Y[j] / n for j in near)

    torch.testing.assert_close(correct.neighbour_vote(ZV, Y, k, pool=pool), rows_of(vote))
    assert not correct.neighbour_vote(ZV[:1], Y[:1], k).any()


def test_consistency_with_the_nearest_confident_pair():
    def ratio(i):
        c = max(G.tolist(), key=lambda j: float(ZV[i] @ ZV[j]))
        a, b = (max(float(z[i] @ z[c]), 1e-3) for z in (ZV, ZT))
        return 1.0 if i in G else min(a / b, b / a)

    torch.testing.assert_close(correct.consistency(ZV, ZT, G), rows_of(ratio))


def test_semantic_cost_is_shifted_and_capped():
    vote = Y.clone()
    vote[2, 1] = 0.0
    cost = [[-math.log(max(x, 1e-8)) for x in row] for row in vote.tolist()]
    least = min(map(min, cost))
    wanted = torch.tensor([[x - least for x in row] for row in cost], dtype=torch.float64)
    torch.testing.assert_close(correct.semantic_cost(vote), wanted)


@pytest.mark.parametrize("entries", [2**24, 70])
def test_relation_cost_compares_every_pair_of_profiles(entries, monkeypatch):
    monkeypatch.setattr(correct, "ENTRIES", entries)
    profiles = [correct.relation_scores(z, z[G], 0.5) for z in (ZV, ZT)]
    for z, found in zip((ZV, ZT), profiles, strict=True):
        wanted = torch.stack([torch.stack([(x @ z[c] / 0.5).exp() for c in G]) for x in z])
        torch.testing.assert_close(found, wanted / wanted.sum(1, keepdim=True))
    rv, rt = (x.tolist() for x in profiles)
    wanted = rows_of(lambda i: [divergence(rv[i], q) for q in rt])
    torch.testing.assert_close(correct.relation_cost(*profiles), wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("per_class", [1, 2, 50])
def test_confident_pairs_are_the_best_of_every_class(per_class):
    pv, pt = (z @ (2 * MU) for z in (ZV, ZT))
    pv, pt = (torch.cat([x, x[:3]]).softmax(1) for x in (pv, pt))  # among equals the first is kept
    named = ((pv + pt) / 2).argmax(1).tolist()
    order = sorted(range(N + 3), key=lambda i: (round(divergence(pv[i].tolist(), pt[i].tolist()), 12), i))
    wanted = [i for k in range(K) for i in [j for j in order if named[j] == k][:per_class]]
    assert correct.confident_pairs(pv, pt, per_class).tolist() == sorted(wanted)


# -- losses -------------------------------------------------------------------------------------------------


class FakeNetwork:
    def __init__(self):
        self.prototypes = type("P", (), {"normalise": lambda s: None, "__call__": lambda s, z: z @ MU})()
        self.images = self.texts = lambda z: z


class FakeLoop:
    network, n_classes, epoch, device = FakeNetwork(), K, 5, torch.device("cpu")


def method_with(**options):
    method = label_noise.build("uot_rcl", **options)
    method.correcting, method.confident = True, G
    method.anchors, method.targets = [ZV[G], ZT[G]], [Y, Y.flip(0)]
    method.plans = []
    method.corrected = torch.rand(N, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return method


def test_relations_are_transported_and_contrasted():
    method = method_with(reg_relation=0.05)
    plan = method.relation_plan(ZV, ZT, method.anchors)
    cost = correct.relation_cost(*(correct.relation_scores(z, z[G]) for z in (ZV, ZT)))
    torch.testing.assert_close(plan, sinkhorn(cost / cost.max(), reg=0.05).plan, rtol=1e-2, atol=1e-5)
    loss = 0.0
    for m, logits in ((plan, ZV @ ZT.T), (plan.T, ZT @ ZV.T)):
        for i in range(N):
            share = m[i] / m[i].sum()
            loss -= float(sum(share[j] * logits[i].log_softmax(0)[j] for j in range(N))) / N
    assert method.relation_loss(BATCH, ZV, ZT).item() == pytest.approx(loss)
    terms = method.step(FakeLoop, BATCH)
    assert terms["bhg"].item() == pytest.approx(0.4 * loss)


@pytest.mark.parametrize(("name", "f"), [("ce", lambda p: -p.log()), ("bounded", lambda p: (1 - p).log())])
def test_label_losses_against_loops(name, f):
    method, log_p = method_with(label_loss=name), [(z @ MU).log_softmax(1) for z in (ZV, ZT)]
    each = [f(x.exp()) for x in log_p]
    given = sum(each[0][i, LABELS[i]] + each[1][i, OTHERS[i]] for i in range(N)) / N
    corrected = sum(method.corrected[i, k] * x[i, k] for i in range(N) for k in range(K) for x in each) / N
    assert method.given_loss(BATCH, log_p).item() == pytest.approx(given.item())
    assert method.corrected_loss(BATCH, log_p).item() == pytest.approx(corrected.item())
    assert method.step(FakeLoop, BATCH)["plc"].item() == pytest.approx(corrected.item())
    targets = sum((y * x).sum() for y, x in zip(method.targets, log_p, strict=True)) / -N
    assert method.target_loss(BATCH, log_p).item() == pytest.approx(targets.item())
    sure = torch.tensor([[0.0, -40.0, -40.0]] * N)  # probability 1 in float32
    assert all(x.isfinite().all() for x in method.label_losses([sure, sure]))


def test_instance_contrast_is_cross_entropy_against_the_own_partner():
    method, logits, own = method_with(relation="instance"), ZV @ ZT.T, torch.arange(N)
    expected = sum(torch.nn.functional.cross_entropy(x, own) for x in (logits, logits.T))
    assert method.relation_loss(BATCH, ZV, ZT).item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_bounded_loss_of_given_labels_with_mrls_contrast_is_mrl():
    method = method_with(plc="ce", label_loss="bounded", relation="mrl", lam=3 / 7)
    found, mrl = method.step(FakeLoop, BATCH), label_noise.build("mrl", beta=0.7).step(FakeLoop, BATCH)
    assert 0.7 * found["plc"].item() == pytest.approx(mrl["clustering"].item(), rel=1e-9)
    assert 0.7 * found["bhg"].item() == pytest.approx(mrl["contrast"].item(), rel=1e-9)


def test_row_shares_of_empty_rows():
    assert row_shares(torch.tensor([[0.0, 0], [1, 3]])).tolist() == [[0, 0], [0.25, 0.75]]


# -- MRL and ELRCMR ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.3, 1.0, 2.5])
def test_contrast_over_both_modalities_equals_a_loop(tau):
    s = torch.cat([ZV, ZT]) @ torch.cat([ZV, ZT]).T
    s = torch.exp(s / tau)
    share = [s[a, (a + N) % (2 * N)] / (s[a].sum() - s[a, a]) for a in range(2 * N)]  # without itself
    wanted = torch.stack([-(share[a] * share[a + N]).log() for a in range(N)])
    torch.testing.assert_close(multimodal_contrast(ZV, ZT, tau), wanted)


def test_robust_clustering_keeps_precision_where_the_class_is_certain():
    p = (ZV @ MU).softmax(1)
    wanted = torch.stack([(1 - p[i, LABELS[i]]).log() for i in range(N)])
    torch.testing.assert_close(robust_clustering(ZV @ MU, LABELS), wanted)
    certain = robust_clustering(torch.tensor([[40.0, 0.0]]), torch.tensor([0]))
    assert certain.item() == pytest.approx(-40.0, abs=1e-9)


def test_early_learning_moves_some_targets_towards_their_probabilities():
    p, index, before = torch.rand(4, K, generator=DRAW).double(), torch.tensor([3, 0, 7, 5]), 0.3 * Y
    after = before.clone()
    now = update_targets(after, index, p, 0.9)
    for row, i in enumerate(index.tolist()):
        torch.testing.assert_close(now[row], 0.9 * before[i] + 0.1 * p[row] / p[row].sum())
        assert torch.equal(after[i], now[row])
    assert torch.equal(after[1], before[1])
    wanted = torch.stack([(1 - sum(now[i] * p[i])).log() for i in range(4)])
    torch.testing.assert_close(early_learning(p, now), wanted)


def test_contrast_within_a_modality_equals_a_loop():
    predicted, z = torch.tensor([0, 1, 1, 0, 2, 1, 1, 0, 0, 1, 0, 0]), ZV.clone().requires_grad_()
    found = within_modality(z, predicted)
    for i in range(N):
        others = [j for j in range(N) if j != i]
        total = sum((ZV[i] @ ZV[j]).exp() for j in others)
        loss = [-((ZV[i] @ ZV[j]).exp() / total).log() for j in others if predicted[j] == predicted[i]]
        wanted = sum(loss) / (2 * len(loss) - 1) if loss else torch.zeros(())
        assert found[i].item() == pytest.approx(wanted.item())
    (gradient,) = torch.autograd.grad(found[4], z)  # without positives
    assert not gradient.any()


@pytest.mark.parametrize("t", [1, 500, 2200, 3000, 4000])
def test_the_moving_weight_falls_to_zero(t):
    wanted = 0.75 * (1 - math.exp(-5 * (1 - min(t, 3000) / 3000) ** 2))
    assert moving_weight(t, 0.75, 3000) == pytest.approx(wanted)


# -- reports ------------------------------------------------------------------------------------------------


def test_label_report_by_hand():
    corrected = torch.tensor([[0.6, 0.2, 0.0], [0.0, 0.4, 0.0], [0.1, 0.3, 0.0], [0.0, 0.0, 0.0]])
    assert label_report(corrected, torch.tensor([0, 1, 0, 2])) == pytest.approx(
        {
            "corrected_accuracy": 0.5,  # the empty row names class 0
            "corrected_accuracy_by_mass": 1.2 / 1.6,
            "corrected_mass_right": 1.1 / 1.6,
        }
    )
    assert label_report(0 * corrected, torch.zeros(4, dtype=torch.long))["corrected_mass_right"] == 0


def test_relation_report_by_hand():
    labels = torch.tensor([0, 0, 1, 1])
    plan = torch.tensor([[0.3, 0.1, 0.1], [0.0, 0.2, 0.1], [0.0, 0.0, 0.2]])
    rows = torch.tensor([0, 1, 3])  # classes 0, 0, 1
    assert relation_report([(rows, plan)], labels) == pytest.approx(
        {
            "relation_same_class": 0.8,  # 0.3 + 0.1 + 0.2 in class 0, 0.2 in class 1
            "relation_own_pair": 0.7,
            "relation_chance": 5 / 9,
            "relation_own_chance": 1 / 3,
        }
    )
    assert relation_report([], labels) == {}
