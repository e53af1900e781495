"""Linear baselines: against their definitions written out, corner cases, what noise may change."""

import itertools

import numpy as np
import pytest
import torch
from refusals import refused

from nclib import label_noise
from nclib.evaluation import mean_average_precision
from nclib.label_noise import Training
from nclib.label_noise.gma import ALPHAS, scatter
from nclib.label_noise.gss_sl import normal_equations, objective, sparse_regression
from nclib.label_noise.mcca import canonical
from nclib.label_noise.mvda import pooled_scatter
from nclib.label_noise.parts import linear


def planted(n, k=4, seed=0, scale=1.0):
    """Two views of class means and of a hidden nuisance that they share."""
    fixed, rng = np.random.default_rng(99), np.random.default_rng(seed)
    means = [2 * fixed.normal(size=(k, d)) for d in (12, 8)]
    mixing = [fixed.normal(size=(3, d)) for d in (12, 8)]
    y, hidden = rng.integers(0, k, n), rng.normal(size=(n, 3))
    y[:k] = np.arange(k)
    v, t = (
        m[y] + hidden @ w + scale * rng.normal(size=(n, m.shape[1]))
        for m, w in zip(means, mixing, strict=True)
    )
    return torch.from_numpy(v).float(), torch.from_numpy(t).float(), torch.from_numpy(y)


def pairs(n=150, k=4, seed=0, extra=0):
    v, t, y = planted(n, k, seed)
    return Training(v, t, y, y.clone(), k + extra)


def fitted(name, train, seed=1, **options):
    method = label_noise.build(name, **options)
    v, t, y = planted(80, seed=seed)

    def validate():
        a, b = method.project_images(v), method.project_texts(t)
        return (mean_average_precision(a, b, y, y) + mean_average_precision(b, a, y, y)) / 2

    method.fit(train, validate)
    return method, validate


# ------------------------------------------------------------------------------------------ principal axes


@pytest.mark.parametrize("shape", [(40, 9), (9, 40)])
def test_principal_axes_are_those_of_the_covariance(shape, monkeypatch):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 3, shape[1]) + 5
    monkeypatch.setattr(linear, "ROWS", 7)
    view = linear.principal(x, 1.0)
    rank = min(shape[0] - 1, shape[1])
    assert view.axes.shape == (shape[1], rank)
    torch.testing.assert_close(view.axes.T @ view.axes, torch.eye(rank, dtype=torch.float64))
    torch.testing.assert_close(view.x @ view.axes.T + view.mean, x.double())
    expected = torch.linalg.eigvalsh(torch.cov(x.double().T)).flip(0)[:rank]
    torch.testing.assert_close(view.variances, expected)
    assert torch.all(view.x.mean(0).abs() < 1e-12)


def test_energy_keeps_the_fewest_axes_that_hold_it():
    x = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])).repeat(2, 1)
    x[4:] *= -1  # variances in the ratio 16 : 9 : 4 : 1
    for energy, axes in ((0.5, 1), (16 / 30, 1), (0.54, 2), (0.83, 2), (0.9, 3), (1.0, 4)):
        assert linear.principal(x, energy).axes.shape[1] == axes


def test_dimensions_to_try():
    assert linear.dimensions(0, 300, 10) == [2, 4, 8, 9, 16, 32, 64]
    assert linear.dimensions(0, 6, 10) == [2, 4, 6]
    assert linear.dimensions(0, 300, 1) == [1, 2, 4, 8, 16, 32, 64]
    assert linear.dimensions(20, 8, 10) == [8]


def test_choice_takes_the_first_best_and_leaves_it_in_use():
    values, used = {1: 0.2, 2: 0.7, 3: 0.7, 4: 0.1}, []
    assert linear.choose_best([1, 2, 3, 4], used.append, lambda: values[used[-1]]) == 2
    assert used == [1, 2, 3, 4, 2]
    assert linear.choose_best([5], used.append, lambda: pytest.fail("nothing to choose")) == 5


# ------------------------------------------------------------------------------------------------ methods


