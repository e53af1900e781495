"""Sentences of the chapters, and the pairs that they draw."""

import numpy as np
import pandas as pd
import pytest
from ncbook import Difference, chapters
from ncbook.chapters import l2rm
from ncbook.schematic import Sketch


@pytest.fixture
def pairs():
    return chapters.training_pairs("l2rm", {"dataset": "planted", "mrate": 0.4, "seed": 1})


def test_training_pairs_are_those_of_a_run(pairs):
    assert len(pairs) == len(pairs.split.captions)
    assert 0.3 < 1 - pairs.noise.matched.mean() <= 0.4
    assert chapters.training_pairs("l2rm", {"dataset": "planted", "mrate": 0.0}).noise.matched.all()


def test_some_pairs_are_of_one_kind_and_of_different_pictures(pairs):
    for kind in (True, False):
        rows = chapters.some_pairs(pairs, kind, 4)
        assert len(rows) == 4
        assert (pairs.noise.matched[rows] == kind).all()
        assert len(set(pairs.image_of.numpy()[rows])) == 4


def test_each_caption_of_a_chain_was_written_for_the_next_picture(pairs):
    rows = l2rm.chain(pairs, seed=0)
    assert len(rows) > 1
    own, shown = pairs.split.image_of, pairs.image_of.numpy()
    assert not pairs.noise.matched[rows].any()
    assert [own[row] for row in rows[:-1]] == [shown[row] for row in rows[1:]]


def test_verdicts_name_the_rates():
    differences = {
        0.2: Difference((5.0, 6.0, 5.5)),
        0.4: Difference((-5.0, -6.0, -5.5)),
        0.6: Difference((-5.0, 6.0, 0.0)),
        0.8: Difference((3.0,)),
    }
    assert (
        chapters.verdicts(differences)
        == "ahead at 0.2; behind at 0.4; undecided at 0.6; above, one seed at 0.8"
    )


def test_differences_over_rates_are_of_shared_seeds():
    rows = [("a", 0.2, 0, 10.0), ("b", 0.2, 0, 4.0), ("a", 0.2, 1, 11.0), ("b", 0.4, 0, 3.0)]
    runs = pd.DataFrame(rows, columns=["label", "mrate", "seed", "rsum"])
    found = chapters.over_rates(runs, "a", "b")
    assert list(found) == [0.2]
    assert found[0.2].values == (6.0,)
    said = chapters.against(runs.assign(model="vse"), "a").data
    assert "- against b, model `vse`: above, one seed at 0.2" in said
    assert "no recorded runs" in chapters.against(runs.iloc[:0].assign(model="vse"), "a").data


def test_a_matrix_has_a_cell_per_value_and_hides_struck_ones():
    sketch = Sketch("three cells and a struck one")
    sketch.matrix(
        0, 0, np.array([[0.5, -0.25], [1.0, 0.0]]), signed=True, crossed=[[False, False], [False, True]]
    )
    svg = sketch.svg()
    assert [text in svg for text in ("+0.50", "−0.25", "+1.00", "+0.00")] == [True, True, True, False]
    assert f"url(#{sketch.hatch})" in svg
