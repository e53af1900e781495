"""UOT-RCL, MRL and ELRCMR against worked numbers."""

import math

import pytest
import torch

from nclib import label_noise
from nclib.label_noise import LabelBatch
from nclib.label_noise.elrcmr import early_learning, moving_weight, update_targets, within_modality
from nclib.label_noise.mrl import multimodal_contrast, robust_clustering
from nclib.label_noise.parts import correction as correct
from nclib.label_noise.parts.label_report import RelationLog, label_report
from nclib.label_noise.uot_rcl import row_shares
from nclib.ot import label_transport, partial_exact


def unit(*degrees):
    a = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([a.cos(), a.sin()], 1)


ZV, ZT = unit(0, 20, 75, 100, 160), unit(10, 5, 110, 80, 130)
LABELS = torch.tensor([0, 0, 1, 1, 2])
Y = torch.nn.functional.one_hot(LABELS, 3).double()
G = torch.tensor([0, 3])
MU = unit(0, 90, 180).T
CAP = -math.log(1e-8)


def t(rows):
    return torch.tensor(rows, dtype=torch.float64)


def votes(kind="folded"):
    qv, qt = (correct.neighbour_vote(z, Y, 2) for z in (ZV, ZT))
    cv, ct = correct.consistency(ZV, ZT, G, kind), correct.consistency(ZT, ZV, G, kind)
    return cv[:, None] * qv + ct[:, None] * qt


def test_jensen_shannon():
    p, q = t([0.7, 0.2, 0.1, 0]), t([0.25] * 4)
    assert correct.jensen_shannon(p, q).item() == pytest.approx(0.160125, abs=1e-6)
    assert correct.jensen_shannon(p, p).item() == 0
    assert correct.jensen_shannon(t([1, 0]), t([0, 1])).item() == pytest.approx(0.693147, abs=1e-6)


def test_neighbour_votes():
    qv = [
        [0.469846, 0.129410, 0], [0.469846, 0.286788, 0], [0.286788, 0.453154, 0], [0, 0.453154, 0.25],
        [0, 0.293578, 0],
    ]  # fmt: skip
    qt = [
        [0.498097, 0.171010, 0], [0.498097, 0.129410, 0], [0, 0.433013, 0.469846], [0, 0.433013, 0.321394],
        [0, 0.791240, 0],
    ]  # fmt: skip
    assert torch.allclose(correct.neighbour_vote(ZV, Y, 2), t(qv), atol=1e-6)
    assert torch.allclose(correct.neighbour_vote(ZT, Y, 2), t(qt), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "images", "texts"),
    [
        ("folded", [1, 0.943282, 0.955553, 1, 0.777862], [1, 0.943282, 0.955553, 1, 0.777862]),
        ("literal", [1, 0.943282, 1.04651, 1, 0.777862], [1, 1.06013, 0.955553, 1, 1.28558]),
        ("distance", [1, 1, 0.699330, 1, 1], [1, 0.063114, 1, 1, 0.714425]),
        ("off", [1] * 5, [1] * 5),
    ],
)
def test_consistency(kind, images, texts):
    assert torch.allclose(correct.consistency(ZV, ZT, G, kind), t(images), rtol=1e-5)
    assert torch.allclose(correct.consistency(ZT, ZV, G, kind), t(texts), rtol=2e-4)


def test_semantic_cost_is_shifted_and_capped():
    expected = t(
        [
            [0.0325814, 1.20258, CAP],
            [0.0909713, 0.934985, CAP],
            [1.29448, 0.166315, 0.800814],
            [CAP, 0.120850, 0.559677],
            [CAP, 0.169794, CAP],
        ]
    )
    cost = correct.semantic_cost(votes())
    assert cost.min() == 0
    assert torch.allclose(cost, expected - expected.min(), atol=2e-5)
    literal = -votes("literal").clamp_min(1e-8).log()
    assert literal[4, 1].item() == pytest.approx(-0.219587, abs=1e-5)
    assert correct.semantic_cost(votes("literal")).min() == 0


def test_pools_are_respected():
    pool = torch.tensor([3, 4])
    q = correct.neighbour_vote(ZV, Y, 1, pool=pool)
    assert torch.allclose(q[0], t([0, 0, 0]))  # its nearest of the two is more than 90 degrees away
    assert torch.allclose(q[4], math.cos(math.radians(60)) * Y[3])


def test_more_neighbours_than_samples():
    q = correct.neighbour_vote(ZV, Y, 50)
    s = (ZV @ ZV.T).clamp_min(0).fill_diagonal_(0)
    assert torch.allclose(q, s @ Y / 4)
    assert correct.neighbour_vote(ZV[:1], Y[:1], 3).abs().sum() == 0


