"""Sentences of the chapters, and the pairs that they draw."""

import pandas as pd
import pytest
from ncbook import chapters, compare, training
from ncbook.chapters import l2rm, which_noise


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


@pytest.mark.parametrize(
    ("last", "said"), [("d", "It is the protocol, not chance"), ("a", "It may be chance")]
)
def test_a_ranking_that_protocols_change_and_seeds_do_not_is_said_to_be_the_protocols(last, said):
    orders = {"images": "abcd", "captions": "dcba" if last == "d" else "abcd"}
    rows = [
        {"label": m, "protocol": p, "seed": s, "mrate": 0.4, "rsum": float(order.index(m))}
        for p, order in orders.items()
        for s in (0, 1)
        for m in order
    ]
    found = which_noise.BothProtocols(pd.DataFrame(rows), [0.4], 0.4, "")
    assert which_noise.stability_said(found).data.startswith(said)
    assert which_noise.stability_said(which_noise.BothProtocols(found.runs, [], 0.4, "")).data == ""
