"""The probes of claims measure what they say, fill their file once, and the ledger reads it."""

import importlib
import json

import numpy as np
import pytest
import torch
from ncbook import measurement, named, recorded
from ncbook.measurements import unpacked

import nclib
from nclib import losses
from nclib.methods import METHODS, Truth
from nclib.noise import Mismatch
from nclib.runs.noisy_pairs import NoisyPairs

PLACE = {"dataset": "emoji", "model": "vse", "preset": "quick", "protocol": "images", "mrate": 0.6}


@pytest.fixture(scope="module")
def probe():
    """Return a function that imports a probe; what they register is removed afterwards."""
    yield importlib.import_module
    for name in {"repair_probe", "l2rm_probe"} & set(METHODS):
        METHODS.remove(name)


def test_a_file_grows_by_the_cases_that_it_lacks(probe, tmp_path):
    path, seen = tmp_path / "part.json", []

    def measure(made, case):
        seen.append(case["seed"])
        return {"value": 1 / 3}

    fill = probe("probe_common").fill
    for seeds in ((0, 1), (0, 1, 2)):
        fill(path, [{**PLACE, "seed": seed} for seed in seeds], measure, root="/a/folder")
    assert seen == [0, 1, 2]
    made = json.loads(path.read_text("utf8"), object_hook=unpacked)
    assert [row["seed"] for row in made["rows"]] == [0, 1, 2]
    assert made["rows"][0]["value"] == 0.33333
    assert made["rows"][0]["commit"] == made["environment"]["commit"]
    assert "folder" not in path.read_text("utf8")


def test_products_are_rounded_forward_and_backward_and_nothing_else_is(probe):
    x, w = (torch.randn(4, 4, generator=torch.Generator().manual_seed(k)).requires_grad_() for k in (0, 1))
    half = x.detach().bfloat16().float()
    module = probe("precision")
    assert torch.equal(module.rounded(x.detach(), 7), half)
    with module.Rounded("tf32") as mode:
        out = torch.nn.functional.linear(x, w)
        out.sum().backward()
        kept = x + w
    coarse = [module.rounded(part.detach(), 10) for part in (x, w)]
    exact = {"rtol": 0, "atol": 1e-6}  # rounding to 10 bits moves these products by 1e-3
    torch.testing.assert_close(out, coarse[0] @ coarse[1].t(), **exact)
    torch.testing.assert_close(x.grad, torch.ones(4, 4) @ coarse[1], **exact)
    assert torch.equal(kept, x + w)
    assert mode.products == 3


