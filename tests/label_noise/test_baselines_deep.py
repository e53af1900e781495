"""Deep baselines: losses against their definitions written out, learning on clean data, corner cases."""

import math

import pytest
import torch
import torch.nn.functional as F
from refusals import refused

from nclib import label_noise
from nclib.label_noise import Shape, acmr, clip_heads, dccae, dscmr, fgcrossnet, sdml
from nclib.label_noise.parts import cca

SHAPE = Shape(12, 8, 5, hidden=16, dim=10)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(n, k=3, seed=0):
    return torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------------------------------- DSCMR, SDML


def test_dscmr_terms_pair_by_pair():
    u, v, y_u, y_v = draw(6, 4), draw(6, 4, seed=1), labels(6), labels(6, seed=1)
    total = 0.0
    for a, b, y_a, y_b in ((u, u, y_u, y_u), (u, v, y_u, y_v), (v, v, y_v, y_v)):
        for i in range(6):
            for j in range(6):
                theta = 0.5 * float(a[i] @ b[j]) / (float(a[i].norm()) * float(b[j].norm()))
                total += (math.log(1 + math.exp(theta)) - (y_a[i] == y_b[j]).item() * theta) / 36
    assert dscmr.likeness(u, v, y_u, y_v).item() == pytest.approx(total, abs=1e-12)
    # Worked by hand: predictions (1, 0) and (0.6, 0.8) for class 0.
    error = dscmr.label_error(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 0]))
    torch.testing.assert_close(error, torch.tensor([0.0, math.sqrt(0.16 + 0.64)]))


def test_label_error_of_a_perfect_prediction_has_a_finite_gradient():
    prediction = torch.tensor([[1.0, 0.0]], requires_grad=True)
    dscmr.label_error(prediction, torch.tensor([0])).sum().backward()
    assert torch.isfinite(prediction.grad).all()


def test_sdml_predicts_through_a_fixed_orthonormal_projection():
    method = label_noise.build("sdml")
    net = method.build(SHAPE)
    torch.testing.assert_close(net.projection.T @ net.projection, torch.eye(5), atol=1e-5, rtol=0)
    assert "projection" in net.state_dict()
    groups = method.parameters(net, 1e-4)
    assert [g["lr"] for g in groups] == [1e-4, 2e-4]
    trained = {id(p) for g in groups for p in g["params"]}
    assert trained == {id(p) for p in net.parameters()}
    assert id(net.projection) not in trained
    torch.testing.assert_close(net.images(draw(4, 12, dtype=torch.float32)).norm(dim=1), torch.ones(4))
    refused(ValueError, lambda: method.build(Shape(12, 8, 5, hidden=4, dim=3)), "dim=3", "at least", "5")
    rebuilt, x = draw(3, 4), draw(3, 4, seed=1)
    expected = torch.stack([(rebuilt[i] - x[i]).square().sum().sqrt() for i in range(3)])
    torch.testing.assert_close(sdml.reconstruction_error(rebuilt, x), expected)


class Loop:
    """Just what a step needs."""

    device, epoch, n_epochs, iteration = torch.device("cpu"), 1, 4, 3

    def __init__(self, network):
        self.network = network

    def generator(self, purpose):
        return torch.Generator().manual_seed(len(purpose))


def batch(n=9, k=3):
    images, texts = draw(n, 12, dtype=torch.float32), draw(n, 8, seed=1, dtype=torch.float32)
    return label_noise.LabelBatch(torch.arange(n), images, texts, labels(n, k), labels(n, k, seed=2))


def test_sdml_weighs_rebuilding_against_labels_and_keeps_the_modalities_apart():
    method = label_noise.build("sdml", alpha=0.25)
    net, b = method.build(SHAPE), batch()
    terms = method.step(Loop(net), b)
    z = net.images(b.images)
    rebuilt = F.normalize(net.image_decoder(z), dim=1)
    expected = 0.25 * (rebuilt - b.images).norm(dim=1).mean()
    torch.testing.assert_close(terms["image_rebuilt"], expected)
    expected = 0.75 * (z @ net.projection - F.one_hot(b.image_labels, 5)).norm(dim=1).mean()
    torch.testing.assert_close(terms["image_label"], expected)
    (terms["image_rebuilt"] + terms["image_label"]).backward()
    assert all(p.grad is None for name, p in net.named_parameters() if name.startswith("text"))


def test_deep_sm_is_cross_entropy_on_prototypes():
    method = label_noise.build("deep_sm", tau1=0.5)
    net, b = method.build(SHAPE), batch()
    terms = method.step(Loop(net), b)
    mu = net.prototypes.weight
    torch.testing.assert_close(mu.norm(dim=0), torch.ones(5))
    expected = F.cross_entropy(net.texts(b.texts) @ mu / 0.5, b.text_labels)
    torch.testing.assert_close(terms["texts"], expected)


# --------------------------------------------------------------------------------------------- DCCA, DCCAE


