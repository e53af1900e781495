"""Finished runs combined: the mean of their similarities, tested as one model."""

import pytest
import torch

import nclib
from nclib.runs.combination import parts_of
from nclib.runs.pairs import metrics_of

SHORT = {
    "dataset": "planted",
    "mrate": 0.2,
    "batch_size": 16,
    "warmup_epochs": 0,
    "epochs": 1,
    "data_options": {"n_train": 20, "n_val": 8, "n_test": 8},
    "model_options": {"embed_dim": 8, "sim_dim": 4, "word_dim": 4},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of each of two models."""
    out = str(tmp_path_factory.mktemp("parts"))
    return {m: nclib.run("plain", model=m, **SHORT, out=out, progress=False) for m in ("saf", "sgr")}


def test_the_mean_of_two_models_is_tested(made, tmp_path):
    record = nclib.combine(list(made.values()), tmp_path)
    opened = [nclib.open_run(part) for part in made.values()]
    test = opened[0].dataset.test
    scores = torch.cat([part.trainer.scores(test) for part in opened])
    assert {k: v for k, v in record.metrics.items() if k != "val"} == metrics_of(scores, test)
    assert record.settings["model"] == "saf+sgr"
    assert record.parts == [part.name for part in made.values()]
    assert record.best_epoch == 1
    again = nclib.Record.load(f"{record.folder}/record.json")
    assert again == record
    assert nclib.table(tmp_path)["model"].item() == "saf+sgr"


def test_one_model_trained_twice_is_combined(tmp_path):
    clean = SHORT | {"mrate": 0.0, "dataset": "planted", "model": "vse+vse", "seed": 1}
    ways = parts_of(clean)
    assert [(way["model"], way["seed"]) for way in ways] == [("vse", 2), ("vse", 3)]
    parts = [nclib.run("plain", **way, out=tmp_path, progress=False) for way in ways]
    record = nclib.combine(parts, tmp_path)
    assert (record.settings["model"], record.settings["seed"]) == ("vse+vse", 2)
    opened = [nclib.open_run(part) for part in parts]
    test = opened[0].dataset.test
    scores = torch.cat([part.trainer.scores(test) for part in opened])
    assert not torch.equal(scores[0], scores[1])
    assert record.metrics["test"] == metrics_of(scores, test)["test"]
    other = nclib.run("plain", **ways[1] | {"model": "saf"}, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"differs from .* in seed"):
        nclib.combine([parts[0], other], tmp_path)
    with pytest.raises(ValueError, match="each given once"):
        nclib.combine([parts[0], parts[0], parts[1]], tmp_path)


def test_the_command_combines_folders(made, tmp_path, capsys):
    from nclib.cli import main

    assert main(["combine", *(part.folder for part in made.values()), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip().endswith("record.json")


def test_runs_that_differ_in_more_are_refused(made, tmp_path):
    saf = made["saf"]
    other = nclib.run("plain", model="sgr", **SHORT | {"mrate": 0.4}, out=tmp_path, progress=False)
    for runs, message in (
        ([saf], "must be two or more"),
        ([saf, saf], "each given once"),
        ([saf, other], "differs from .* in mrate, noise"),
        ([saf, nclib.combine(list(made.values()), tmp_path)], "only single runs"),
    ):
        with pytest.raises(ValueError, match=message):
            nclib.combine(runs, tmp_path)


def test_a_combination_has_no_checkpoint(made, tmp_path):
    record = nclib.combine(list(made.values()), tmp_path)
    with pytest.raises(ValueError, match=r"combines the runs plain-saf-.*take these instead"):
        nclib.open_run(record)


def test_values_joined_by_a_plus_sign_are_parts():
    ways = parts_of({"model": "scan", "model_options": {"direction": "t2i+i2t", "dropout": 0.1}})
    assert [part["model_options"]["direction"] for part in ways] == ["t2i", "i2t"]
    assert all(part["model"] == "scan" and part["model_options"]["dropout"] == 0.1 for part in ways)
    with pytest.raises(ValueError, match="join 2 and 3 values"):
        parts_of({"model": "saf+sgr", "model_options": {"text": "a+b+c"}})
