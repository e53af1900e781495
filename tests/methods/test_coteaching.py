"""Co-teaching: divisions, the exchange, and what happens when a division finds nothing or everything."""

import warnings
from functools import partial

import numpy as np
import pytest
import tiny
import torch

import nclib
from nclib.methods import Steps, Truth
from nclib.methods.coteaching import (
    CoTeaching,
    Division,
    divide,
    loss_inside,
    mean_report,
    min_max,
    threshold_division,
)
from nclib.noise import GaussianMixture1d
from nclib.runs import epoch_arrays

LOSSES = torch.tensor([0.11, 0.13, 0.16, 0.18, 0.22, 0.25, 0.31, 0.62, 0.71, 0.78, 0.90, 0.97])


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


def test_worked_gaussian_division():
    mixture = GaussianMixture1d.published()
    found = divide(LOSSES, mixture)
    assert mixture.means_ == pytest.approx([0.0979831, 0.797529], rel=1e-5)
    assert mixture.variances_ == pytest.approx([0.00624841, 0.0221352], rel=1e-5)
    assert mixture.weights_ == pytest.approx([0.583227, 0.416773], rel=1e-5)
    assert mixture.n_iter_ == 2
    assert found.p_clean[[6, 7]].tolist() == pytest.approx([0.998806, 2.06201e-08], rel=1e-4)
    assert found.clean.tolist() == list(range(7))
    assert found.noisy.tolist() == list(range(7, 12))


def test_min_max_is_exact_and_keeps_nan():
    assert min_max(torch.tensor([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert min_max(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="NaN or infinite"):
        divide(torch.tensor([0.1, 0.2, float("nan"), 0.3, 0.5]), GaussianMixture1d.published())


@pytest.mark.parametrize("n", [5, 99, 100, 250])
def test_if_all_are_clean_one_in_a_hundred_is_noisy(n):
    p = 0.6 + 0.3 * torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    is_clean = threshold_division(p)
    assert torch.equal(is_clean, p > p.sort().values[n // 100])
    assert int((~is_clean).sum()) == n // 100 + 1


def test_threshold_is_strict():
    assert threshold_division(torch.tensor([0.5, 0.50001, 0.2])).tolist() == [False, True, False]


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


def test_both_divide_at_the_start_of_an_epoch_and_exchange():
    loop, method = Loop(), Measured()
    clean = []
    for loop.active in (0, 1, 0, 1):
        clean.append(method.divide_pairs(loop).clean.tolist())
    assert clean[:2] == [[1, 3, 5, 7, 9], [0, 2, 4, 6, 8]]  # A trains on B's division and the reverse
    assert method.asked == [(0, [0, 1])] * 2


def test_or_the_peer_divides_before_each_network():
    loop, method = Loop(), Measured()
    method.divide_at = "network"
    clean = []
    for loop.active in (0, 1):
        clean.append(method.divide_pairs(loop).clean.tolist())
    assert clean == [[1, 3, 5, 7, 9], [0, 2, 4, 6, 8]]
    assert method.asked == [(0, [1]), (1, [0])]


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


@pytest.mark.parametrize("method", ["ncr", "sps", "cream", "gsc_plus"])
def test_each_loss_inside_trains_warms_up_and_divides_by_itself(method, tmp_path):
    seen = {}
    for loss in ("triplet", "infonce", "gce"):
        record = run(method, tmp_path / loss, loss=loss, epochs=2)
        seen[loss] = tuple(row[k] for row in record.curves for k in row if k.startswith("loss_"))
        assert np.isfinite(seen[loss]).all()
        assert -1 <= record.metrics["errors"]["correlation"] <= 1
    assert len(set(seen.values())) == 3


def test_the_triplet_loss_inside_has_the_slope_of_infonce():
    S = torch.tensor([[0.5, 0.45], [0.1, 0.9]])
    assert loss_inside(S, "triplet", 0.1).tolist() == pytest.approx([1.5, 0.0])
    assert loss_inside(S, "triplet", 0.1, negatives="mean").tolist() == pytest.approx([0.75, 0.0])


@pytest.mark.parametrize("method", ["ncr", "repair"])
def test_division_that_finds_everything_clean(method, tmp_path, monkeypatch):
    def everything(self, loop, network, values):
        p = torch.ones(len(values), dtype=torch.float64)
        return Division(values, p, threshold_division(p), torch.zeros(200, 3))

    monkeypatch.setattr(CoTeaching, "posterior", everything)
    record = run(method, tmp_path)
    assert record.diagnostics["called_matched"] == 160
    assert record.curves[-1]["steps"] == 2 * 10  # 158 clean pairs for each network


@pytest.mark.parametrize("method", ["ncr", "repair"])
@pytest.mark.parametrize("n_clean", [0, 1, 5])
def test_division_that_finds_nothing_or_less_than_a_batch(method, n_clean, tmp_path, monkeypatch):
    def few(self, loop, network, values):
        p = torch.zeros(len(values), dtype=torch.float64)
        p[:n_clean] = 0.9
        return Division(values, p, threshold_division(p), torch.zeros(200, 3))

    monkeypatch.setattr(CoTeaching, "posterior", few)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(does not train in this epoch|took one step)")
        if n_clean < 2:
            with pytest.raises(ValueError, match="no steps for network 0 in all 1 epochs after warm-up"):
                run(method, tmp_path)
            return
        record = run(method, tmp_path)
    assert record.curves[-1]["steps"] == 2
    assert record.diagnostics["called_matched"] == n_clean
