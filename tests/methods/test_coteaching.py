"""Co-teaching: divisions, the exchange, and what happens when a division finds nothing or everything."""

import warnings
from functools import partial

import numpy as np
import pytest
import tiny
import torch
from refusals import refused

import nclib
from nclib.methods import METHODS, Steps, Truth
from nclib.methods.coteaching import CoTeaching, Division, divide, loss_inside, mean_report, min_max
from nclib.methods.coteaching import threshold_division as threshold
from nclib.noise import GaussianMixture1d
from nclib.runs import epoch_arrays


def division_of(is_clean):
    is_clean = torch.tensor(is_clean)
    n = len(is_clean)
    return Division(torch.zeros(n), is_clean.double(), is_clean, torch.zeros(200, 3))


class Loop:
    """A loop that only serves batches of positions."""

    n_pairs, batch_size, epoch, active, device = 10, 4, 5, 0, torch.device("cpu")

    def __init__(self):
        self.purposes = []

    def batches(self, subset=None, *, purpose, drop_last=False):
        self.purposes.append(purpose)
        g = torch.Generator().manual_seed(len(self.purposes))
        order = subset[torch.randperm(len(subset), generator=g)]
        least = self.batch_size if drop_last else 2
        return [chunk for chunk in order.split(self.batch_size) if len(chunk) >= least]


class Method(CoTeaching):
    """The smallest co-taught method."""

    def warmup_step(self, loop, batch):
        return {}

    def begin_epoch(self, loop):
        return Steps((), 0)

    def step(self, loop, item):
        return {}


# ------------------------------------------------------------------------------------------------ division