def test_spread_of_columns_by_hand(probe):
    shares = torch.tensor([[[1.0, 2.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    used = torch.tensor([[True, True, False]])  # the third word is padding
    found = probe("plans").spread(shares, used)
    assert found["in_use"].tolist() == pytest.approx([4, 1])
    assert found["top"].tolist() == pytest.approx([0.75, 1])
    plans = torch.tensor([[[0.2, 0.2], [0.2, 0.2]], [[0.5, 0.0], [0.0, 0.0]]])
    assert probe("plans").cells_in_use(plans).tolist() == pytest.approx([4, 1])


def test_high_labels_that_stay_high(probe):
    labels = probe("labels")
    assert labels.in_top(np.array([3.0, 1.0, 2.0, 0.0]), share=2).tolist() == [1, 0, 1, 0]
    ties = labels.in_top(np.array([5.0, 4.0, 4.0, 4.0]), share=2)  # one place for three
    assert ties.tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    first, last = np.arange(20.0), np.r_[np.arange(19.0, -1, -1)[:19], 30.0]  # 18 and 19 are high, then 0, 19
    wrong = np.zeros(20, bool)
    wrong[[0, 18, 19]] = True
    assert labels.staying(first, last, wrong) == 0.5


def test_labels_and_pictures_by_kind(probe):
    labels = probe("labels")
    matched, relevance = np.array([True, False, False]), np.array([1.0, 0.5, 0.0])
    found = labels.labels_of_kinds(np.array([0.9, 0.4, 0.1]), matched, relevance)
    assert [found[f"label_{k}"] for k in ("matched", "related", "unrelated")] == [0.9, 0.4, 0.1]
    table = torch.tensor([[1.0, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.0]])  # picture, caption of pair
    truth = Truth(matched, lambda i, j: table[i][:, j])
    arrays = {"replaced_image": [True, True, False], "replaced_pair": [2, 0, 1], "replaced_by": [1, 2, 0]}
    found = labels.replaced({name: np.array(values) for name, values in arrays.items()}, truth)
    assert found["new_picture"] == pytest.approx(0.6)  # of pair 2, which is mismatched
    assert found["old_picture"] == 0


def test_averages_of_the_closed_form_and_networks(probe, tmp_path):
    """The parts are those of an averaged pair, and half of each counts."""
    case = {"dataset": "planted", "model": "bow", "protocol": "images", "mrate": 0.4, "seed": 3}
    how = {"data_options": {"n_train": 140, "n_val": 20, "n_test": 20}}
    run = probe("probe_common").run_in({**case, **how}, "", str(tmp_path), {})
    found = probe("linear_average").average(run, case)
    pair = nclib.run("plain", loss="gce", networks=2, **case, **how, out=tmp_path, progress=False)
    assert found["test.pair"] == pytest.approx(pair.metrics["test"]["rsum"])
    assert found["test.one"] != found["test.other"]
    S = torch.tensor([[3.0, 1.0], [1.0, 3.0]])
    assert probe("linear_average").standardised(S).std() == 1


def test_networks_begin_at_the_closed_form_and_see_the_kept_pairs_alone(probe, tmp_path):
    """The towers rank as ``linear`` does, and pair i of the kept ones is pair ``rows[i]`` of all."""
    case = {"dataset": "planted", "model": "bow", "protocol": "images", "mrate": 0.4, "seed": 0}
    how = {"data_options": {"n_train": 140, "n_val": 20, "n_test": 20}}
    sizes = {"model_options": {"embed_dim": 32, "word_dim": 48}, "epochs": 1}
    cell = {"label": "GCE", "pairs": "kept", "start": "linear"}
    run = probe("probe_common").run_in({**case, **how, **sizes, **cell}, "", str(tmp_path), {})
    found = probe("linear_start").start(run, cell)
    linear = nclib.run("linear", **case, **how, out=tmp_path, progress=False)
    assert found["val.start"] == pytest.approx(linear.metrics["val"]["rsum"], abs=40)
    assert 0.2 < found["kept"] < 1
    assert found["right"] > 0.6
    split = nclib.data.load("planted", **how["data_options"]).train
    noise, rows = Mismatch.draw(split.image_of, 0.4, seed=0), np.array([3, 4, 9, 20])
    pairs = probe("linear_start").KeptPairs(NoisyPairs(split, noise), rows)
    batch = pairs.batch(torch.tensor([3, 1]), torch.device("cpu"))
    assert batch.captions.ids[0, :3].tolist() == split.captions.ids(20)[:3].tolist()
    torch.testing.assert_close(batch.images[1], split.features([noise.image_of[4]])[0])
    assert pairs.truth().matched.tolist() == noise.matched[rows].tolist()


@pytest.fixture(scope="module")
def rematching(probe):
    return probe("rematching")


def test_rows_that_stay_have_no_loss(rematching):
    g = torch.Generator().manual_seed(0)
    S, plan = torch.rand(4, 4, generator=g), torch.rand(4, 4, generator=g)

    def loss():
        return rematching.exchanged_loss(S, plan, torch.eye(4), "transported", 0.1)

    whole = losses.rematch_sym_kl(S, plan, 0.1)  # every row and column moved
    torch.testing.assert_close(loss(), whole)
    plan[:, 1], plan[2] = 0, 0
    part = loss()
    assert (part > 0).tolist() == [True, True, True, True]  # of each pair one half moved
    plan[1], plan[:, 2] = 0, 0
    assert (loss() > 0).tolist() == [True, False, False, True]


def test_score_and_fit_of_given_captions(rematching):
    arrays = {"rematch_image": np.arange(4), "rematch_mass": np.array([1.0, 1.0, 0.5, 1.0])}
    arrays["rematch_share"] = np.array([0.9, 0.6, 0.4, 0.8])
    held = torch.diag(torch.tensor([0.0, 0.3, 0.6, 1.0]))
    truth = Truth(np.arange(4) == 3, lambda i, j: held[i][:, j])
    assert rematching.fit_and_score(arrays, truth) == pytest.approx(-1)  # pair 3 is matched


@pytest.mark.parametrize("protocol", ["images", "captions"])
def test_a_batch_holds_about_as_many_partners_as_chance_puts_there(probe, protocol):
    own = np.repeat(np.arange(2000), 5)
    noise = Mismatch.draw(own, 0.4, seed=0, protocol=protocol)
    count_partners = probe("partners").count_partners
    found = count_partners(noise.image_of, own, 64, seed=0)
    captions = 5 if protocol == "images" else 1 + 4 * 0.4
    assert found["wrong"] == noise.moved
    assert found["partners"] == pytest.approx(captions * 63 / found["wrong"], rel=0.15)
    assert 0 < found["with_partner"] <= found["partners"]
    shown = np.array([1, 2, 0, 4])  # three pictures in a cycle; nothing describes picture 4
    found = count_partners(shown, np.arange(4), 4, seed=0)
    assert found == {"wrong": 4, "batches": 1, "with_partner": 0.75, "partners": 0.75}


def test_a_pair_is_followed_by_its_partner(rematching):
    own = np.repeat(np.arange(50), 5)
    noise = Mismatch.draw(own, 0.6, seed=1)
    wrong = np.flatnonzero(~noise.matched)
    shown, described = torch.as_tensor(noise.image_of[wrong]), torch.as_tensor(own[wrong])
    order = rematching.chained(shown, described, torch.Generator().manual_seed(0))
    assert sorted(order.tolist()) == list(range(len(wrong)))
    follows = shown[order][:-1] == described[order][1:]
    assert follows.float().mean() > 0.8  # a cycle that ends breaks the chain


def test_rows_of_a_plan_by_hand(rematching):
    true = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    plan = torch.tensor([[0.0, 0.3, 0.1], [0.0, 0.0, 0.0], [0.05, 0.05, 0.0]])
    cost = torch.tensor([[0.0, 0.9, 0.1], [0.2, 0.0, 0.3], [0.1, 0.2, 0.0]])
    rows = rematching.score_rows(plan, cost, true)
    table = dict(zip(rematching.COLUMNS, rows.T.tolist(), strict=True))
    assert table["right"] == [0, 1, 0]
    assert table["partners"] == [0.5, 0, 0]
    assert table["found"] == [1, 0, 0]
    assert table["nearest"] == [0, 0, 0]  # the lowest cost is another caption
    found = {"there_found": 1, "there_nearest": 0, "there_chance": 0.5, "accuracy": 0.5}
    assert rematching.summary(rows) == found


def test_loss_of_rows_and_columns_is_the_rematching_loss(rematching):
    g = torch.Generator().manual_seed(0)
    S, plan = torch.rand(5, 5, generator=g), torch.rand(5, 5, generator=g)
    v2t, t2v = losses.log_probabilities(S, 0.1)
    both = 0.5 * (rematching.sym_kl(v2t, plan) + rematching.sym_kl(t2v, plan.T))
    torch.testing.assert_close(both, losses.rematch_sym_kl(S, plan, 0.1))
    plan[2] = 0
    assert rematching.sym_kl(v2t, plan)[2] == 0


@pytest.mark.slow
def test_the_probe_is_l2rm_until_a_part_is_exchanged(rematching, tmp_path):
    same = {
        **{"dataset": "planted", "model": "bow", "mrate": 0.6, "warmup_epochs": 1, "epochs": 1, "seed": 0},
        **{"data_options": {"n_val": 20, "n_test": 20}, "device": "cpu", "out": tmp_path},
    }
    usual = nclib.run("l2rm", **same, progress=False).curves[-1]
    probed = nclib.run("l2rm_probe", **same, progress=False).curves[-1]
    for name in ("loss_triplet", "loss_rematch", "val_rsum", "val_i2t_meanr"):
        assert probed[name] == usual[name]
    given = {"target": "truth or uniform", "batches": "partners", "division": "truth"}
    other = nclib.run("l2rm_probe", **given, **same, progress=False).curves[-1]
    assert other["division_precision"] == 1
    assert other["accuracy"] > probed["accuracy"]  # nearly all have a partner in the batch
    assert other["loss_rematch"] != usual["loss_rematch"]


def test_the_recorded_probe_repeats_the_recorded_run():
    own = [r for r in measurement("probe_targets")["rows"] if (r["label"], r["seed"]) == ("L2RM", 0)]
    where = {"dataset": "f8k", "preset": "standard", "model": "bow", "protocol": "images", "mrate": 0.6}
    runs = named(recorded(method="l2rm", seed=0, **where))
    assert len(own) == 1
    assert own[0]["test"] == pytest.approx(runs.loc[runs["label"] == "L2RM", "rsum"].item(), abs=0.01)
