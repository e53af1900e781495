"""Finished runs combined: the mean of their similarities, tested as one model."""

import numpy as np
import pytest
import torch
from baselines.joined import parts_of
from ncbook.nearest import nearest, requests
from ncbook.verify import compare, make_again
from small import QUIET, SMALL

import nclib
from nclib.runs import checkpoint, load_record
from nclib.runs.pairs import metrics_of

SHORT = QUIET | {"model_options": {"embed_dim": 8, "sim_dim": 4, "word_dim": 4}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of each of two models."""
    out = str(tmp_path_factory.mktemp("parts"))
    return {m: nclib.run("plain", **SHORT | {"model": m}, out=out) for m in ("saf", "sgr")}


def test_the_mean_of_two_models_is_tested(made, tmp_path):
    record = nclib.combine([part.folder for part in made.values()], tmp_path)
    opened = [nclib.open_run(part) for part in made.values()]
    test = opened[0].dataset.test
    expected = metrics_of(torch.cat([part.trainer.scores(test) for part in opened]), test)
    expected["last"] = expected["test"]  # one epoch is the selected and the last one
    assert {k: v for k, v in record.metrics.items() if k != "val"} == expected
    assert (record.settings["model"], record.best_epoch) == ("saf+sgr", 1)
    assert record.parts == [part.name for part in made.values()]
    assert nclib.Record.load(f"{record.folder}/record.json") == record
    assert nclib.table(tmp_path)["model"].item() == "saf+sgr"
    assert nclib.combine(list(made.values()), tmp_path / "records").metrics == record.metrics
    with pytest.raises(ValueError, match=r"combines the runs plain-saf-.*take these instead"):
        nclib.open_run(record)  # it has no checkpoint


def test_values_joined_by_a_plus_sign_are_parts():
    ways = parts_of({"model": "scan", "model_options": {"direction": "t2i+i2t", "dropout": 0.1}})
    assert [part["model_options"]["direction"] for part in ways] == ["t2i", "i2t"]
    assert all(part["model"] == "scan" and part["model_options"]["dropout"] == 0.1 for part in ways)
    with pytest.raises(ValueError, match="join 2 and 3 values"):
        parts_of({"model": "saf+sgr", "model_options": {"text": "a+b+c"}})
    with pytest.raises(ValueError, match="networks=2: models that are joined have one network each"):
        parts_of({"model": "saf+sgr", "networks": 2})


APART = QUIET | {"seed": 3, "loss": "gce"}
TWICE = APART | {"epochs": 2, "networks": 2}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two networks that were trained apart."""
    out = tmp_path_factory.mktemp("apart")
    return nclib.run("plain", **APART, networks=2, out=out)


def test_networks_are_trained_apart_on_one_noise_and_averaged(pair, tmp_path):
    one, two = members = [load_record(f"{pair.folder}/../{name}/record.json") for name in pair.parts]
    alone = nclib.run("plain", **APART, out=tmp_path)
    assert (alone.name, compare(alone, one).state) == (one.name, "same")
    assert [member.settings["seed"] for member in members] == [3, 1003]
    assert {m.noise["checksum"] for m in (pair, *members)} == {alone.noise["checksum"]}
    opened = [nclib.open_run(member) for member in members]
    assert not torch.equal(*(m.trainer.networks[0].image_map.weight for m in opened))
    scores = torch.stack([m.trainer.score(m.dataset.test) for m in opened])
    expected = metrics_of(scores, opened[0].dataset.test)
    assert {k: v for k, v in pair.metrics.items() if k not in ("val", "last")} == expected
    assert pair.metrics["single"]["rsum"] == sum(m.metrics["test"]["rsum"] for m in members) / 2
    assert pair.cost["seconds"] == pytest.approx(one.cost["seconds"] + two.cost["seconds"])
    assert pair.cost["peak_memory_mb"] == max(m.cost["peak_memory_mb"] for m in members)
    assert (pair.settings["networks"], pair.settings["seed"], "noise_seed" in pair.settings) == (2, 3, False)


def test_the_last_epoch_of_networks_that_were_trained_apart_is_tested_too(tmp_path):
    record = nclib.run("plain", **APART | {"epochs": 4, "lr": 0.1, "networks": 2}, out=tmp_path)
    members = [load_record(f"{tmp_path}/{name}/record.json") for name in record.parts]
    opened = [nclib.open_run(member) for member in members]
    assert any(member.best_epoch < 4 for member in members)
    scores = []
    for member, one in zip(members, opened, strict=True):
        weights = checkpoint.load(f"{member.folder}/checkpoint.safetensors")["networks"][0]
        one.trainer.networks[0].load_state_dict(weights)
        scores.append(one.trainer.score(one.dataset.test))
    last = metrics_of(torch.stack(scores), opened[0].dataset.test)["test"]
    assert record.metrics["last"] == last != record.metrics["test"]


def test_networks_that_were_trained_apart_are_one_row(pair):
    table = nclib.table(f"{pair.folder}/..").set_index("name")
    row = table.loc[pair.name]
    assert row["networks"] == 2
    assert set(table.loc[pair.parts, "networks"]) == {1}
    asked = SMALL | {"seed": 3, "loss": "gce"}
    wanted = requests(nclib.resolve("plain", **asked, networks=n).flat() for n in (1, 2))
    answers = nearest(f"{pair.folder}/..", wanted)
    answers = [(one.content["name"], unlike) for one, unlike in answers]
    assert answers == [(pair.parts[0], []), (pair.name, [])]
    assert pair.name.startswith("plain-bow-planted-m0.4-images-s3-x2-")


def test_networks_that_were_trained_apart_continue_and_are_found_again(pair, tmp_path):
    def stop(values, epoch):
        told.append(epoch)
        if len(told) == 3:
            raise KeyboardInterrupt

    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        nclib.run("plain", **TWICE, out=tmp_path, tracker=stop)
    assert not list(tmp_path.glob("*-x2-*"))
    again = nclib.run("plain", **TWICE, out=tmp_path, tracker=stop)
    assert told == [1, 2, 3, 4]  # the epochs of the second network count on
    whole = nclib.run("plain", **TWICE, out=tmp_path / "new")
    assert compare(again, whole).state == "same"
    done = nclib.run("plain", **TWICE, out=tmp_path, tracker=stop)
    assert (done.cost, len(told)) == (again.cost, 4)


def test_networks_that_were_trained_apart_load_as_one_model_and_can_be_verified(pair, tmp_path):
    model = nclib.load(pair.folder)
    members = [nclib.load(f"{pair.folder}/../{name}") for name in pair.parts]
    found = [each.score(model.images, model.captions) for each in (model, *members)]
    np.testing.assert_allclose(found[0], (found[1] + found[2]) / 2, atol=1e-6)
    made = nclib.Record.load(f"{pair.folder}/record.json")
    assert compare(made, make_again(made, tmp_path)).state == "same"
