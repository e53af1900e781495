"""The book's figures: one style per method, one spread, nothing drawn that was not measured."""

import warnings

import numpy as np
import pandas as pd
import pytest

from nclib import plots
from nclib.plots import labels


@pytest.fixture
def runs():
    rows = [(m, r, s) for m in ("l2rm", "mine") for r in (0.2, 0.6) for s in range(3)]
    table = pd.DataFrame(rows, columns=["label", "mrate", "seed"])
    return table.assign(rsum=[100 + 10 * s + 50 * (m == "mine") for m, _, s in rows])


def test_rates_draw_mean_spread_and_every_run(runs):
    (axis,) = plots.rates(runs).axes
    lines = {line.get_label(): line for line in axis.lines}
    assert lines["mine"].get_ydata() == pytest.approx([160, 160])
    band, dots = axis.collections[:2]
    low, high = np.sort(np.unique(band.get_paths()[0].vertices[:, 1]))[[0, -1]]
    assert (low, high) == pytest.approx((100, 120))  # standard deviation with n - 1 of 100, 110, 120
    assert len(dots.get_offsets()) == 6


def test_an_unknown_method_has_a_colour_of_its_own_that_stays():
    first, again = plots.method_style("mine"), plots.method_style("mine")
    assert first == again
    assert first["color"] not in {colour for colour, _ in plots.METHOD_STYLES.values()}
    looks = {tuple(plots.method_style(f"method {k}").values()) for k in range(40)}
    assert len(looks) > 25


def test_one_seed_has_no_band_and_no_warning(runs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plots.rates(runs[runs["seed"] == 0])
    assert len(figure.axes[0].lines) == 2


def test_rates_refuse_a_mean_over_more_than_the_seed(runs):
    mixed = runs.assign(
        model=["saf", "vse", "vse"] * 4, rounds=range(12), **{"data.n_train": [64, 64, 64.0] * 4}
    )
    with pytest.raises(ValueError, match=r"label=l2rm, mrate=0.2 differ in model \(saf, vse\): keep one"):
        plots.rates(mixed)
    assert plots.rates(mixed, pool=["model"]).axes[0].lines
    assert plots.rates(mixed[mixed["model"] == "vse"], group="label").axes[0].lines


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("epochs", [3, 10, 3], r"epochs \(3, 10\)"),
        ("option.widths", [[64, 64], [64, 64], [32]], r"option.widths \(\[64, 64\], \[32\]\)"),
        ("model.matching", [np.nan, None, "ot"], r"model.matching \(none, ot\)"),
        ("data.n_train", [64, 64, 256], r"data.n_train \(64, 256\)"),
    ],
)
def test_every_setting_that_names_a_run_counts(runs, column, values, said):
    with pytest.raises(ValueError, match=said):
        plots.rates(runs.assign(**{column: values * 4}))


def test_a_seed_counts_once_in_a_point(runs):
    with pytest.raises(ValueError, match=r"label=l2rm, mrate=0.2 has .* row of the same seed \(0\)"):
        plots.rates(pd.concat([runs, runs[:1]], ignore_index=True))
    both = pd.concat([runs.assign(protocol=p) for p in ("images", "captions")], ignore_index=True)
    assert plots.rates(both, pool=["protocol"]).axes[0].lines  # a seed for each protocol
    with pytest.raises(ValueError, match="same seed"):
        plots.rates(pd.concat([both, both[:1]], ignore_index=True), pool=["protocol"])


def test_rates_group_by_method_where_there_are_no_labels(runs):
    (axis,) = plots.rates(runs.rename(columns={"label": "method"})).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["l2rm", "mine"]


@pytest.mark.parametrize("missing", ["mrate", "rsum", "label"])
def test_a_missing_column_is_named_with_those_that_are_there(runs, missing):
    wanted = "method" if missing == "label" else missing
    there = ", ".join(runs.columns.drop(missing))
    with pytest.raises(ValueError, match=f"the table has no column '{wanted}'; it has {there}"):
        plots.rates(runs.drop(columns=missing))


