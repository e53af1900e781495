"""The book's figures: one style per method, one spread, nothing drawn that was not measured."""

import numpy as np
import pytest
from ncbook import plots


def test_heat_maps_show_every_entry():
    _figure, ((axis,),) = plots.panels(1, 1)
    plots.heatmap(np.arange(6.0).reshape(2, 3), axis, "plan")
    (mesh,) = axis.collections
    assert mesh.get_array().ravel().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"matrix must be .* \(n_images, n_captions\), got \w+ \(6,\)"):
        plots.heatmap(np.arange(6.0), axis)


def test_no_method_has_the_colour_of_right_or_wrong():
    used = {colour for colour, _ in plots.METHOD_STYLES.values()}
    assert not used & {plots.MATCHED, plots.MISMATCHED, plots.IMAGES, plots.CAPTIONS}


def test_a_method_of_ones_own_has_a_colour_that_no_other_has():
    known = {colour for colour, _ in plots.METHOD_STYLES.values()}
    assert plots.method_style("dropped")["color"] not in known
    assert plots.method_style("plain")["color"] in known
