"""The book's figures: one style per method, one spread, nothing drawn that was not measured."""

import numpy as np
import pytest

from nclib import plots


def test_the_division_draws_the_components_over_the_losses():
    at = np.linspace(0, 1, 5)
    arrays = {"loss": np.linspace(0, 1, 50), "density": np.stack([at, 1 - at, at], axis=1)}
    figure = plots.division({2: arrays, 3: {"loss": arrays["loss"]}}, np.arange(50) < 25)
    (axis,) = figure.axes
    assert [line.get_label() for line in axis.lines] == ["matched component", "mismatched component"]
    assert axis.lines[0].get_ydata() == pytest.approx(1 - at)
    assert plots.division({1: {"loss": arrays["loss"]}}, np.arange(50) < 25) is None


def test_heat_maps_show_every_entry():
    _figure, ((axis,),) = plots.panels(1, 1)
    plots.heatmap(np.arange(6.0).reshape(2, 3), axis, "plan")
    (mesh,) = axis.collections
    assert mesh.get_array().ravel().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"matrix must be .* \(n_images, n_captions\), got \w+ \(6,\)"):
        plots.heatmap(np.arange(6.0), axis)


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
