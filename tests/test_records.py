"""Records and the printed numbers carried with the package."""

import json
import math

import pytest
import torch

from nclib import records


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
    path = make().save(tmp_path / "a" / "record.json")
    back = records.Record.load(path)
    assert back.folder == str(path.parent)
    assert back.diagnostics == {"auc": None}  # JSON has no NaN
    assert {**back.__dict__, "folder": "", "diagnostics": 0} == {
        **make().__dict__,
        "folder": "",
        "diagnostics": 0,
    }
    assert "rSum 300.0" in str(back)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"schema": 99})])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="is not a record"):
        records.Record.load(tmp_path / "x.json")


def test_collect_and_spread(tmp_path):
    for seed, rsum in enumerate((300.0, 310.0, 320.0)):
        make(f"r{seed}", seed=seed, rsum=rsum).save(tmp_path / f"r{seed}.json")
    (tmp_path / "bench.json").write_text("{}")
    table = records.collect(tmp_path)
    assert len(table) == 3
    assert table["method_rho"].eq(0.1).all()
    row = records.mean_and_spread(table, ["method", "mrate"]).iloc[0]
    assert (row["mean"], row["std"], row["count"]) == (310.0, 10.0, 3)


def test_printed_numbers():
    table = records.printed("retrieval", paper="L2RM", table="6", method="L2RM-SGR", dataset="Flickr30K")
    assert set(table["noise_rate"]) >= {"0.2", "0.4", "0.6", "0.8"}
    for name in records.PRINTED:
        assert len(records.printed(name)) > 10
    for (dataset, rate), part in table.groupby(["dataset", "noise_rate"]):
        values = part.set_index("metric")["value"].astype(float)
        assert values[list(records.RECALLS)].sum() == pytest.approx(values["rsum"], abs=0.11), (dataset, rate)


def test_printed_refuses_unknown_names():
    with pytest.raises(ValueError, match="unknown table"):
        records.printed("tables")
    with pytest.raises(ValueError, match="has no column 'rate'"):
        records.printed("retrieval", rate="0.2")


def test_environment_is_plain():
    env = records.environment(torch.device("cpu"))
    assert json.loads(json.dumps(env)) == env
    assert env["versions"]["torch"]
    assert records.peak_memory_mb(torch.device("cpu")) > 10