def inverse_root(s):
    values, vectors = torch.linalg.eigh(s)
    return vectors @ torch.diag(values**-0.5) @ vectors.T


def test_correlations_are_the_singular_values_of_t():
    h1, h2 = draw(50, 4), draw(50, 3, seed=1)
    h2 = h2 + h1[:, :3]
    c = torch.cov(torch.cat([h1, h2], 1).T)  # divisor n - 1
    r1, r2 = 1e-3, 1e-2
    t = inverse_root(c[:4, :4] + r1 * torch.eye(4)) @ c[:4, 4:] @ inverse_root(c[4:, 4:] + r2 * torch.eye(3))
    expected = torch.linalg.svdvals(t)
    torch.testing.assert_close(cca.correlations(h1, h2, r1, r2), expected)
    assert cca.correlations(h1.float(), h2.float()).dtype == torch.float64


def test_correlation_gradient():
    h1, h2 = (x.requires_grad_() for x in (draw(12, 3), draw(12, 3, seed=1)))
    assert torch.autograd.gradcheck(lambda a, b: cca.correlations(a, b).sum(), (h1, h2))
    # Equal correlations, where roots by eigenvectors have a pole.
    h = torch.linalg.qr(draw(12, 3) - draw(12, 3).mean(0)).Q.detach().requires_grad_()
    cca.correlations(h, h.detach() * 2).sum().backward()
    assert torch.isfinite(h.grad).all()


def test_the_final_cca_whitens_the_outputs():
    net = label_noise.build("dcca", outputs=4).build(Shape(12, 8, 5, hidden=16, dim=10))
    x, y = draw(300, 12, dtype=torch.float32), draw(300, 8, seed=1, dtype=torch.float32)
    y[:, :4] += x[:, :4]
    raw = net.images(x).detach()
    torch.testing.assert_close(raw, net.image_net(x).detach())  # the identity before the first epoch ends
    net.fit_cca(x, y, 1e-9, 1e-9)
    a, b = net.images(x).detach(), net.texts(y).detach()
    joint = torch.cov(torch.cat([a, b], 1).T)
    torch.testing.assert_close(joint[:4, :4], torch.eye(4), atol=2e-3, rtol=0)
    cross = joint[:4, 4:]
    torch.testing.assert_close(cross, torch.diag(cross.diagonal()), atol=2e-3, rtol=0)
    assert torch.all(cross.diagonal().diff() <= 1e-4)
    assert {"image_mean", "image_map", "text_mean", "text_map"} <= set(net.state_dict())


def test_dccae_adds_the_reconstruction():
    x, rebuilt = draw(3, 4), draw(3, 4, seed=1)
    expected = torch.stack([(x[i] - rebuilt[i]) @ (x[i] - rebuilt[i]) for i in range(3)])
    torch.testing.assert_close(dccae.reconstruction(x, rebuilt), expected)
    method = label_noise.build("dccae", lam=0.5, outputs=3)
    net, b = method.build(SHAPE), batch(40)
    terms = method.step(Loop(net), b)
    plain = -cca.correlations(net.image_net(b.images), net.text_net(b.texts)).sum()
    torch.testing.assert_close(terms["correlation"], plain.float())
    images = net.image_decoder(net.image_net(b.images)) - b.images
    texts = net.text_decoder(net.text_net(b.texts)) - b.texts
    torch.testing.assert_close(terms["rebuilt"], 0.5 * (images.square().sum() + texts.square().sum()) / 40)


# --------------------------------------------------------------------------------------------------- ACMR


def test_reversal_grows_from_nothing_and_turns_the_gradient():
    assert acmr.reversal_strength(0) == 0
    assert acmr.reversal_strength(0.5) == pytest.approx(2 / (1 + math.exp(-5)) - 1)
    x = draw(3).requires_grad_()
    y = acmr.reverse_gradient(x, 0.3)
    assert torch.equal(y, x)
    (y * torch.tensor([1.0, 2, 3])).sum().backward()
    torch.testing.assert_close(x.grad, -0.3 * torch.tensor([1.0, 2, 3], dtype=torch.float64))


def test_hard_negatives_one_by_one():
    x, y = draw(12, 5), labels(12)
    index, found = acmr.hard_negatives(x, y)
    for i in range(12):
        others = [j for j in range(12) if y[j] != y[i]]
        assert found[i] == bool(others)
        best = max(others, key=lambda j: F.cosine_similarity(x[i], x[j], dim=0).item())
        assert index[i] == best
    assert not acmr.hard_negatives(x, torch.zeros(12, dtype=torch.long))[1].any()