def test_pls_is_the_decomposition_of_the_cross_covariance():
    train = pairs()
    method, _ = fitted("pls", train, components=5)
    views = []
    for x in (train.images, train.texts):
        x = x.double()
        views.append((x - x.mean(0)) / x.std(0))
    left, _, right = torch.linalg.svd(views[0].T @ views[1])
    for got, x, w in (
        (method.project_images(train.images.double()), views[0], left[:, :5]),
        (method.project_texts(train.texts.double()), views[1], right[:5].T),
    ):
        torch.testing.assert_close(got.abs(), (x @ w).abs(), atol=1e-9, rtol=1e-7)  # signs are free
    signs = [torch.sign((a * b).sum(0)) for a, b in (
        (method.project_images(train.images.double()), views[0] @ left[:, :5]),
        (method.project_texts(train.texts.double()), views[1] @ right[:5].T),
    )]  # fmt: skip
    assert torch.equal(*signs)  # but the same in both views


def test_mcca_gives_uncorrelated_variates_with_the_canonical_correlations():
    train = pairs()
    w, z = canonical(linear.views(train, 1.0), 0.0)
    a, b = train.images.double() @ w, train.texts.double() @ z
    joint = torch.cov(torch.cat([a, b], 1).T)
    k = a.shape[1]
    torch.testing.assert_close(joint[:k, :k], torch.eye(k, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(joint[k:, k:], torch.eye(k, dtype=torch.float64), atol=1e-9, rtol=0)
    cov = torch.cov(torch.cat([train.images, train.texts], 1).double().T)
    s11, s12, s22 = cov[:12, :12], cov[:12, 12:], cov[12:, 12:]
    squares = torch.linalg.eigvals(torch.linalg.solve(s11, s12) @ torch.linalg.solve(s22, s12.T)).real
    rho = squares.sort(descending=True).values[:k].clamp_min(0).sqrt()
    torch.testing.assert_close(joint[:k, k:], torch.diag(rho), atol=1e-8, rtol=0)


def test_a_ridge_shrinks_the_canonical_directions():
    views = linear.views(pairs(), 1.0)
    norms = [canonical(views, ridge)[0].norm() for ridge in (0.0, 0.1, 1.0)]
    assert norms[0] > norms[1] > norms[2]


def test_gma_scatter_is_that_of_the_label_graph():
    x, _, y = planted(30)
    view = linear.principal(x, 1.0)
    same = (y[:, None] == y).double()
    W = same / same.sum(1, keepdim=True)
    between, within, z = scatter(view, y, 6)
    torch.testing.assert_close(between, view.x.T @ W @ view.x)
    torch.testing.assert_close(within, view.x.T @ (torch.eye(30, dtype=torch.float64) - W) @ view.x)
    torch.testing.assert_close(z[1], view.x[y == 1].mean(0))
    assert not z[4:].any()  # classes without samples


def test_gma_maximises_its_quotient():
    train = pairs()
    alpha = 50.0
    method, _ = fitted("gma", train, alpha=alpha, energy=1.0)
    state = method.state()
    a1, b1, z1 = scatter(linear.principal(train.images, 1.0), train.image_labels, 4)
    a2, b2, z2 = scatter(linear.principal(train.texts, 1.0), train.text_labels, 4)
    axes = [linear.principal(x, 1.0).axes for x in (train.images, train.texts)]
    gamma = b1.trace() / b2.trace()

    def quotient(w):
        p, q = w[:12], w[12:]
        top = p @ a1 @ p + q @ a2 @ q + 2 * alpha * (p @ z1.T @ z2 @ q)
        return top / (p @ b1 @ p + gamma * q @ b2 @ q)

    best = torch.cat([axes[0].T @ state["image_weight"][:, 0], axes[1].T @ state["text_weight"][:, 0]])
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        step = torch.randn(20, generator=g, dtype=torch.float64)
        assert quotient(best) >= quotient(best + 0.05 * best.norm() * step / step.norm()) - 1e-9


def test_gma_chooses_alpha_on_validation():
    train = pairs()
    method, validate = fitted("gma", train)
    value, alpha = validate(), method.chosen()["alpha"]
    assert alpha in ALPHAS
    assert value == max(fitted("gma", train, alpha=a)[1]() for a in ALPHAS)


def naive_mvda(views, labels, k):
    """The pooled scatter sample by sample: every sample is a vector with zeros in the other view."""
    width = sum(v.shape[1] for v in views)
    samples, classes, start = [], [], 0
    for v, y in zip(views, labels, strict=True):
        wide = np.zeros((len(v), width))
        wide[:, start : start + v.shape[1]] = v
        samples.append(wide)
        classes.append(y)
        start += v.shape[1]
    samples, classes = np.concatenate(samples), np.concatenate(classes)
    within, between, overall = np.zeros((width, width)), np.zeros((width, width)), samples.mean(0)
    for c in range(k):
        group = samples[classes == c]
        if len(group):
            centre = group.mean(0)
            within += (group - centre).T @ (group - centre)
            between += len(group) * np.outer(centre - overall, centre - overall)
    return within, between


def test_mvda_scatter_is_that_of_the_pooled_projections():
    train = pairs(40)
    other = torch.from_numpy(np.random.default_rng(3).integers(0, 3, 40))  # class 3 in one view only
    views = linear.views(train, 1.0)
    within, between = pooled_scatter(views, (train.image_labels, other), 6)
    expected = naive_mvda([v.x.numpy() for v in views], [train.image_labels.numpy(), other.numpy()], 6)
    np.testing.assert_allclose(within, expected[0], atol=1e-9)
    np.testing.assert_allclose(between, expected[1], atol=1e-9)


def test_sparse_regression_reaches_a_stationary_point():
    x, _, y = planted(60)
    _, a, b = normal_equations(x, y, 5, 0.1)
    lam = 20.0
    u, values = sparse_regression(a, b, lam, rounds=3000, tol=1e-14)
    assert all(after <= before + 1e-9 * abs(before) for before, after in itertools.pairwise(values))
    norms = u.norm(dim=1)
    gradient = 2 * (a @ u - b)
    kept = norms > 1e-3 * norms.max()
    assert kept.sum() > 0
    torch.testing.assert_close(gradient[kept], -lam * u[kept] / norms[kept, None], atol=1e-3 * lam, rtol=0)
    assert torch.all(gradient[~kept].norm(dim=1) <= lam * 1.01)
    assert float(objective(a, b, u, lam)) == pytest.approx(values[-1])
    ends = [len(sparse_regression(a, b, lam, rounds=50, tol=tol)[1]) for tol in (1.0, 1e-3, 1e-14)]
    assert ends[0] < ends[1] < ends[2] == 51


def test_label_graph_adds_the_within_class_scatter():
    x, _, y = planted(30)
    _, plain, b = normal_equations(x, y, 4, 0.0)
    _, graphed, _ = normal_equations(x, y, 4, 2.0)
    centred = x.double() - x.double().mean(0)
    same = (y[:, None] == y).double()
    laplacian = torch.eye(30, dtype=torch.float64) - same / same.sum(1, keepdim=True)
    torch.testing.assert_close(graphed - plain, 2 * centred.T @ laplacian @ centred)
    torch.testing.assert_close(b, centred.T @ torch.nn.functional.one_hot(y, 4).double())


# -------------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: linear.principal(torch.ones(5, 3), 0.9, "image features"), ["image features", "same"]),
        (lambda: Training(*torch.ones(2, 1, 3), *torch.zeros(2, 1).long(), 2), ["at least two", "1"]),
        (lambda: fitted("pls", pairs())[0].project_texts(torch.ones(2, 3)), ["text", "(n, 8)", "(2, 3)"]),
        (lambda: label_noise.build("gma", energy=0), ["energy=0", "above 0"]),
    ],
)
def test_what_cannot_be_fitted_or_projected_is_refused(call, named):
    refused(ValueError, call, *named)


def test_the_discriminant_space_has_one_dimension_less_than_classes():
    for components, width in ((0, 3), (2, 2), (9, 3)):
        method, _ = fitted("mvda", pairs(), components=components)
        assert method.project_images(pairs().images).shape[1] == width
