"""Runs of category retrieval: every method on a toy set, resume, corner cases, errors before work starts."""

import json
from dataclasses import astuple, fields

import numpy as np
import pytest
import torch
from refusals import refused
from sklearn.neighbors import NearestNeighbors

import nclib
from nclib import data, label_noise
from nclib.common.options import make
from nclib.evaluation import mean_average_precision
from nclib.label_noise.base import DeepMethod, Training
from nclib.runs import epoch_arrays, experiment_of, resolve
from nclib.runs.label_trainer import LabelTrainer
from nclib.runs.labels import neighbours
from nclib.runs.loop import Place
from nclib.runs.options import LabelSchedule
from nclib.runs.presets import PRESETS
from nclib.testing import check_method

TINY = {
    "dataset": "planted_category",
    "data_options": {
        **{"n_train": 90, "n_val": 30, "n_test": 40, "n_classes": 4, "image_dim": 16, "text_dim": 16}
    },
    "noise_rate": 0.4,
    "batch_size": 32,
    "epochs": 4,
    "hidden": 16,
    "dim": 8,
    "lr": 1e-3,
}
DEEP = [name for name in label_noise.available() if issubclass(label_noise.METHODS[name].factory, DeepMethod)]


def tiny(method):
    """Return short runs with an epoch of warm-up at most."""
    return {**TINY, **({"warmup_epochs": 1} if method == "uot_rcl" else {})}


def run(out, method="uot_rcl", **values):
    return nclib.run(method, **{**tiny(method), **values}, out=str(out), progress=False)


def comparable(record):
    curves = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in record.curves]
    return json.dumps([record.metrics, record.diagnostics, record.best_epoch, curves], sort_keys=True)


FITTING = {  # values of options that act in a short run; of the others half or the double
    ("dcca", "outputs"): 3,
    ("dccae", "outputs"): 3,
    ("fgcrossnet_losses", "centre_rate"): 2.0,
    ("gma", "ridge"): 0.1,
    ("mvda", "ridge"): 0.5,
    ("uot_rcl", "pool"): 8,
}


def another(method, name, rule, usual):
    if (method, name) in FITTING:
        return FITTING[method, name]
    if rule.choices:
        return next(c for c in rule.choices if c != usual)
    if isinstance(usual, (bool, tuple)):
        return not usual if isinstance(usual, bool) else tuple(2 * x for x in usual)
    kind = type(usual)
    return next(v for v in (kind(usual / 2), kind(usual * 2), usual + 1) if v != usual and rule.accepts(v))


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", label_noise.available())
def test_every_option_of_a_method_changes_its_run(method, tmp_path):
    usual = comparable(run(tmp_path, method))
    for field in fields(label_noise.METHODS[method].factory.Options):
        if field.name in (*tiny(method), "tol"):  # where gss_regression's rounds end has a test of its own
            continue
        value = another(method, field.name, field.metadata["rule"], field.default)
        assert comparable(run(tmp_path, method, **{field.name: value})) != usual, (field.name, value)


@pytest.mark.parametrize("method", label_noise.available())
def test_every_method_trains_evaluates_saves_and_loads(tmp_path, method):
    record = run(tmp_path, method, epochs=3)
    for part in ("val", "test", "last"):
        assert set(record.metrics[part]) == {"map_i2t", "map_t2i", "map_avg"}
        assert all(0 < v <= 1 for v in record.metrics[part].values())
    assert record.data["train_pairs"] == 90
    assert 0.3 < record.diagnostics["given_accuracy"] < 1
    again = run(tmp_path, method, epochs=3)  # from its record
    assert comparable(again) == comparable(record)
    opened = nclib.open_run(record)
    trainer, dataset = opened.trainer, opened.dataset
    assert trainer.evaluate(dataset.test) == record.metrics["test"]
    assert trainer.evaluate(dataset.val)["map_avg"] == max(row["val_map_avg"] for row in record.curves)


@pytest.mark.parametrize("method", DEEP)
def test_resumed_run_equals_one_that_never_stopped(method):
    check_method(label_noise.METHODS[method].factory, **tiny(method))


def test_rate_falls_as_a_cosine_or_stays(tmp_path):
    falling = [row["lr"] for row in run(tmp_path, "mrl").curves]
    expected = [1e-3 * 0.5 * (1 + np.cos(np.pi * e / 4)) for e in range(4)]
    assert falling == pytest.approx(expected)
    assert {row["lr"] for row in run(tmp_path, "mrl", lr_schedule="constant").curves} == {1e-3}


@pytest.mark.parametrize("preset", PRESETS)
def test_baselines_keep_their_rate_where_their_own_code_does(preset):
    kept = {m for m in DEEP if resolve(m, preset=preset).schedule.lr_schedule == "constant"}
    assert kept == {"acmr", "dcca", "dccae", "dscmr", "nirnl", "sdml"}
    assert resolve("sdml", preset=preset, lr_schedule="cosine").schedule.lr_schedule == "cosine"