def test_batch_triplet_sums_before_the_hinge():
    v, t = draw(5, 3), draw(5, 3, seed=1)
    of_v, of_t = torch.tensor([1, 0, 3, 2, 0]), torch.tensor([2, 3, 0, 1, 1])
    found = torch.tensor([True, True, True, True, False])
    rows = [0, 1, 2, 3]

    def distance(a, b):
        return sum(0.5 * float((a[i] - b[i]) @ (a[i] - b[i])) for i in rows)

    expected = max(0, 0.1 + 2.0 * distance(v, t) - distance(v, t[of_v]))
    expected += max(0, 0.1 + 2.0 * distance(t, v) - distance(t, v[of_t]))
    assert expected > 0
    assert acmr.batch_triplet(v, t, (of_v, of_t), found, 0.1, 2.0).item() == pytest.approx(expected)
    nothing = acmr.batch_triplet(v, t, (of_v, of_t), torch.zeros(5, dtype=torch.bool), 0.0, 5.0)
    assert nothing.item() == 0


def test_the_adversary_learns_and_the_embedding_unlearns():
    method = label_noise.build("acmr", emb=8)
    net, b = method.build(SHAPE), batch(6)
    gradients = {}
    for reverse in (True, False):
        net.zero_grad()
        z = torch.cat([net.images(b.images), net.texts(b.texts)])
        z = acmr.reverse_gradient(z, 0.5) if reverse else z
        F.cross_entropy(net.domain(z), torch.arange(12) // 6).backward()
        gradients[reverse] = net.image_net[0].weight.grad.clone(), net.domain[0].weight.grad.clone()
    torch.testing.assert_close(gradients[True][0], -0.5 * gradients[False][0])
    torch.testing.assert_close(gradients[True][1], gradients[False][1])
    terms = method.step(Loop(net), b)
    assert set(terms) == {"label", "triplet", "domain"}
    assert "domain" not in label_noise.build("acmr", adversarial=0.0).step(Loop(net), b)


# --------------------------------------------------------------------------- FGCrossNet's losses, CLIP heads


def test_quadruplets_one_by_one():
    s, y = draw(7, 3), torch.tensor([0, 0, 1, 1, 2, 2, 0])
    picks = (torch.tensor([1, 0, 3, 2, 5, 0, 1]), torch.tensor([2, 2, 0, 4, 0, 1, 1]),
             torch.tensor([4, 3, 4, 0, 3, 2, 4]))  # fmt: skip
    terms = []
    for a, p, n, o in zip(range(7), *(pick.tolist() for pick in picks), strict=True):
        if y[p] == y[a] and y[n] != y[a] and y[o] != y[a] and y[o] != y[n]:
            ap, an, no = (float((s[i] - s[j]).norm()) for i, j in ((a, p), (a, n), (n, o)))
            terms += [x for x in (ap - an + 1.0, ap - no + 0.5) if x > 0]
    assert len(terms) > 2
    assert fgcrossnet.quadruplet(s, y, picks, 1.0, 0.5).item() == pytest.approx(sum(terms) / len(terms))
    assert fgcrossnet.quadruplet(s, torch.zeros_like(y), picks, 1.0, 0.5).item() == 0
    centres = draw(3, 3, seed=1)
    expected = torch.stack([(s[i] - centres[y[i]]).square().sum() / 2 for i in range(7)])
    torch.testing.assert_close(fgcrossnet.centre_loss(s, y, centres), expected)


def test_ranking_starts_in_the_second_half():
    method = label_noise.build("fgcrossnet_losses")
    loop, b = Loop(method.build(SHAPE)), batch()
    assert "ranking" not in method.step(loop, b)
    loop.epoch = 2
    assert "ranking" in method.step(loop, b)


def test_contrast_of_pairs_is_infonce_and_of_classes_spreads_over_them():
    S, eye = draw(5, 5), torch.eye(5, dtype=torch.bool)
    own = torch.arange(5)
    expected = (F.cross_entropy(S, own, reduction="none") + F.cross_entropy(S.T, own, reduction="none")) / 2
    torch.testing.assert_close(clip_heads.contrast(S, eye), expected)
    y_v, y_t = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 1, 0, 3])  # class 2 and 3: no counterpart
    same = y_v[:, None] == y_t
    value = 0.0
    for logits, positive in ((S, same), (S.T, same.T)):
        for i in range(5):
            chosen = [j for j in range(5) if positive[i, j]] or [i]
            value -= sum(logits[i].log_softmax(0)[j].item() for j in chosen) / len(chosen) / 2
    assert clip_heads.contrast(S, same).sum().item() == pytest.approx(value)


def test_zero_shot_needs_one_space_and_heads_start_from_it():
    method = label_noise.build("zero_shot")
    y = labels(6)
    train = label_noise.Training(draw(6, 4), draw(6, 5), y, y, 3)
    refused(ValueError, lambda: method.fit(train, lambda: 0.0), "4", "5")
    net = label_noise.build("contrastive_heads").build(Shape(6, 6, 3, hidden=4, dim=2))
    assert net.log_scale.exp().item() == pytest.approx(14.2857, abs=1e-4)  # of train-CLIP-FT
    x = draw(3, 6, dtype=torch.float32)
    torch.testing.assert_close(net.images(x), F.normalize(x, dim=1))


# -------------------------------------------------------------------------------------------- all of them