def test_min_max_is_exact_and_keeps_nan():
    assert min_max(torch.tensor([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert min_max(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]
    unknown = torch.tensor([0.1, 0.2, float("nan"), 0.3, 0.5])
    refused(ValueError, lambda: divide(unknown, GaussianMixture1d.published()), "NaN or infinite")


@pytest.mark.parametrize(("at", "asked"), [("epoch", [(0, [0, 1])]), ("network", [(0, [1]), (1, [0])])])
def test_networks_train_on_each_others_division(at, asked):
    loop, method = Loop(), Measured()
    method.divide_at, clean = at, []
    for loop.active in (0, 1, 0, 1):
        clean.append(method.divide_pairs(loop).clean.tolist())
    assert clean == 2 * [[1, 3, 5, 7, 9], [0, 2, 4, 6, 8]]  # A trains on B's division and the reverse
    assert method.asked == 2 * asked


@pytest.mark.parametrize("n", [5, 99, 100, 250])
def test_if_all_are_clean_one_in_a_hundred_is_noisy(n):
    p = 0.6 + 0.3 * torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    is_clean = threshold(p)
    assert torch.equal(is_clean, p > p.sort().values[n // 100])
    assert int((~is_clean).sum()) == n // 100 + 1
    assert threshold(torch.tensor([0.5, 0.50001, 0.2])).tolist() == [False, True, False]  # strict


def test_equal_losses_are_told_and_taken_for_matched():
    with pytest.warns(UserWarning, match="all 30 pairs have the same value"):
        found = divide(torch.full((30,), 0.4), GaussianMixture1d.published())
    assert (found.p_clean == 1).all()
    assert len(found.noisy) == 1


# ------------------------------------------------------------------------------------------------ exchange


class Measured(Method):
    """Notes who measured, when, and divides by the number of the network."""

    def __init__(self):
        self.asked = []

    def pair_values(self, loop, networks):
        self.asked.append((loop.active, list(networks)))
        return torch.tensor(networks, dtype=torch.float64).expand(loop.n_pairs, -1)

    def posterior(self, loop, network, values):
        assert (values == network).all()
        return division_of([i % 2 == network for i in range(loop.n_pairs)])


def test_noisy_pairs_start_over_and_the_epoch_is_as_long_as_the_clean_ones():
    loop = Loop()
    method = Method(None)
    division = division_of([True] * 7 + [False] * 3)
    steps = method.exchanged_steps(loop, division, noisy=True)
    items = list(steps)
    assert len(items) == len(steps) == 2  # four and three: the incomplete batch is kept
    assert sorted(torch.cat([clean for clean, _ in items]).tolist()) == list(range(7))
    assert all(sorted(noisy.tolist()) == [7, 8, 9] for _, noisy in items)
    assert loop.purposes == ["clean", "noisy 0", "noisy 1"]


@pytest.mark.parametrize(
    ("is_clean", "noisy"),
    [([True] * 10, True), ([True] * 9 + [False], True), ([True] * 6 + [False] * 4, False)],
)
def test_without_noisy_pairs_only_clean_ones_come(is_clean, noisy):
    steps = Method(None).exchanged_steps(Loop(), division_of(is_clean), noisy=noisy)
    assert [item[1] for item in steps] == [None] * len(steps)


@pytest.mark.parametrize("n", [0, 1])
def test_no_clean_pairs_are_told_and_nothing_is_trained(n):
    with pytest.warns(UserWarning, match=f"{n} of 10 pairs are called clean.*does not train in this epoch"):
        steps = Method(None).exchanged_steps(Loop(), division_of([True] * n + [False] * (10 - n)), noisy=True)
    assert list(steps) == []
    assert len(steps) == 0


def test_noisy_pairs_come_in_from_half_of_the_epochs_on():
    loop, method = Loop(), Method(None)
    for n_epochs, first in ((1, 0), (3, 1), (4, 2), (40, 20)):
        loop.n_epochs = n_epochs
        for epoch in range(n_epochs):
            loop.training_epoch = epoch
            assert method.noisy_now(loop) == (epoch >= first)


def test_report_is_the_mean_of_both_and_unknown_where_one_is():
    report = mean_report([{"auc": 0.5, "ece": None}, {"auc": 1.0, "ece": 0.1}])
    assert report == {"auc": 0.75, "ece": None}


# -------------------------------------------------------------------------------------------- in a real run

run = partial(tiny.run, epochs=1, data_options=tiny.SMALLER)


def test_kept_arrays_are_what_the_record_reports(tmp_path):
    record = run("ncr", tmp_path)
    trainer = nclib.open_run(record).trainer
    kept = epoch_arrays(record.folder)[2]
    truth = trainer.pairs.truth().matched
    found = [nclib.noise.auc(kept[name], truth) for name in ("p_clean", "p_clean_b")]
    assert record.diagnostics["auc"] == pytest.approx(np.mean(found))
    assert kept["loss"].min() == 0
    assert kept["loss"].max() == 1
    assert kept["density"].shape == kept["density_b"].shape == (200, 3)
    assert not np.array_equal(kept["loss"], kept["loss_b"])
    assert isinstance(trainer.pairs.truth(), Truth)
    assert {"single", "test"} <= set(record.metrics)


def test_the_triplet_loss_inside_has_the_slope_of_infonce():
    S = torch.tensor([[0.5, 0.45], [0.1, 0.9]])
    assert loss_inside(S, "triplet", 0.1).tolist() == pytest.approx([1.5, 0.0])
    assert loss_inside(S, "triplet", 0.1, negatives="mean").tolist() == pytest.approx([0.75, 0.0])


def calling_clean(method, n_clean, monkeypatch):
    """Let every division of a method call its first pairs clean."""

    def posterior(self, loop, network, values):
        p = 0.9 * (torch.arange(len(values)) < n_clean).double()
        return Division(values, p, threshold(p), torch.zeros(200, 3))

    monkeypatch.setattr(METHODS[method].factory, "posterior", posterior)


@pytest.mark.parametrize("method", ["bicro", "cream", "mscn", "ncr", "repair", "sps"])
def test_a_division_without_clean_pairs_trains_nothing(method, tmp_path, monkeypatch):
    calling_clean(method, 0, monkeypatch)
    with pytest.warns(UserWarning, match="0 of 160 pairs"), pytest.raises(ValueError, match="network 0"):
        run(method, tmp_path)


def test_a_division_is_the_posterior_of_a_mixture_of_scaled_losses():
    ell = torch.tensor([0.11, 0.13, 0.16, 0.18, 0.22, 0.25, 0.31, 0.62, 0.71, 0.78, 0.90, 0.97])
    found, x = divide(ell, GaussianMixture1d.published()), min_max(ell)
    mixture = GaussianMixture1d.published().fit(x)
    assert found.p_clean.tolist() == mixture.predict_proba(x)[:, 0].tolist()
    assert (found.values[0], found.values[-1]) == (0, 1)
    assert found.clean.tolist() == list(range(7))
    assert found.noisy.tolist() == list(range(7, 12))
    at, parts = found.density[:, 0], found.density[:, 1:]
    np.testing.assert_allclose(parts, mixture.component_pdf(at))
    assert (at[0], at[-1]) == (0, 1)


@pytest.mark.parametrize("method", ["ncr", "repair"])
@pytest.mark.parametrize(("n_clean", "steps"), [(5, 1), (160, 10)])  # of everything two are called noisy
def test_divisions_that_find_less_than_a_batch_or_all(method, n_clean, steps, tmp_path, monkeypatch):
    calling_clean(method, n_clean, monkeypatch)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*took one step")
        record = run(method, tmp_path)
    assert record.curves[-1]["steps"] == 2 * steps
    assert record.diagnostics["called_matched"] == n_clean
