"""One experiment for two tasks: parameters, noise that was asked for, names of one thing, records."""

import inspect
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from types import NoneType
from typing import Unpack, get_args, get_origin, get_type_hints

import pytest
import torch

import nclib
from nclib.common.options import Rule
from nclib.runs import Experiment, LoadedRun, experiment_of
from nclib.runs.options import LabelOptions, LabelSchedule, PairOptions, PairSchedule, RunParameters

TINY = {
    "dataset": "planted",
    "model": "vse",
    "warmup_epochs": 0,
    "epochs": 1,
    "data_options": {"n_train": 40},
}
TINY_LABELS = {
    "dataset": "planted_category",
    "epochs": 1,
    "hidden": 16,
    "dim": 16,
    "data_options": {"n_train": 60, "n_val": 20, "n_test": 20},
}


def test_run_shows_every_parameter_that_does_not_belong_to_a_method():
    shown = get_type_hints(RunParameters)
    fields: dict[str, set[type]] = {name: {Mapping} for name in ("model_options", "data_options")}
    for part in (PairOptions, LabelOptions, PairSchedule, LabelSchedule):
        for name, hint in get_type_hints(part).items():
            fields.setdefault(name, set()).update(get_args(hint) or (hint,))
    assert shown.keys() == fields.keys()
    for name, kinds in fields.items():
        taken = {get_origin(kind) or kind for kind in get_args(shown[name])}
        assert taken >= kinds | {NoneType}, name
    described = inspect.getdoc(nclib.run)
    assert [name for name in shown if name not in described] == []
    for function in (nclib.run, nclib.resolve):
        assert get_type_hints(function)["given"] == Unpack[RunParameters]


def test_both_tasks_are_one_class_and_open_to_one_shape(tmp_path):
    for method, values in (("plain", TINY), ("mrl", TINY_LABELS)):
        assert isinstance(experiment_of(method), Experiment)
        record = nclib.run(method, **values, out=tmp_path, progress=False)
        opened = nclib.open_run(record)
        assert isinstance(opened, LoadedRun)
        assert opened.noise.checksum == record.noise["checksum"]
        assert opened.dataset.checksum == record.data["checksum"]
        assert opened.trainer.n_parameters == record.cost["parameters"]


def test_settings_are_frozen_and_come_back_from_a_record(tmp_path):
    for method, values in (("l2rm", {**TINY, "rho": 0.2}), ("uot_rcl", {**TINY_LABELS, "warmup_epochs": 0})):
        settings = nclib.resolve(method, **values)
        with pytest.raises(FrozenInstanceError):
            settings.run.seed = 3
        assert experiment_of(method).read(settings.flat()) == settings


@pytest.mark.parametrize(
    ("method", "dataset", "options", "rate"),
    [
        ("plain", "emoji", {}, 0.6),
        ("plain", "planted", {}, 0.6),
        ("plain", "f30k", {"root": "x"}, 0.6),
        ("plain", "coco", {"root": "x"}, 0.6),
        ("plain", "f30k", {"root": "x", "build_vocabulary": True}, 0.0),  # files of one's own in that layout
        ("plain", "cc152k", {"root": "x"}, 0.0),
        ("mrl", "emoji_category", {}, 0.4),
        ("mrl", "wikipedia", {"root": "x"}, 0.4),
        ("mrl", "category_file", {"root": "x"}, 0.0),
    ],
)
@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_noise_is_drawn_for_benchmarks_only(method, dataset, options, rate, preset):
    given = {"dataset": dataset, "data_options": options, "preset": preset}
    assert nclib.resolve(method, **given).run.noise_rate == rate
    assert nclib.resolve(method, **given, noise_rate=0.2).run.noise_rate == 0.2


def test_data_registered_by_a_user_get_no_noise(tmp_path, capsys):
    from nclib.data import load
    from nclib.data.registry import datasets

    def mine():
        return load("planted", n_train=40)

    datasets.register("mine", summary="for this test")(mine)
    try:
        values = {k: v for k, v in TINY.items() if k not in ("dataset", "data_options")}
        record = nclib.run("plain", dataset="mine", **values, out=tmp_path)
    finally:
        datasets.remove("mine")
    assert capsys.readouterr().out.startswith("0 of 200 pairs moved: none asked for\n")
    assert (record.noise["moved"], record.noise["of"], record.noise_rate) == (0, 200, 0.0)


def test_a_run_says_first_how_much_was_moved(tmp_path, capsys):
    pairs = nclib.run("plain", **TINY, mrate=0.4, out=tmp_path)
    moved = pairs.noise["moved"]
    assert 0 < moved == round(200 * pairs.noise["true_rate"])
    said = f"{moved} of 200 pairs moved by images noise, rate 0.4, seed 0\n"
    assert capsys.readouterr().out.startswith(said)
    labels = nclib.run("mrl", **TINY_LABELS, noise_rate=0.5, out=tmp_path)
    wrong = labels.noise["moved"]
    assert wrong / 120 == pytest.approx(labels.noise["true_rate"])  # of images and of texts
    said = f"{wrong} of 120 labels moved by symmetric noise, rate 0.5, seed 0\n"
    assert capsys.readouterr().out.startswith(said)