def test_map_of_the_record_is_the_exact_one(tmp_path):
    record = run(tmp_path, "mrl")
    opened = nclib.open_run(record)
    trainer, dataset = opened.trainer, opened.dataset
    v, t = trainer.embed_split(dataset.test)
    y = dataset.test.labels
    assert record.metrics["test"]["map_i2t"] == mean_average_precision(v, t, y, y)
    assert record.metrics["test"]["map_t2i"] == mean_average_precision(t, v, y, y)


def test_neighbours_of_the_record_against_scikit_learn(tmp_path):
    def near(x, others, k, itself):
        search = NearestNeighbors(n_neighbors=k, metric="cosine").fit(others)
        return search.kneighbors(None if itself else x, return_distance=False)

    record = run(tmp_path, "mrl")
    opened = nclib.open_run(record)
    test = opened.dataset.test
    v, t = (x.numpy() for x in opened.trainer.embed_split(test))
    y, is_text = test.labels, np.repeat([False, True], len(test))
    lists = {"texts_of_class": near(v, t, 5, False), "images_of_class": near(t, v, 3, False)}
    expected = {name: (y[found] == y[:, None]).mean() for name, found in lists.items()}
    for name, parts in (("purity", (v, t)), ("purity_given", (test.images, test.texts))):
        expected[name] = np.mean([y[near(x, x, 10, True)] == y[:, None] for x in parts])
    both = np.concatenate([v, t])
    expected["other_modality"] = (is_text[near(both, both, 10, True)] != is_text[:, None]).mean()
    assert record.metrics["neighbours"] == pytest.approx(expected)
    assert neighbours(torch.eye(1), torch.eye(1), range(1)) == {}


# -- UOT-RCL's corner cases ---------------------------------------------------------------------------------


def trainer_on(train, tmp_path, method="uot_rcl", **options):
    built = label_noise.build(method, **options)
    network = built.build(
        label_noise.Shape(train.images.shape[1], train.texts.shape[1], train.n_classes, 16, 8)
    )
    n = len(train)
    val = data.CategorySplit("val", train.images.numpy(), train.texts.numpy(), train.image_labels.numpy())
    schedule = make(LabelSchedule, {"batch_size": 16, "epochs": 4, "hidden": 16, "dim": 8})
    return LabelTrainer(
        built, network, train, np.zeros(n, np.int64), val, schedule,
        Place(0, torch.device("cpu"), tmp_path, {}),
    )  # fmt: skip


def pairs(labels, n_classes, seed=0):
    g = torch.Generator().manual_seed(seed)
    n = len(labels)
    x, y = torch.randn(n, 6, generator=g), torch.randn(n, 5, generator=g)
    labels = torch.as_tensor(labels)
    return Training(x, y, labels, labels.clone(), n_classes)


@pytest.mark.parametrize("method", ["uot_rcl", "mrl", "elrcmr"])
@pytest.mark.parametrize(
    ("labels", "n_classes"),
    [
        ([0, 1, 3] * 10, 5),  # classes 2 and 4 have no sample
        ([1] * 30, 3),  # all labels equal
        ([0, 1] * 2, 2),  # fewer pairs than a batch, or than neighbours
        ([0, 1] * 8 + [0], 2),  # a last batch of one pair
    ],
    ids=["empty class", "one label", "tiny", "last batch of one"],
)
def test_degenerate_labels(tmp_path, method, labels, n_classes):
    history = trainer_on(pairs(labels, n_classes), tmp_path, method).fit(progress=False)
    assert len(history) == 4
    assert all(np.isfinite(v) for row in history for v in row.values())


def test_one_confident_pair_is_too_few_and_the_epoch_trains_on_the_targets(tmp_path):
    trainer = trainer_on(pairs([0] * 6, 2), tmp_path, per_class=1)
    trainer.network.prototypes.weight.data[:, 1] *= 0
    trainer.method.begin_epoch(trainer)
    trainer.epoch = 3
    with torch.no_grad():
        trainer.network.prototypes.weight[:] = trainer.network.prototypes.weight[:, :1]
    trainer.method.begin_epoch(trainer)
    assert not trainer.method.correcting
    assert set(trainer.method.step(trainer, trainer.batch(torch.arange(4)))) == {"ce"}


def test_targets_move_once_per_epoch_and_never_without_momentum(tmp_path):
    trainer = trainer_on(pairs([0, 1, 2] * 10, 3), tmp_path, gamma=0.9)
    trainer.method.begin_epoch(trainer)
    given = trainer.method.targets[0].clone()
    trainer.epoch = 2
    trainer.method.begin_epoch(trainer)
    moved = trainer.method.targets[0]
    assert torch.allclose(moved.sum(1), torch.ones(30))
    gone = (moved - given).abs().sum(1)
    assert ((gone < 1e-6) | ((gone - 0.2).abs() < 1e-6)).all()


