"""Records of runs."""

import json
import math
from pathlib import Path

import pytest
import torch

import nclib
from nclib.runs import machine
from nclib.runs import record as records


def make(name="r", mrate=0.6, rsum=300.0, seed=0, method="l2rm"):
    test = dict.fromkeys(records.RECALLS, rsum / 6) | {"rsum": rsum}
    return records.Record(
        name=name,
        settings={
            "method": method,
            "mrate": mrate,
            "seed": seed,
            "preset": "quick",
            "method_options": {"rho": 0.1},
        },
        data={"name": "planted", "checksum": "0"},
        noise={"protocol": "images"},
        metrics={"val": {"rsum": rsum}, "test": test},
        curves=[{"epoch": 1, "phase": "training", "seconds": 0.1}],
        diagnostics={"auc": math.nan},
        best_epoch=1,
        cost={"seconds": 0.1},
        environment={"device": "CPU"},
        folder="somewhere",
    )


def test_round_trip(tmp_path):
    path = make(method="mine").save(tmp_path / "a" / "record.json")
    back = records.Record.load(path)
    assert back.folder == str(path.parent)
    assert back.diagnostics == {"auc": None}  # JSON has no NaN
    assert {**back.__dict__, "folder": "", "diagnostics": 0} == {
        **make(method="mine").__dict__,
        "folder": "",
        "diagnostics": 0,
    }
    assert "rSum 300.0" in str(back)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"schema": 99})])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="is not a record"):
        records.Record.load(tmp_path / "x.json")


def lacking(path, change):
    """Store a record that somebody changed by hand, without digest as older ones are."""
    make().save(path)
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["environment"].clear(), "environment lacks device"),
        (lambda c: c["metrics"].clear(), "metrics lacks val, test"),
        (lambda c: c["metrics"].update(test={}), "metrics.test lacks i2t_r1, .*, rsum"),
        (lambda c: c["metrics"].update(test=None), "metrics.test must be a mapping, not NoneType"),
        (lambda c: c["metrics"].update(test={"map_avg": 1}), "settings lacks dataset, data_options"),
        (lambda c: c["metrics"].update(test_dsl={}), "metrics.test_dsl lacks rsum"),
        (lambda c: c["settings"].clear(), "settings lacks method, preset"),
        (lambda c: c["settings"].update(method_options=None), "settings.method_options must be a mapping"),
        (lambda c: c.update(cost=[]), "cost must be a mapping, not list"),
        (lambda c: c.update(curves=[1]), "curves must be a list of mappings"),
        (lambda c: c.update(best_epoch=None), "best_epoch=None must be the number of an epoch"),
        (lambda c: c.update(best_epoch=2), "best_epoch=2, but the curves have 1 epochs"),
        (lambda c: c.update(warnings=None), "warnings must be a list of texts"),
        (lambda c: c["cost"].update(seconds="x"), "cost.seconds='x' must be a number or null"),
        (lambda c: c["settings"].update(method=["l2rm"]), r"settings.method=\['l2rm'\] must be of type str"),
        (lambda c: c["settings"].update(seed=True), "settings.seed=True must be of type int"),
        (lambda c: c["settings"].update(mrate=60), "settings.mrate=60 must be between 0 and 1, or null"),
        (
            lambda c: c["metrics"]["test"].update(i2t_r1=150.0, i2t_r5=-50.0),
            "the parts of metrics.test.rsum must be between 0 and 100, found",
        ),
        (lambda c: c.pop("noise"), "missing 1 required positional argument: 'noise'"),
        (
            lambda c: c["metrics"]["test"].update(rsum=300.001),
            "metrics.test.rsum is 300.001, its parts give 300",
        ),
        (lambda c: c["curves"][0].update(val_rsum=299.0), "metrics.val.rsum is 300.0, the curves have 299.0"),
        (lambda c: c.update(schema=0), "schema 0, this version reads 1"),
        (lambda c: c.update(schema=99), "schema 99, this version reads 1"),
    ],
)
def test_a_record_that_lacks_something_is_named_and_left_out(tmp_path, change, said):
    path = lacking(tmp_path / "bad.json", change)
    with pytest.raises(ValueError, match=f"bad.json is not a record: .*{said}"):
        records.Record.load(path)
    make("good").save(tmp_path / "good.json")
    with pytest.warns(UserWarning, match=f"bad.json is not a record: .*{said}.*left out.*Make the run again"):
        assert list(records.collect(tmp_path)["name"]) == ["good"]


def test_a_cut_record_is_left_out_with_a_warning(tmp_path):
    for seed in range(5):
        make(f"r{seed}", seed=seed).save(tmp_path / f"r{seed}.json")
    (tmp_path / "r3.json").write_text((tmp_path / "r3.json").read_text()[:300])
    with pytest.warns(UserWarning, match=r"r3\.json is not a record: .* delete the file") as said:
        assert len(records.collect(tmp_path)) == 4
    assert len(said) == 1
    assert said[0].filename == records.__file__


def test_a_record_may_differ_by_rounding_and_have_no_selected_epoch(tmp_path):
    def change(content):
        content["metrics"]["test"]["rsum"] += 1e-5
        content["best_epoch"], content["curves"][0]["val_rsum"] = 0, 1.0

    assert records.Record.load(lacking(tmp_path / "r.json", change)).best_epoch == 0


