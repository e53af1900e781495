"""Sentences of the chapters, and the pairs that they draw."""

import pandas as pd
from ncbook import chapters, compare, training
from ncbook.chapters import l2rm


def test_each_caption_of_a_chain_was_written_for_the_next_picture():
    pairs = training.training_pairs("l2rm", {"dataset": "planted", "mrate": 0.4, "seed": 1})
    rows = l2rm.chain(pairs, seed=0)
    assert len(rows) > 1
    own, shown = pairs.split.image_of, pairs.image_of.numpy()
    assert not pairs.noise.matched[rows].any()
    assert [own[row] for row in rows[:-1]] == [shown[row] for row in rows[1:]]


def test_differences_over_rates_are_of_shared_seeds():
    rows = [("a", 0.2, 0, 10.0), ("b", 0.2, 0, 4.0), ("a", 0.2, 1, 11.0), ("b", 0.4, 0, 3.0)]
    runs = pd.DataFrame(rows, columns=["label", "mrate", "seed", "rsum"])
    found = compare.over_rates(runs, "a", "b")
    assert list(found) == [0.2]
    assert found[0.2].values == (6.0,)
    said = chapters.against(runs.assign(model="vse"), "a").data
    assert "- against b, model `vse`: above, one seed at 0.2" in said
