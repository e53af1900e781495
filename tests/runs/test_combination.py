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


def test_the_command_combines_folders(made, tmp_path, capsys):
    from nclib.cli import main

    assert main(["combine", *(part.folder for part in made.values()), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip().endswith("record.json")


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
