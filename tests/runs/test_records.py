"""Records of runs."""

import json
import math

import pytest
from small import made as make

from nclib.runs import append, table, tables
from nclib.runs import record as records


def test_round_trip(tmp_path):
    record = make(diagnostics={"auc": math.nan, "worst": math.inf})
    back = records.Record.load(record.save(tmp_path / "a" / "record.json"))
    assert back.folder == str(tmp_path / "a")
    assert back == make(diagnostics={"auc": None, "worst": None})  # JSON has no NaN
    assert "rSum 300.0" in str(back)


def refused(folder, content, said):
    """A file of this content is named with a reason, alone, and is left out beside a sound record."""
    (folder / "bad.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"bad\.json .*{said}"):
        records.Record.load(folder / "bad.json")
    make("good", seed=3).save(folder / "good.json")
    with pytest.warns(UserWarning, match=rf"bad\.json .*{said}.*left out"):
        assert list(table(folder)["name"]) == ["good"]


WRONG = {"method": None, "model": 5, "data_options": "x"}
FORM = "is not a record that this version can read; .* wrong type: {}(;|$)"  # digests made again hide it not


@pytest.mark.parametrize(
    ("signed", "change", "said"),
    [
        (False, lambda c: c.pop("sha256"), "has no digest: .* nclib.run with its settings makes it again"),
        (False, lambda c: c["metrics"]["test"].update(rsum=300.001), "was changed"),
        (False, lambda c: c["settings"].update(seed=1), "was changed"),
        (False, lambda c: c.update(sha256="0" * 16), "was changed"),
        (False, lambda c: c.update(schema=99), "schema 99, this version reads 1"),
        (True, lambda c: c.pop("metrics"), FORM.format("metrics")),
        (True, lambda c: c.update(best_epoch="1", speed=2), FORM.format("best_epoch, speed")),
        (
            True,
            lambda c: c["settings"].update(WRONG),
            FORM.format("settings.method, settings.model, settings.data_options"),
        ),
        (True, lambda c: c["metrics"].pop("test"), FORM.format("metrics.test")),
        (True, lambda c: c["environment"].update(numerics="1"), FORM.format("environment.numerics")),
        (True, lambda c: c["curves"].append(1), FORM.format("curves.2")),
    ],
)
def test_a_record_that_was_changed_or_lacks_a_part_is_named_and_left_out(tmp_path, signed, change, said):
    content = json.loads(make().save(tmp_path / "bad.json").read_text())
    change(content)
    if signed:
        del content["sha256"]
        content["sha256"] = records.own_sum(content)
    refused(tmp_path, content, said)


def _labels(c, **changed):
    c["metrics"]["test"] = {"map_i2t": 0.4, "map_t2i": 0.6, "map_avg": 0.5} | changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["metrics"]["test"].update(rsum=1e9), r"metrics\.test\.rsum is .*outside \[0, 600\]"),
        (lambda c: c["metrics"]["test"].update(rsum="300"), "metrics.test.rsum is '300', not a number"),
        (lambda c: c["metrics"]["test"].update(rsum=301.0), "metrics.test.rsum .* sum of the six recalls"),
        (lambda c: c["metrics"]["test"].update(rsum=None), "metrics.test.rsum is None, not a number"),
        (lambda c: c["metrics"]["test"].update(rsum=True), "metrics.test.rsum is True, not a number"),
        (lambda c: c["metrics"]["test"].update(i2t_r1=-5), r"test\.i2t_r1 is -5, outside \[0, 100\]"),
        (lambda c: c["metrics"]["test"].update(t2i_r1=60), r"test\.t2i_r5 is 50\.0, below t2i_r1, 60"),
        (lambda c: c["metrics"]["test"].update(i2t_r10=49), r"test\.i2t_r10 is 49, below i2t_r5, 50\.0"),
        (lambda c: c["metrics"]["test"].pop("t2i_r5"), r"metrics\.test\.t2i_r5 is missing"),
        (lambda c: c["metrics"]["val"].update(rsum=601), r"metrics\.val\.rsum is 601, outside"),
        (lambda c: c["metrics"].update(detection={"auc": "0.9"}), "detection.auc is '0.9', not a number"),
        (lambda c: c["cost"].update(seconds="1"), "cost.seconds is '1', not a number"),
        (lambda c: c.update(best_epoch=2), "best_epoch is 2, outside the 1 epochs of the run"),
        (lambda c: c.update(curves=[], best_epoch=99) or c["settings"].update(epochs=5), "best_epoch is 99"),
        (lambda c: c.update(best_epoch=-1), "best_epoch is -1"),
        (lambda c: c.update(best_epoch=0) or c["settings"].update(epochs=5), "best_epoch is 0, but epochs"),
        (lambda c: _labels(c, map_t2i=1.6), r"metrics\.test\.map_t2i is 1\.6, outside \[0, 1\]"),
        (lambda c: _labels(c, map_avg=0.6), "map_avg is 0.6, not the mean"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused_wherever_it_is_read(tmp_path, change, said):
    """A digest that was made again does not hide it; a record in memory is not appended either."""
    content = make().content()
    _labels(content)
    records.check_form(content, "labels")
    content = make().content()
    records.check_form(content, "sound")
    change(content)
    said = f"makes no sense as the record of a run: .*{said}"
    with pytest.raises(ValueError, match=f"^r {said}"):
        append(tmp_path / "t.csv", [records.Record(**content)])
    assert not (tmp_path / "t.csv").exists()
    refused(tmp_path, content | {"sha256": records.own_sum(content)}, said)


def test_a_row_that_makes_no_sense_is_refused_although_its_digests_are_right(tmp_path):
    path, record = tmp_path / "t.csv", make()
    record.metrics["test"]["rsum"] = 599.0
    tables.write(path, [tables.as_stored(path, record.content())])
    with pytest.raises(ValueError, match=r"t\.csv/r makes no sense .*metrics\.test\.rsum is 599\.0"):
        table(path)


def test_a_file_beside_a_record_supplies_places_and_nothing_else(tmp_path):
    record = make()
    record.settings |= {"noise_file": "noise.npy", "data_options": {"size": "small"}}
    record.save(tmp_path / "record.json")
    given = {"seed": 9, "mrate": 0.0, "method_options": {"a": 0.9}, "noise_file": "/data/noise.npy"}
    given["data_options"] = {"root": "/data", "size": "large"}
    (tmp_path / "places.json").write_text(json.dumps(given))
    found = records.Record.load(tmp_path / "record.json").settings
    assert found["data_options"] == {"size": "small", "root": "/data"}
    assert found["noise_file"] == "/data/noise.npy"
    assert (found["seed"], found["mrate"]) == (0, 0.6)
    assert found["method_options"] == {"a": 0.1}


def test_copies_count_once_and_runs_of_other_code_of_the_user_count(tmp_path):
    for name, code in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "1")):
        record = make(name)
        record.environment["own_code"] = code
        record.save(tmp_path / f"{name}.json")
    with pytest.warns(UserWarning, match=r"c\.json is a run that .*a\.json holds .* and 1 more are copies"):
        assert list(table(tmp_path)["name"]) == ["a", "b"]