def test_votes_equal_nested_loops():
    g = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(40, 5, generator=g, dtype=torch.float64), dim=1)
    y = torch.rand(40, 3, generator=g, dtype=torch.float64)
    expected = torch.zeros(40, 3, dtype=torch.float64)
    for i in range(40):
        near = sorted((j for j in range(40) if j != i), key=lambda j: -float(z[i] @ z[j]))[:7]
        for j in near:
            expected[i] += max(float(z[i] @ z[j]), 0) * y[j] / 7
    assert torch.allclose(correct.neighbour_vote(z, y, 7), expected)


UNIFORM = torch.full((3,), 1 / 3, dtype=torch.float64)


def test_relation_scores_and_cost():
    rv, rt = correct.relation_scores(ZV, ZV[G]), correct.relation_scores(ZT, ZT[G])
    left = [0.763804, 0.682665, 0.343556, 0.236196, 0.191593]
    assert torch.allclose(rv[:, 0], t(left), atol=1e-6)
    assert torch.allclose(rt[:, 0], t([0.658806, 0.676422, 0.261213, 0.341194, 0.241809]), atol=1e-6)
    cost = correct.relation_cost(rv, rt)
    assert cost[0, 0].item() == pytest.approx(0.00673919, rel=1e-5)
    assert cost[0, 4].item() == pytest.approx(0.143226, rel=1e-5)
    assert cost.max() == cost[0, 4]
    assert cost[2, 3].item() == pytest.approx(3.09764e-6, rel=1e-5)
    assert cost[4, 2].item() == pytest.approx(0.00347016, rel=1e-5)


def test_relation_cost_in_parts_is_the_same(monkeypatch):
    g = torch.Generator().manual_seed(0)
    a, b = (torch.rand(9, 4, generator=g).softmax(1) for _ in range(2))
    whole = correct.relation_cost(a, b)
    monkeypatch.setattr(correct, "ENTRIES", 70)
    assert torch.equal(correct.relation_cost(a, b), whole)
    each = torch.stack([torch.stack([correct.jensen_shannon(x, y) for y in b]) for x in a])
    assert torch.allclose(whole, each, atol=1e-6)


class FakeNetwork:
    def __init__(self):
        self.prototypes = type("P", (), {"normalise": lambda s: None, "__call__": lambda s, z: z @ MU})()
        self.images = self.texts = lambda z: z


class FakeLoop:
    network, n_classes, epoch, device = FakeNetwork(), 3, 5, torch.device("cpu")


def method_with(**options):
    method = label_noise.build("uot_rcl", **options)
    method.correcting, method.confident = True, G
    method.anchors = [ZV[G], ZT[G]]
    method.targets = [Y, Y]
    return method


BATCH = LabelBatch(torch.arange(5), ZV, ZT, LABELS, LABELS)


def test_relation_plan_and_loss():
    method = method_with()
    plan = method.relation_plan(ZV, ZT, method.anchors)
    expected = t(
        [
            [0.356722, 0.643278, 0, 0, 0],
            [0.643278, 0.356722, 0, 0, 0],
            [0, 0, 0.0197439, 0.978187, 0.00206868],
            [0, 0, 0.588123, 0.0212699, 0.390608],
            [0, 0, 0.392133, 0.000542726, 0.607324],
        ]
    )
    assert torch.allclose(5 * plan, expected, atol=2e-5)
    assert method.relation_loss(BATCH, ZV, ZT).item() == pytest.approx(2.37077, abs=2e-5)
    looser = method_with(reg_relation=0.05)
    assert looser.relation_loss(BATCH, ZV, ZT).item() == pytest.approx(2.45354, abs=2e-5)


def test_class_probabilities_and_divergences():
    pv, pt = (ZV @ MU).softmax(1), (ZT @ MU).softmax(1)
    assert torch.allclose(pv[0], t([0.665241, 0.244728, 0.0900306]), atol=1e-6)
    assert torch.allclose(pt[0], t([0.631372, 0.280545, 0.0880830]), atol=1e-6)
    d = correct.jensen_shannon(pv, pt)
    assert torch.allclose(d, t([0.000837561, 0.00239782, 0.0193247, 0.00640550, 0.0150155]), rtol=1e-5)
    assert ((pv + pt) / 2).argmax(1).tolist() == [0, 0, 1, 1, 2]
    assert correct.confident_pairs(pv, pt, 1).tolist() == [0, 3, 4]
    assert correct.confident_pairs(pv, pt, 5).tolist() == [0, 1, 2, 3, 4]