def test_an_empty_table_is_not_drawn(runs):
    for table in (pd.DataFrame(), runs[:0]):
        with pytest.raises(ValueError, match="the table has no rows"):
            plots.rates(table)
    with pytest.raises(ValueError, match="the table has no rows"):
        labels.sweep(pd.DataFrame(), "lam", xlabel="lambda")


UNITS = [("density", 1.0), ("% of all", 100 / 10), ("% of kind", 200 / 10)]


@pytest.mark.parametrize(("unit", "area"), UNITS)
def test_histograms_by_truth_have_the_height_that_the_unit_says(unit, area):
    matched = np.arange(10) < 4
    _figure, ((axis,),) = plots.panels(1, 1)
    plots.by_truth(axis, np.linspace(0.05, 0.95, 10), matched, np.linspace(0, 1, 11), unit)
    total = 0.0
    for patch in axis.patches:  # outlines; their area is the sum of the bars
        x, y = patch.get_xy().T
        total += abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    assert total == pytest.approx(area)
    assert axis.get_legend_handles_labels()[1] == ["really matched (4)", "really mismatched (6)"]


def test_the_division_draws_the_components_over_the_losses():
    at = np.linspace(0, 1, 5)
    arrays = {"loss": np.linspace(0, 1, 50), "density": np.stack([at, 1 - at, at], axis=1)}
    figure = plots.division({2: arrays, 3: {"loss": arrays["loss"]}}, np.arange(50) < 25)
    (axis,) = figure.axes
    assert [line.get_label() for line in axis.lines] == ["matched component", "mismatched component"]
    assert axis.lines[0].get_ydata() == pytest.approx(1 - at)
    assert plots.division({1: {"loss": arrays["loss"]}}, np.arange(50) < 25) is None


def test_a_sweep_of_label_noise_draws_both_directions():
    table = pd.DataFrame({"lam": [0.1, 0.1, 1, 1], "map_i2t": [0.1, 0.3, 0.4, 0.6], "map_t2i": [0.2] * 4})
    (axis,) = labels.sweep(table, "lam", xlabel="lambda").axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
    assert drawn["image to text"] == pytest.approx([0.2, 0.5])
    assert drawn["text to image"] == pytest.approx([0.2, 0.2])
    with pytest.raises(ValueError, match="no column 'map_t2i'; it has lam, map_i2t"):
        labels.sweep(table.drop(columns="map_t2i"), "lam", xlabel="lambda")
    with pytest.raises(ValueError, match=r"direction=image to text, lam=0.1 differ in noise_rate"):
        labels.sweep(table.assign(noise_rate=[0.2, 0.4] * 2), "lam", xlabel="lambda")


def test_heat_maps_show_every_entry():
    _figure, ((axis,),) = plots.panels(1, 1)
    plots.heatmap(np.arange(6.0).reshape(2, 3), axis, "plan")
    (mesh,) = axis.collections
    assert mesh.get_array().ravel().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"matrix must be .* \(n_images, n_captions\), got \w+ \(6,\)"):
        plots.heatmap(np.arange(6.0), axis)


def test_histograms_know_their_units():
    _figure, ((axis,),) = plots.panels(1, 1)
    with pytest.raises(ValueError, match="unit='share': must be one of 'density', '% of all', '% of kind'"):
        plots.histograms(axis, [(np.ones(3), "C0", "", "ones")], np.linspace(0, 1, 3), "share")


def test_ranked_alignment_marks_a_uniform_row():
    arrays = {"ranked_moved": np.array([0.7, 0.2, 0.1, 0.0]), "ranked_unmoved": np.full(4, 0.25)}
    left, right = plots.ranked_alignment(arrays, top=2).axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx([0.7, 0.2])
    assert list(right.lines[0].get_ydata()) == [0.25, 0.25]
    assert plots.ranked_alignment({}) is None
    with pytest.raises(ValueError, match="top=0"):
        plots.ranked_alignment(arrays, top=0)


def test_no_method_has_the_colour_of_right_or_wrong():
    used = {colour for colour, _ in plots.METHOD_STYLES.values()}
    assert not used & {plots.MATCHED, plots.MISMATCHED, plots.IMAGES, plots.CAPTIONS}
