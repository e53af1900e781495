"""Reports of epochs to a function, an object, and stand-ins for the tools."""

import sys
import types

import pytest

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


def test_a_function_is_told_every_epoch_once(tmp_path):
    told = []
    record = run(tmp_path, lambda values, step: told.append((step, values)))
    assert [step for step, _ in told] == [1, 2]
    assert told[1][1]["val_rsum"] == record.curves[1]["val_rsum"]
    assert all(isinstance(value, float) for _, values in told for value in values.values())
    run(tmp_path, lambda values, step: told.append((step, values)))  # read from its record
    assert len(told) == 2


def test_a_tracker_changes_neither_the_name_nor_the_numbers(tmp_path):
    one, two = run(tmp_path / "a", None), run(tmp_path / "b", lambda values, step: None)
    assert one.name == two.name
    assert one.metrics == two.metrics


def test_an_object_with_log(tmp_path):
    class Tool:
        steps = []  # noqa: RUF012

        def log(self, values, step):
            self.steps.append(step)

    run(tmp_path, Tool())
    assert Tool.steps == [1, 2]


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_tools_are_called_by_their_own_names(tmp_path, monkeypatch, name):
    calls, tool = [], types.ModuleType(name)
    tool.init = lambda project, name: calls.append(("start", name))
    tool.set_experiment = lambda project: None
    tool.start_run = lambda run_name: calls.append(("start", run_name))
    tool.log = tool.log_metrics = lambda values, step: calls.append(("log", step))
    monkeypatch.setitem(sys.modules, name, tool)
    record = run(tmp_path, name)
    assert calls == [("start", record.name), ("log", 1), ("log", 2)]


@pytest.mark.parametrize(
    ("tracker", "error", "message"),
    [
        ("wandbb", ValueError, "did you mean|must be one of mlflow"),
        (7, TypeError, "must be a function, an object with log"),
        ("trackio", ImportError, "needs the package trackio"),
    ],
)
def test_wrong_trackers(tmp_path, monkeypatch, tracker, error, message):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(error, match=message):
        run(tmp_path, tracker)