def test_label_losses_and_total():
    method = method_with()
    log_p = [(z @ MU).log_softmax(1) for z in (ZV, ZT)]
    assert method.target_loss(BATCH, log_p).item() == pytest.approx(1.11084, abs=1e-5)
    assert method.given_loss(BATCH, log_p).item() == pytest.approx(1.11084, abs=1e-5)
    cost = -votes().clamp_min(1e-8).log()
    exact = partial_exact(cost - cost.min(), 0.5, None, UNIFORM)
    assert float(exact.value) + 0.5 * cost.min().item() == pytest.approx(0.0387875, abs=1e-6)
    method.corrected = 5 * exact.plan
    expected = torch.zeros(5, 3, dtype=torch.float64)
    expected[0, 0], expected[1, 0], expected[3, 1] = 1, 2 / 3, 5 / 6
    assert torch.allclose(method.corrected, expected, atol=1e-6)
    terms = method.step(FakeLoop, BATCH)
    assert terms["plc"].item() == pytest.approx(0.490088, abs=1e-5)
    assert sum(v.item() for v in terms.values()) == pytest.approx(1.43840, abs=2e-5)
    smooth = label_transport(cost, 0.5, UNIFORM, reg=0.05)
    assert smooth.value.item() == pytest.approx(0.0488081, rel=1e-5)


def test_confident_set_is_class_balanced_and_breaks_ties_by_position():
    p = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 0, 0, 0, 1, 1])]
    assert correct.confident_pairs(p, p, 2).tolist() == [0, 1, 4, 5]


def test_instance_contrast_is_cross_entropy_against_the_own_partner():
    method = method_with(relation="instance")
    logits = ZV @ ZT.T
    own = torch.arange(5)
    expected = sum(torch.nn.functional.cross_entropy(x, own) for x in (logits, logits.T))
    assert method.relation_loss(BATCH, ZV, ZT).item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_bounded_loss_of_given_labels_with_mrls_contrast_is_mrl():
    method = method_with(plc="ce", label_loss="bounded", relation="mrl", lam=3 / 7)
    found, mrl = method.step(FakeLoop, BATCH), label_noise.build("mrl", beta=0.7).step(FakeLoop, BATCH)
    assert 0.7 * found["plc"].item() == pytest.approx(mrl["clustering"].item(), rel=1e-9)
    assert 0.7 * found["bhg"].item() == pytest.approx(mrl["contrast"].item(), rel=1e-9)


def test_the_bounded_loss_of_corrected_labels_against_a_loop():
    method = method_with(label_loss="bounded")
    p = [(z @ MU).softmax(1) for z in (ZV, ZT)]
    method.corrected = torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loop = (
        sum(method.corrected[i, k] * (1 - q[i, k]).log() for i in range(5) for k in range(3) for q in p) / 5
    )
    found = method.corrected_loss(BATCH, [q.log() for q in p])
    assert found.item() == pytest.approx(loop.item(), rel=1e-12)
    sure = torch.tensor([[0.0, -40.0, -40.0]] * 5)  # probability 1 in float32
    assert all(x.isfinite().all() for x in method.label_losses([sure, sure]))


def test_mass_schedule():
    method = label_noise.build("uot_rcl")
    assert method.mass_at(2, 100) == 0.2
    assert method.mass_at(99, 100) == pytest.approx(0.8, abs=1e-12)
    assert method.mass_at(50, 100) == pytest.approx(0.2 + 0.6 * 48 / 97)
    assert label_noise.build("uot_rcl", warmup_epochs=0).mass_at(0, 1) == 0.2


def test_row_shares_of_empty_rows():
    assert row_shares(t([[0, 0], [1, 3]])).tolist() == [[0, 0], [0.25, 0.75]]


# -- MRL and ELRCMR ----------------------------------------------------------------------------------------

MV, MT, C2 = unit(0, 60, 200), unit(10, 90, 170), unit(0, 90).T
YV, YT = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])


def test_mrl():
    pv = (MV @ C2).softmax(1)
    assert torch.allclose(pv[1], t([0.409502, 0.590498]), atol=1e-6)
    lr = robust_clustering(MV @ C2, YV).mean().item(), robust_clustering(MT @ C2, YT).mean().item()
    assert lr == pytest.approx((-1.08069, -0.921710), abs=1e-5)
    lc = multimodal_contrast(MV, MT).mean().item()
    assert lc == pytest.approx(1.71912, abs=1e-5)
    assert 0.7 * sum(lr) + 0.3 * lc == pytest.approx(-0.885941, abs=1e-5)


