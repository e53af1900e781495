"""Pictures with sliders: what they show at first, what their script is given, and what strangers wrote."""

import json
import re

import numpy as np
import pytest
import torch
from ncbook import networks, play

from nclib import data, ot

RATES = (0.0, 0.5, 0.9)


@pytest.fixture(scope="module")
def split():
    return data.load("emoji", n_train=20, n_val=10, n_test=10).train


def given_to(shown):
    """Return what the script reads."""
    found = re.search(r'<script type="application/json">(.*)</script>', shown._repr_html_())
    return json.loads(found.group(1))


def test_noise_shows_the_captions_of_every_draw(split):
    shown = play.noise(split, [3, 5, 8, 9], RATES, at=0.5)
    values = given_to(shown)
    given = np.array(values["given"])  # protocol, rate, caption
    assert values["own"] == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert given[0, 0].tolist() == values["own"]  # rate 0
    wrong = (given[:2, 1] != values["own"]).sum(1)
    assert wrong.tolist() == [10, 10]
    assert all(f"{n} of 20 captions" in said[1] for n, said in zip(wrong, values["said"], strict=True))
    assert shown.picture.count("nc-wrong") == wrong[0]  # the first value is drawn without a script
    assert (shown.picture.count("<img"), 'aria-valuetext="0.5"' in shown.controls) == (4, True)


def test_plan_moves_the_mass_and_counts_true_partners():
    cost = torch.rand(5, 5, generator=torch.Generator().manual_seed(0))
    cost[0, 2] = -1.0
    partner = [2, -1, -1, -1, 3]
    costs = {"one": cost, "other": 1 - cost}
    shown = play.plan(costs, ["data:,"] * 5, list("abcde"), partner, lam=0.01, rho=0.8)
    values = given_to(shown)
    np.testing.assert_allclose(values["costs"], [cost.tolist(), (1 - cost).tolist()], atol=1e-4)
    assert values["partner"] == partner
    exact = 5 * ot.partial_sinkhorn(cost.double(), 0.8, reg=0.01, mask=~torch.eye(5, dtype=torch.bool)).plan
    drawn = [int(mass) for mass in re.findall(r"--nc-mass:(\d+)%", shown.picture)]
    np.testing.assert_allclose(np.reshape(drawn, (5, 5)), 100 * exact, atol=0.51)
    right = float(exact[0, 2] + exact[4, 3]) / float(exact.sum())
    assert shown.said.startswith(f"80% of the mass moves, {right:.0%} of it to true partners (by chance 10%)")
    parts = ("nc-given", "nc-true", 'type="checkbox"', '<p class="nc-pair" hidden>')  # pairs may be taken out
    assert [shown.picture.count(part) for part in parts] == [5, 2, 5, 1]


def test_a_batch_of_wrong_pairs_begins_with_a_chain_of_partners():
    own = np.repeat(np.arange(40), 2)
    given = (own + 7) % 40
    rows, partner = networks.wrong_batch(own, given)
    assert len(set(rows)) == len(rows) == len(partner)
    assert (own[rows] != given[rows]).all()
    for place, column in enumerate(partner):
        assert column == -1 or own[rows[column]] == given[rows[place]]
    assert partner[0] == 1


def test_a_network_that_is_not_stored_is_named():
    with pytest.raises(ValueError, match=r"no stored network of ncr at rate 0.4: make demo makes it"):
        networks.stored("ncr")


def test_search_ranks_by_the_given_scores(split):
    scores = {"a": np.zeros((20, 2)), "b": np.arange(40.0).reshape(20, 2), "c": np.zeros((20, 2))}
    scores["a"][[1, 4], 0] = 2, 3
    given = {"shown": 3, "rates": (0.0, 0.5, 0.9), "at": 0.5, "said": ["x", "y", "z"]}
    shown = play.search(split, [5, 40], scores, **given)  # captions of pictures 1 and 8
    values = given_to(shown)
    assert (values["own"], values["rates"]) == ([1, 8], [0, 0.5, 0.9])
    assert values["found"][0][0] == [4, 1, 0]
    assert values["found"][1] == [[19, 18, 17]] * 2
    assert values["places"][:2] == [
        ["own picture: place 2", "own picture: place 9"], ["own picture: place 19", "own picture: place 12"]
    ]  # fmt: skip
    assert set(values["pictures"]) == set(values["alts"]) >= {"1", "8", "19"}
    assert re.findall(r"<span>(\w)</span>", shown.picture) == ["a", "b"]  # the slider chooses the second row
    assert f"<small>{values['places'][1][0]}</small>" in shown.picture
    assert (shown.said, "0.5</output>" in shown.controls) == ("y", True)


def test_in_the_game_as_many_pairs_are_the_audits_choice_as_are_wrong(split):
    image_of = np.array(split.image_of)
    image_of[[3, 12]] = 7, 1
    p_clean = np.linspace(0, 1, len(image_of))
    values = given_to(play.guess(split, image_of, p_clean, [[3, 12, 20, 21], [12, 3, 30, 0]]))
    assert values["n"] == 2
    assert [game["wrong"] for game in values["games"]] == [[True, True, False, False]] * 2
    assert [game["audit"] for game in values["games"]] == [[0, 1], [3, 1]]
    assert values["games"][0]["pairs"][0] == [play.thumbnail(split, 7), split.captions.text(3)]


def test_a_dragged_pair_reads_the_curves():
    curves = {"InfoNCE": [20.0, 10.0, 0.0], "GCE": [0.0, 8.0, 0.0]}
    shown = play.gradient([0, 0.5, 1], curves, {"InfoNCE": "#000000", "GCE": "#111111"}, at=0.25)
    values = given_to(shown)
    assert values["top"] == 20
    assert values["pulls"]["InfoNCE"][25] == 15
    assert shown.said == "Pull: InfoNCE 15.00; GCE 4.00."
    assert shown.picture.count("<polyline") == 2


def test_hostile_captions_stay_text():
    hostile = '</script><img src=x onerror="alert(1)">'
    cost = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    shown = play.plan({hostile: cost}, ["data:,"] * 3, [hostile] * 3, [-1] * 3, lam=0.1, rho=0.5)
    text = shown._repr_html_()
    assert "<img src=x" not in text
    assert text.count("</script>") == 1
