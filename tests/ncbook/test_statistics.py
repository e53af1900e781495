"""The rule for differences, against formulas of pandas and SciPy."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from ncbook.compare import Difference
from ncbook.intervals import EDGE, WIDTH, interval_plot
from ncbook.statistics import differences, holm, judged, not_told_apart, pooled
from scipy.stats import false_discovery_control, t


def drawn(means, deviation=3.0, n=3, seed=0):
    rng = np.random.default_rng(seed)
    return {name: Difference(tuple(m + deviation * rng.normal(size=n)), name) for name, m in means.items()}


def test_the_deviation_is_that_of_all_differences_of_a_place():
    found = drawn({f"m{k}": 0.0 for k in range(20)})
    table = pd.DataFrame({k: d.values for k, d in found.items()})
    deviation, freedom = pooled(found)
    assert (deviation, freedom) == (pytest.approx(math.sqrt(table.var().mean())), 40)
    one = judged(found)["m3"]
    half = t.ppf(0.975, 40) * deviation / math.sqrt(3)
    assert (one.low, one.high) == (pytest.approx(one.mean - half), pytest.approx(one.mean + half))


def test_unequal_variances_are_not_pooled():
    found = drawn({"a": 0.0, "b": 5.0}, 0.1, n=8) | drawn({"c": 0.0, "d": 9.0}, 30.0, n=8, seed=1)
    assert pooled(found).freedom == 0
    low, high = found["b"].interval
    assert judged(found)["b"][1:3] == (pytest.approx(low), pytest.approx(high))


def test_p_values_are_adjusted_for_the_table():
    means = {f"m{k}": 0.0 for k in range(19)} | {"far": -40.0}
    found = judged(drawn(means))
    assert (found["far"].sign, found["m0"].sign) == ("below", "level")
    raw = np.array(
        [2 * t.sf(abs(x.mean) / ((x.high - x.mean) / t.ppf(0.975, 40)), 40) for x in found.values()]
    )
    np.testing.assert_allclose([x.p for x in found.values()], holm(raw), rtol=1e-6, atol=1e-12)
    assert (holm(raw) >= false_discovery_control(raw) - 1e-12).all()  # Holm's rule is the stricter one


def test_two_seeds_have_no_interval_and_are_not_judged():
    found = judged({"two": Difference((5.0, 5.1), "two"), **drawn({"a": 9.0, "b": 0.0})})["two"]
    assert (found.sign, math.isnan(found.p), math.isnan(found.low)) == ("not judged", True, True)


def test_ranks_name_what_cannot_be_told_from_the_first():
    noise = np.random.default_rng(0).normal(size=(4, 3))
    means = {"a": 100.0, "b": 99.5, "c": 60.0, "d": 20.0}
    rows = {name: dict(enumerate(v + x)) for (name, v), x in zip(means.items(), noise, strict=True)}
    assert set(not_told_apart(rows | {"e": {0: 200.0}})) == {"a", "b"}
    assert not_told_apart({"e": {0: 1.0}}) == []


def test_differences_are_judged_place_by_place_and_carry_marks():
    rng = np.random.default_rng(0)
    rows = [
        {"label": label, "mrate": rate, "seed": seed, "rsum": value + seed + rng.normal() / 10}
        | {"method": label, "best_epoch": 1 if label == "late" else 5, "warmup_epochs": 2, "epochs": 3}
        for rate, gain in ((0.2, 0.0), (0.6, 30.0))
        for label, value in (("ours", 100.0 + gain), ("other", 100.0), ("late", 90.0))
        for seed in (0, 1, 2)
    ]
    table = differences(pd.DataFrame(rows), "ours").set_index(["mrate", "label"])
    assert table["sign"].to_dict() == {
        (0.2, "other"): "level", (0.2, "late"): "above", (0.6, "other"): "above", (0.6, "late"): "above",
    }  # fmt: skip
    assert table.loc[(0.6, "late"), "text"].endswith("(3) ▲ †")
    assert table.loc[(0.2, "other"), "text"].endswith("(3) =")
    assert differences(pd.DataFrame(rows), "nobody").empty


def numbers(pattern, svg):
    return [tuple(map(float, found.groups())) for found in re.finditer(pattern, svg)]


def test_means_stand_within_their_intervals_and_zero_where_the_region_begins():
    found = [
        (Difference((4.0, 5.0, 6.0)), (0.0, math.inf)),
        (Difference((-4.0, -5.0, -6.0)), (0.0, math.inf)),
    ]
    svg = interval_plot(found)
    ((zero,),) = numbers(r'nc-zero" d="M([\d.]+) ', svg)
    bars = numbers(r"M([\d.]+) [\d.]+H([\d.]+)", svg)
    means = [x for (x,) in numbers(r'cx="([\d.]+)"', svg)]
    scale = (means[0] - means[1]) / 10
    for (d, _), (start, end), mean in zip(found, bars, means, strict=True):
        low, high = d.interval
        assert mean == pytest.approx(zero + scale * d.mean, abs=0.2)
        assert (start, end) == pytest.approx((zero + scale * low, zero + scale * high), abs=0.2)
        assert EDGE <= start < mean < end <= WIDTH - EDGE
    shaded = numbers(r'<rect class="nc-region" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    assert {round(x, 1) for x, _ in shaded} == {zero}
    assert all(x + width == pytest.approx(WIDTH - EDGE, abs=0.2) for x, width in shaded)
    assert 'aria-label="2 intervals: 1 in the claimed region, 1 outside it"' in svg
