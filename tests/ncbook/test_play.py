"""Pictures with sliders: what they show at first, what their script is given, and what strangers wrote."""

import json
import re

import numpy as np
import pytest
import torch
from ncbook import play
from ncbook.chapters import inside

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
    assert values["own"] == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert values["given"][0][0] == values["own"]  # rate 0
    for protocol in (0, 1):
        wrong = np.array(values["given"][protocol][1]) != values["own"]
        assert wrong.mean() == 0.5
        assert f"{wrong.sum()} of 20 captions" in values["said"][protocol][1]
    moved = np.array(values["given"][0][1]) != values["own"]
    assert shown.picture.count("nc-wrong") == moved.sum()  # the first value is drawn without a script
    assert shown.picture.count("<img") == 4
    assert 'aria-valuetext="0.5"' in shown.controls


def test_plan_moves_the_mass_and_counts_true_partners():
    cost = torch.rand(5, 5, generator=torch.Generator().manual_seed(0))
    cost[0, 2] = -1.0
    lams, rhos = (0.01, 0.3), (0.2, 0.8)
    shown = play.plan(
        {"one": cost, "other": 1 - cost}, ["data:,"] * 5, list("abcde"), [2, -1, -1, -1, 3],
        lams=lams, rhos=rhos, lam=0.3, rho=0.8,
    )  # fmt: skip
    values = given_to(shown)
    exact = 5 * ot.partial_sinkhorn(cost.double(), 0.8, reg=0.01, mask=~torch.eye(5, dtype=torch.bool)).plan
    found = np.array(values["plans"][0][0][1].split(), float).reshape(5, 5)
    np.testing.assert_allclose(found, 100 * exact, atol=0.51)
    right = float(exact[0, 2] + exact[4, 3]) / float(exact.sum())
    assert values["said"][0][0][1].startswith(f"80% of the mass moves, {right:.0%} of it to true partners")
    assert "by chance 10%" in shown.said
    assert shown.picture.count("nc-given") == 5
    assert shown.picture.count("nc-true") == 2
    assert shown.picture.count('<p class="nc-pair" hidden>') == 1  # the script fills it


def test_a_network_that_is_not_stored_is_named(capsys):
    assert inside.stored_plan("l2rm", "ncr") is None
    assert capsys.readouterr().out == "no stored networks of ncr: make demo makes them\n"


def test_search_ranks_by_the_given_scores(split):
    queries = [5, 40]  # of pictures 1 and 8
    scores = {"a": np.zeros((20, 2)), "b": np.arange(40.0).reshape(20, 2)}
    scores["a"][[1, 4], 0] = 2, 3
    values = given_to(play.search(split, queries, scores, shown=3))
    assert values["own"] == [1, 8]
    assert values["found"][0][0] == [4, 1, 0]
    assert values["found"][1] == [[19, 18, 17]] * 2
    assert values["places"] == [
        ["own picture: place 2", "own picture: place 9"],
        *[["own picture: place 19", "own picture: place 12"]],
    ]
    assert set(values["pictures"]) == set(values["alts"]) >= {"1", "8", "19"}


def test_hostile_captions_stay_text():
    hostile = '</script><img src=x onerror="alert(1)">'
    cost = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    text = play.plan(
        {hostile: cost}, ["data:,"] * 3, [hostile] * 3, [-1] * 3, lams=(0.1,), rhos=(0.5,), lam=0.1, rho=0.5
    )._repr_html_()
    assert "<img src=x" not in text
    assert text.count("</script>") == 1