def test_what_is_not_a_number_becomes_null_in_tuples_too(tmp_path):
    record = make()
    record.diagnostics["pair"] = (1.0, math.nan, (math.inf,))
    assert records.Record.load(record.save(tmp_path / "r.json")).diagnostics["pair"] == [1.0, None, [None]]


def test_runs_of_other_code_count_and_copies_do_not(tmp_path):
    for name, code in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "1")):
        record = make(name)
        record.environment["code"] = code
        record.save(tmp_path / f"{name}.json")
    with pytest.warns(UserWarning, match=r"c\.json is a run that .*a\.json holds .* and 1 more are copies"):
        assert list(records.collect(tmp_path)["name"]) == ["a", "b"]


def test_hidden_files_and_folders_below_the_folder_are_skipped(tmp_path):
    for seed, place in enumerate((".root/r.json", ".root/.kept/r.json", ".root/a/.r.json", ".root/a/s.json")):
        make(f"r{seed}", seed=seed).save(tmp_path / place)
    assert list(records.collect(tmp_path / ".root")["name"]) == ["r3", "r0"]


@pytest.mark.parametrize(
    ("curves", "said"),
    [
        ([{"phase": "training"}], []),
        ([{"phase": "warm-up"}], ["warm-up only"]),
        ([{"phase": "training", "steps": 0}, {"steps": 4}], ["took no step in 1 of 2 epochs"]),
        ([{"idle": [1], "steps": 4}, {"idle": [0, 1]}], ["network 0, 1 took no step in 2 of 2 epochs"]),
    ],
)
def test_remarks(curves, said):
    record = make()
    record.curves = curves
    assert record.remarks == said


@pytest.mark.parametrize(("epochs", "said"), [(2, ["warm-up only"]), (3, [])])
def test_remarks_on_labels(epochs, said):
    record = make()
    record.metrics["test"] = {"map_avg": 0.5}
    record.settings["method_options"] = {"warmup_epochs": 2}
    record.curves = [{}] * epochs
    assert record.remarks == said


def test_the_records_of_one_task_are_kept(tmp_path):
    make().save(tmp_path / "r.json")
    assert list(records.collect(tmp_path, "pairs")["noise_rate"]) == [0.6]
    assert records.collect(tmp_path, "labels").empty
    with pytest.raises(ValueError, match="task='categories': must be one of '', 'pairs', 'labels'"):
        records.collect(tmp_path, "categories")


def test_settings_of_older_records_are_read_under_their_new_names(tmp_path):
    old = make()
    old.settings |= {"noise": "symmetric", "noise_scope": "pair", "clip": 2.0}
    new = records.Record.load(old.save(tmp_path / "r.json")).settings
    assert (new["protocol"], new["scope"], new["grad_clip"]) == ("symmetric", "pair", 2.0)
    assert not {"noise", "noise_scope", "clip"} & set(new)


@pytest.mark.parametrize("name", ["nothing", "file.json"])
def test_only_a_folder_holds_records(tmp_path, name):
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(ValueError, match=f"folder='.*{name}' is not a folder; give one that holds records"):
        records.collect(tmp_path / name)


def test_collect(tmp_path):
    for seed, rsum in enumerate((300.0, 310.0, 320.0)):
        make(f"r{seed}", seed=seed, rsum=rsum).save(tmp_path / f"r{seed}.json")
    (tmp_path / "bench.json").write_text("{}")
    table = records.collect(tmp_path)
    assert len(table) == 3
    assert table["method_rho"].eq(0.1).all()


def test_options_of_data_and_model_tell_runs_apart(tmp_path):
    for n in (64, 256):
        record = make(f"n{n}")
        record.settings |= {"model": "vse", "data_options": {"n_train": n, "root": f"/data/{n}"}}
        record.settings["model_options"] = {"embed_dim": n}
        record.save(tmp_path / f"n{n}.json")
    table = records.collect(tmp_path).set_index("name").sort_values("data_n_train")
    assert table["data_n_train"].to_dict() == table["model_embed_dim"].to_dict() == {"n64": 64, "n256": 256}
    assert "data_root" not in table
    assert set(table["model"]) == {"vse"}


def test_a_column_that_is_there_keeps_its_meaning(tmp_path):
    record = make()
    record.settings["data_options"] = {"size": "small"}
    record.diagnostics["data_size"] = 7.0
    record.save(tmp_path / "r.json")
    assert records.collect(tmp_path)["data_size"].tolist() == [7.0]


def test_environment_is_plain():
    env = machine.environment(torch.device("cpu"))
    assert json.loads(json.dumps(env)) == env
    assert env["versions"]["torch"]
    assert machine.peak_memory_mb(torch.device("cpu")) > 10


def test_an_option_that_a_method_got_later_was_at_its_default(tmp_path):
    record = nclib.run("plain", dataset="planted", model="bow", epochs=1, out=str(tmp_path), progress=False)
    path = Path(record.folder) / "record.json"
    content = json.loads(path.read_text())
    del content["settings"]["method_options"]["q"], content["sha256"]
    path.write_text(json.dumps(content))
    assert records.Record.load(path).settings == record.settings
    settings = nclib.resolve("plain", dataset="planted", model="bow", epochs=1)
    assert records.find(tmp_path, settings) is not None
    assert (
        records.find(tmp_path, nclib.resolve("plain", dataset="planted", model="bow", epochs=1, q=0.5))
        is None
    )
