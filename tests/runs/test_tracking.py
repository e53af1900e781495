"""Reports of epochs to a function and to an object."""

import nclib

SMALL = {
    "dataset": "planted",
    "model": "bow",
    "mrate": 0.2,
    "epochs": 1,
    "warmup_epochs": 1,
    "progress": False,
}


def run(out, tracker, **more):
    return nclib.run("plain", **{**SMALL, **more}, data_options={"n_train": 40}, out=out, tracker=tracker)


def test_a_tracker_changes_neither_the_name_nor_the_numbers(tmp_path):
    one, two = run(tmp_path / "a", None), run(tmp_path / "b", lambda values, step: None)
    assert one.name == two.name
    assert one.metrics == two.metrics