def test_transported_mass_grows_with_the_epochs(tmp_path):
    record = run(tmp_path, epochs=6, warmup_epochs=2)
    s = [row["transported_mass"] for row in record.curves if "transported_mass" in row]
    assert s == pytest.approx(np.linspace(0.2, 0.8, 4), abs=1e-6)
    assert label_noise.build("uot_rcl", warmup_epochs=0).mass_at(0, 1) == 0.2  # alone, it is the first
    kept = epoch_arrays(record.folder)
    assert sorted(kept) == [3, 4, 5, 6]
    corrected = kept[6]["corrected"].astype(float)
    assert corrected.shape == (90, 4)
    assert corrected.sum(1).max() <= 1 + 1e-2
    assert corrected.sum() / 90 == pytest.approx(0.8, abs=1e-2)
    confusion = np.array(record.diagnostics["confusion"])
    truth = data.load(TINY["dataset"], **TINY["data_options"]).train.labels
    chosen = kept[int(record.diagnostics["confusion_epoch"])]["corrected"].astype(float)
    by_hand = np.array([chosen[truth == k].sum(0) for k in range(4)])
    assert np.allclose(confusion, by_hand / by_hand.sum(1, keepdims=True), atol=1e-3)


def test_correction_beats_the_given_labels_on_clean_clusters(tmp_path):
    easy = {**TINY["data_options"], "n_train": 400, "image_noise": 0.8, "text_noise": 0.8}
    given = {"epochs": 8, "warmup_epochs": 2, "gamma": 0.99, "lam": 0.4, "noise_rate": 0.6, "neighbours": 20}
    d = run(tmp_path, **given, data_options=easy).diagnostics
    assert d["corrected_accuracy"] > d["given_accuracy"] + 0.1
    assert d["relation_same_class"] > 1.5 * d["relation_chance"]


# -- parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"noise_rate": 1.5}, ["noise_rate=1.5", "at least 0 and at most 1"]),
        ({"lamda": 0.1}, ["'lamda'", "'lam'"]),
        ({"dataset": "emoji"}, ["dataset='emoji'", "category_file, emoji_category"]),
        ({"dataset": "wikipedia"}, ["root"]),
        ({"data_options": {"colour": 1}}, ["'colour'", "n_train"]),
        ({"data_options": 3}, ["data_options=3"]),
        ({"noise_file": "nowhere.json"}, ["nowhere.json"]),
        ({"plc": "yes"}, ["plc='yes'", "'transport'"]),
        ({"epochs": 0}, ["epochs=0", "at least 1"]),
    ],
)
def test_bad_parameters_are_told_before_work_starts(tmp_path, values, named):
    with pytest.raises(ValueError) as error:  # of several parameters a line each
        nclib.run("uot_rcl", **values, out=str(tmp_path))
    assert [word for word in named if word not in str(error.value)] == []
    assert not list(tmp_path.iterdir())


def test_more_classes_than_dimensions_is_told(tmp_path):
    refused(ValueError, lambda: run(tmp_path, dim=2), "dim=2", "4")


def test_presets_and_method_settings():
    quick, paper = resolve("uot_rcl"), resolve("uot_rcl", preset="paper")
    assert astuple(paper.schedule) == (100, 100, 1e-4, "cosine", 4096, 512)
    assert quick.schedule.hidden < 4096
    root = {"data_options": {"root": "."}, "preset": "paper"}
    nus = resolve("uot_rcl", dataset="nuswide", **root)
    assert (nus.schedule.batch_size, nus.method_options.neighbours) == (500, 200)
    assert resolve("uot_rcl", dataset="nuswide", neighbours=7, **root).method_options.neighbours == 7
    assert resolve("mrl", dataset="xmedianet", **root).method_options.beta == 0.9
    assert "noise_rate" in experiment_of("mrl").parameters()


def test_noise_file_of_a_run(tmp_path):
    n = TINY["data_options"]["n_train"]
    path = tmp_path / "noise.json"
    path.write_text(json.dumps([[0] * n, [1] * n]))
    record = run(tmp_path, "mrl", noise_file=str(path))
    assert record.noise["protocol"] == "file"
    assert record.settings["noise_rate"] is None


def test_elr_targets_move_once_in_every_step(tmp_path):
    trainer = trainer_on(pairs([0, 1] * 10, 2), tmp_path, "elrcmr")
    trainer.fit(progress=False)
    assert trainer.method.targets[0].sum(1).mean().item() == pytest.approx(1 - 0.9**4, abs=1e-5)