def test_hidden_files_and_folders_below_the_folder_are_skipped(tmp_path):
    for seed, place in enumerate((".root/r.json", ".root/.kept/r.json", ".root/a/.r.json", ".root/a/s.json")):
        make(f"r{seed}", seed=seed).save(tmp_path / place)
    assert list(table(tmp_path / ".root")["name"]) == ["r3", "r0"]


LABELS = {"metrics": {"test": {"map_avg": 0.5}}, "settings": {"method_options": {"warmup_epochs": 2}}}


@pytest.mark.parametrize(
    ("curves", "parts", "said"),
    [
        ([{"phase": "training"}], {}, []),
        ([{"phase": "warm-up"}], {}, ["warm-up only"]),
        ([{"phase": "training", "steps": 0}, {"steps": 4}], {}, ["took no step in 1 of 2 epochs"]),
        ([{"idle": [1], "steps": 4}, {"idle": [0, 1]}], {}, ["network 0, 1 took no step in 2 of 2 epochs"]),
        ([{}] * 2, LABELS, ["warm-up only"]),
        ([{}] * 3, LABELS, []),
    ],
)
def test_remarks(curves, parts, said):
    record = make(curves=curves, **parts)
    record.metrics["test"] = parts.get("metrics", record.metrics)["test"]
    assert record.remarks == said


def test_the_records_of_one_task_are_kept(tmp_path):
    make().save(tmp_path / "r.json")
    assert list(table(tmp_path, "pairs")["noise_rate"]) == [0.6]
    assert table(tmp_path, "labels").empty
    with pytest.raises(ValueError, match="task='categories': must be one of '', 'pairs', 'labels'"):
        table(tmp_path, "categories")


def test_columns(tmp_path):
    record = make()
    record.settings |= {"model": "vse", "data_options": {"n_train": 64, "root": "/data"}}
    record.settings["model_options"] = {"embed_dim": 8}
    record.metrics["single"] = {"rsum": 1.0}
    record.save(tmp_path / "r.json")
    (tmp_path / "bench.json").write_text("{}")
    (row,) = table(tmp_path).to_dict("records")
    assert (row["option.a"], row["model.embed_dim"], row["data.n_train"]) == (0.1, 8, 64)
    assert (row["model"], row["mrate"], row["noise_rate"]) == ("vse", 0.6, 0.6)
    assert (row["rsum"], row["val.rsum"], row["single.rsum"]) == (300.0, 300.0, 1.0)
    assert (row["device"], row["data.checksum"], row["noise.protocol"]) == ("CPU", "d", "images")
    assert row["path"] == str(tmp_path / "r.json")
    assert "data.root" not in row
