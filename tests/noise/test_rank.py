"""Rank correlation against naive loops, SciPy, and its own corner cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy.spatial.distance import cdist
from scipy.stats import rankdata

from nclib.noise import (
    bank_distances,
    max_ranks,
    nearest_entries,
    rank_anchors,
    rank_correlation,
    rank_correspondence,
    rank_labels,
)
from nclib.noise.rank import _representatives


def features(n, m, d=16, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    draw = [torch.randn(k, d, generator=g, dtype=torch.float64) for k in (n, n, m, m)]
    draw[3] = draw[3] + draw[2]  # the bank's halves agree in part
    return [torch.nn.functional.normalize(x, dim=1).to(dtype) for x in draw]


def naive(images, texts, u, t):
    """Eqs. 6-8 in float64, one pair at a time."""
    images, texts, u, t = (x.double().numpy() for x in (images, texts, u, t))
    rows = zip(cdist(images, u), cdist(texts, t), strict=True)
    return np.array([np.corrcoef(rankdata(a, "max"), rankdata(b, "max"))[0, 1] for a, b in rows])


# --------------------------------------------------------------------------------------------- against loops


@pytest.mark.parametrize("m", [2, 3, 50, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_equals_a_loop(m, dtype):
    data = features(20, m, dtype=dtype)
    found = rank_correspondence(*(x.requires_grad_() for x in data))
    assert found.correlation.dtype == dtype
    assert not found.label.requires_grad
    images, *_, texts = (x.detach() for x in data)
    assert np.abs(found.correlation.numpy() - naive(*(x.detach() for x in data))).max() < 1e-6
    distances = bank_distances(images, texts)
    np.testing.assert_allclose(distances, cdist(images, texts), atol=1e-6)
    order = nearest_entries(distances, 3)
    assert torch.equal(distances.gather(1, order), distances.sort(1).values[:, :3])


@given(
    st.integers(1, 4).flatmap(
        lambda b: st.integers(2, 12).flatmap(
            lambda m: st.tuples(*[st.lists(st.integers(0, 5), min_size=b * m, max_size=b * m)] * 2).map(
                lambda lists: [np.array(x, dtype=np.float64).reshape(b, m) for x in lists]
            )
        )
    )
)
def test_any_ties_equal_the_definition(pair):
    a, b = (torch.from_numpy(x) for x in pair)
    ranks = [(x[:, None, :] <= x[:, :, None]).sum(-1) for x in (a, b)]  # Eq. 7, literally
    assert torch.equal(max_ranks(a), ranks[0])
    found = rank_correlation(a, b)
    for r, x, y in zip(found, *ranks, strict=True):
        if len(x.unique()) == 1 or len(y.unique()) == 1:
            assert r == 0
        else:
            assert r.item() == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)


class Place(str):
    """The CPU, which says it is a GPU."""

    __slots__ = ()
    type = "cuda"


class Elsewhere(torch.Tensor):
    """A tensor of the CPU that says it lies on a GPU, so that what a GPU computes runs here."""

    device = property(lambda self: Place("cpu"))


@pytest.mark.parametrize("copies", [0, 7])
def test_what_a_gpu_computes_equals_what_the_cpu_does(copies):
    images, texts, u, t = features(5, 12, dtype=torch.float64)
    bank = [torch.cat([x, x[:copies]]) for x in (u, t)]
    bank[0][1:3, 1:], bank[0][2, 0] = 0, bank[0][1, 0] + 1e-3  # equal sums do not make equal rows
    bank[0][2, 1] = -1e-3
    bank[0][-1] = bank[0][1, torch.arange(15, -1, -1)]
    want = rank_correspondence(images, texts, *bank)
    found = rank_correspondence(*(x.as_subclass(Elsewhere) for x in (images, texts, *bank)))
    assert type(found.correlation) is Elsewhere
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a.as_subclass(torch.Tensor), b, rtol=0, atol=1e-12)
    far, near = (
        bank_distances(images.as_subclass(kind), bank[0].as_subclass(kind))
        for kind in (Elsewhere, torch.Tensor)
    )
    torch.testing.assert_close(far.as_subclass(torch.Tensor), near, rtol=1e-9, atol=1e-12)


def test_equal_rows_of_a_bank_are_found():
    bank = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [4.0, 3.0], [0.5, 0.0], [-1.0, 1.5]])
    bank[5] = bank[1]  # [4, 3] has the same sum and is another row, between the two in the order of sums
    bank[3], bank[5] = bank[5].clone(), bank[3].clone()
    for kind in (torch.Tensor, Elsewhere):
        found = _representatives(bank.as_subclass(kind))
        assert found.as_subclass(torch.Tensor).tolist() == [0, 1, 0, 1, 4, 5]
    assert _representatives(bank[[0, 1, 2]]).tolist() == [0, 1, 0]  # a single pair of equal rows
    assert _representatives(bank[:2]) is None


def test_more_dimensions_and_one_row():
    g = torch.Generator().manual_seed(0)
    a, b = (torch.rand(3, 4, 9, generator=g) for _ in range(2))
    whole = rank_correlation(a, b)
    assert whole.shape == (3, 4)
    assert torch.equal(whole[1, 2], rank_correlation(a[1, 2], b[1, 2]))
    assert rank_correlation(a[..., :1], b[..., :1]).tolist() == [[0.0] * 4] * 3


# --------------------------------------------------------------------------------------------- corner cases


@pytest.mark.parametrize("m", [0, 1])
def test_a_bank_without_a_ranking_says_nothing(m):
    found = rank_correspondence(*features(5, m))
    assert found.correlation.tolist() == [0.0] * 5
    assert found.label.tolist() == [0.0] * 5


def test_anchors_are_the_ends_and_labels_the_place_between_them():
    r = 1.3 * torch.rand(137, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.3
    low, high = rank_anchors(r)
    ordered = sorted(r.tolist())
    assert high.item() == pytest.approx(np.mean(ordered[-14:]))  # a tenth of them, rounded up
    assert low.item() == pytest.approx(np.mean(ordered[:2]))  # a hundredth
    assert low < 0  # which counts as 0
    wanted = [min(max(x / high.item(), 0), 1) for x in r.tolist()]
    assert rank_labels(r, low, high).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: max_ranks(torch.arange(3)), ["floating"]),
        (lambda: max_ranks(torch.tensor([0.0, math.nan])), ["NaN or infinite"]),
        (lambda: rank_correlation(torch.rand(3), torch.rand(4)), ["shape", "(3,)", "(4,)"]),
        (lambda: rank_correspondence(*features(3, 4)[:3], torch.rand(5, 16)), ["(3, 4)", "(3, 5)"]),
        (lambda: rank_correspondence(*features(3, 4)[:3], torch.rand(4, 9)), ["width"]),
        (lambda: bank_distances(torch.rand(2, 3), torch.full((2, 3), math.inf)), ["bank", "NaN"]),
        (lambda: rank_anchors(torch.zeros(0)), ["at least one"]),
        (lambda: nearest_entries(torch.rand(2, 3), 0), ["k=0", "at least 1"]),
    ],
)
def test_bad_input_is_named(call, named):
    refused(ValueError, call, *named)