def test_the_rate_has_one_name_in_both_tasks(tmp_path):
    record = nclib.run("plain", **TINY, noise_rate=0.4, out=tmp_path, progress=False)
    assert (record.settings["mrate"], record.noise_rate) == (0.4, 0.4)
    assert "noise_rate" not in record.settings  # records hold one of the two
    assert nclib.run("plain", **TINY, mrate=0.4, out=tmp_path, progress=False).name == record.name
    nclib.run("mrl", **TINY_LABELS, noise_rate=0.2, out=tmp_path, progress=False)
    table = nclib.table(tmp_path).set_index("method")
    assert table["noise_rate"].to_dict() == {"plain": 0.4, "mrl": 0.2}
    assert table.loc["plain", "mrate"] == 0.4


def test_two_names_of_the_rate_at_once_are_an_error():
    with pytest.raises(ValueError, match="mrate and noise_rate are two names of one parameter; give one"):
        nclib.run("plain", mrate=0.4, noise_rate=0.4)
    with pytest.raises(ValueError, match="unknown parameter 'mrate'"):
        nclib.run("mrl", mrate=0.4)
    with pytest.raises(ValueError, match=r"two names .*; unknown parameter 'rh'.*; mrate=2: must be"):
        nclib.run("l2rm", mrate=0.4, noise_rate=2, rh=0.1)


def test_the_check_of_a_notebook_takes_either_task():
    given = nclib.check_parameters({"noise_rate": 0.2, "scope": "pair", "live": "mrl"}, "mrl", live=Rule(str))
    assert given == {"noise_rate": 0.2, "scope": "pair"}
    assert nclib.check_parameters({"noise_rate": 0.2, "rho": None}, "l2rm") == {"mrate": 0.2}
    assert nclib.check_parameters({"seed": 3}, None, seed=Rule(int, low=0)) == {}
    with pytest.raises(ValueError, match="seed=-1: must be a whole number, at least 0"):
        nclib.check_parameters({"seed": -1}, None, seed=Rule(int, low=0))


def test_settings_find_their_record(tmp_path):
    nclib.run("mrl", **TINY_LABELS, out=tmp_path, progress=False)
    found = nclib.runs.find(tmp_path, nclib.resolve("mrl", **TINY_LABELS))
    assert found is not None
    assert found.settings["protocol"] == "symmetric"
    assert nclib.runs.find(tmp_path, nclib.resolve("mrl", **TINY_LABELS, seed=7)) is None


def test_a_model_has_its_own_schedule_where_it_is_the_baseline():
    given = {"dataset": "f30k", "preset": "paper", "data_options": {"root": "x"}}
    plain = {m: nclib.resolve("plain", model=m, **given).schedule for m in ("sgr", "saf", "vse_inf", "omit")}
    assert [(s.warmup_epochs, s.epochs, s.decay_every) for s in plain.values()] == [
        (0, 40, 30), (0, 30, 20), (1, 24, 14), (1, 14, 9),
    ]  # fmt: skip
    assert [s.weight_decay for s in plain.values()] == [0.0, 0.0, 1e-2, 5e-4]
    robust = {m: nclib.resolve("l2rm", model=m, **given).schedule for m in ("sgr", "omit")}
    assert robust["sgr"] == robust["omit"] != plain["sgr"]


def test_the_papers_runs_validate_as_their_code_does():
    def chosen(method, dataset, **given):
        given = {"preset": "paper", "data_options": {"root": "x", **given}} if dataset != "emoji" else given
        return nclib.resolve(method, dataset=dataset, **given).data_options.get("dev_protocol")

    few = {method for method in nclib.methods.available() if chosen(method, "f30k") == "ncr200"}
    assert few == {"ncr", "bicro", "l2rm", "cream", "sps", "pcsr"}
    assert chosen("ncr", "coco") == "ncr200"
    assert chosen("ncr", "coco", dev_protocol="full1000") == "full1000"
    assert chosen("ncr", "cc152k") is chosen("mscn", "coco") is chosen("ncr", "emoji", preset="paper") is None


def test_weights_decay_by_adamw(tmp_path):
    """A step with weight decay d is Adam's step, from weights that shrank by 1 - lr d."""
    lr, decay = 0.01, 0.5
    start = nclib.runs.experiment_of("plain")
    trainers = [
        start.load(
            start.resolve(**TINY, lr=lr, weight_decay=d), tmp_path / str(d), torch.device("cpu")
        ).trainer
        for d in (0.0, decay)
    ]
    moved = []
    for trainer in trainers:
        (network,) = trainer.networks
        before = [p.detach().clone() for p in network.parameters()]
        batch = next(iter(trainer.batches(purpose="test")))
        trainer._minimise({"loss": trainer.similarity(batch).sum()})
        pairs = zip(network.parameters(), before, strict=True)
        moved.append([(after - was).detach() for after, was in pairs])
    for plain, decayed, p in zip(*moved, before, strict=True):
        torch.testing.assert_close(decayed, plain - lr * decay * p, atol=1e-6, rtol=1e-4)
