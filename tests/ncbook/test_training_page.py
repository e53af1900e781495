"""What a notebook shows of its run: pairs, the runs beside it, and what was tested in a warm-up."""

import dataclasses

import pytest
from ncbook import training

import nclib
from nclib.runs.record import Record


@pytest.fixture
def pairs():
    return training.training_pairs("l2rm", {"dataset": "planted", "mrate": 0.4, "seed": 1})


def test_some_pairs_are_of_one_kind_and_of_different_pictures(pairs):
    for kind in (True, False):
        rows = training.some_pairs(pairs, kind, 4)
        assert len(rows) == 4
        assert (pairs.noise.matched[rows] == kind).all()
        assert len(set(pairs.image_of.numpy()[rows])) == 4


def test_the_pairs_of_a_page_are_those_of_its_run(tmp_path):
    for protocol, noise_seed in (("images", None), ("captions", None), ("near", None), ("images", 7)):
        given = {"dataset": "planted", "data_options": {"n_train": 40}, "mrate": 0.5, "protocol": protocol}
        given["noise_seed"] = noise_seed
        record = nclib.run("linear", **given, out=tmp_path, progress=False)
        assert training.training_pairs("linear", given).noise.checksum == record.noise["checksum"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Record, dict]:
    given = {
        **{"dataset": "planted", "model": "vse", "mrate": 0.4, "warmup_epochs": 1, "epochs": 1},
        **{"data_options": {"n_train": 40, "n_val": 20, "n_test": 20}, "batch_size": 20},
        "out": tmp_path_factory.mktemp("runs"),
    }
    return nclib.run("l2rm", **given, progress=False), given


def test_undefended_training_and_the_closed_form_stand_beside_a_run(run, capsys):
    compared = training.beside(*run, "auto")
    settings = {name: one.settings for name, one in compared.items()}
    assert {name: s["method"] for name, s in settings.items()} == {
        "L2RM": "l2rm", "InfoNCE": "plain", "linear": "linear",
    }  # fmt: skip
    assert settings["InfoNCE"]["method_options"]["loss"] == "infonce"
    assert settings["InfoNCE"]["epochs"] == settings["L2RM"]["epochs"]
    assert len({one.noise["checksum"] for one in compared.values()}) == 1
    assert list(training.beside(*run, "none")) == ["L2RM"]
    assert "linear, trained now: rSum" in capsys.readouterr().out


def test_a_run_tested_in_its_warm_up_has_no_bar_and_is_said(run):
    record = dataclasses.replace(run[0], best_epoch=1)
    late = dataclasses.replace(record, best_epoch=2)
    table = training.recalls({"L2RM": record, "l2rm_other": late})
    test = late.metrics["test"]
    assert table["l2rm_other"].tolist() == [test[f"{way}_r{k}"] for way in ("i2t", "t2i") for k in (1, 5, 10)]
    assert "L2RM" not in table
    assert "tested at an epoch of its warm-up" in training.you_ran(record).data
    assert "warm-up" not in training.you_ran(late).data