@pytest.mark.parametrize("tau", [0.3, 1.0, 2.5])
def test_contrast_over_both_modalities_equals_a_loop(tau):
    z = torch.cat([MV, MT])
    s = torch.exp(z @ z.T / tau)
    share = [s[a, (a + 3) % 6] / (s[a].sum() - s[a, a]) for a in range(6)]  # of the positive, without itself
    wanted = torch.stack([-(share[a] * share[a + 3]).log() for a in range(3)])
    torch.testing.assert_close(multimodal_contrast(MV, MT, tau), wanted)


def test_robust_clustering_keeps_precision_where_the_class_is_certain():
    logits = t([[40.0, 0.0]])
    assert robust_clustering(logits, torch.tensor([0])).item() == pytest.approx(-40.0, abs=1e-9)


def test_early_learning():
    p = (MV @ C2).softmax(1)
    targets = t([[0.45, 0.45], [0.1, 0.5], [0.3, 0]])
    now = update_targets(targets, torch.arange(3), p, 0.9)
    expected = t([[0.478106, 0.431894], [0.130950, 0.509050], [0.305488, 0.0645124]])
    assert torch.allclose(now, expected, atol=1e-6)
    assert torch.equal(now, targets)
    regulariser = early_learning(p, now).mean().item()
    assert regulariser == pytest.approx(-0.408867, abs=1e-6)
    assert robust_clustering(MV @ C2, YV).mean().item() + regulariser == pytest.approx(-1.48955, abs=1e-5)


@pytest.mark.parametrize(("zeta", "value"), [(0, 1.71912), (0.001, 1.72222), (1, 4.82080)])
def test_contrast_within_a_modality(zeta, value):
    predicted = torch.tensor([0, 1, 1])
    within = sum(within_modality(z, predicted).sum().item() for z in (MV, MT))
    assert multimodal_contrast(MV, MT).mean().item() + zeta * within == pytest.approx(value, abs=1e-5)


def test_contrast_within_a_modality_without_positives_has_no_gradient():
    z = MV.clone().requires_grad_()
    loss = within_modality(z, torch.tensor([0, 1, 2])).sum()
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(z.grad, torch.zeros_like(z))


@pytest.mark.parametrize(
    ("step", "value"), [(1, 0.744930), (500, 0.726714), (1500, 0.535121), (2200, 0.224412), (3000, 0)]
)
def test_moving_weight(step, value):
    assert moving_weight(step, 0.75, 3000) == pytest.approx(value, abs=1e-6)
    assert moving_weight(4000, 0.75, 3000) == 0


def test_deep_sm_is_cross_entropy_alone():
    method = label_noise.build("deep_sm")
    batch = LabelBatch(torch.arange(3), MV, MT, YV, YT)
    loop = FakeLoop()
    loop.network = FakeNetwork()
    loop.network.prototypes = type("P", (), {"normalise": lambda s: None, "__call__": lambda s, z: z @ C2})()
    terms = method.step(loop, batch)
    assert sum(terms.values()).item() == pytest.approx(0.426121 + 0.704142, abs=1e-5)


def test_label_report_by_hand():
    corrected = t([[0.6, 0.2, 0.0], [0.0, 0.4, 0.0], [0.1, 0.3, 0.0], [0.0, 0.0, 0.0]])
    assert label_report(corrected, torch.tensor([0, 1, 0, 2])) == pytest.approx(
        {
            "corrected_accuracy": 0.5,  # the empty row names class 0
            "corrected_accuracy_by_mass": 1.2 / 1.6,
            "corrected_mass_right": 1.1 / 1.6,
        }
    )
    assert label_report(0 * corrected, torch.zeros(4, dtype=torch.long))["corrected_mass_right"] == 0


def test_relation_report_by_hand():
    log, labels = RelationLog(), torch.tensor([0, 0, 1, 1])
    plan = torch.tensor([[0.3, 0.1, 0.1], [0.0, 0.2, 0.1], [0.0, 0.0, 0.2]])
    log.add(torch.tensor([0, 1, 3]), plan)  # classes 0, 0, 1
    assert log.report(labels) == pytest.approx(
        {
            "relation_same_class": 0.8,  # 0.3 + 0.1 + 0.2 in class 0, 0.2 in class 1
            "relation_own_pair": 0.7,
            "relation_chance": 5 / 9,
            "relation_own_chance": 1 / 3,
        }
    )
    assert RelationLog().report(labels) == {}
