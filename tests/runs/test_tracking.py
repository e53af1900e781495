"""Reports of epochs to a function and to an object."""

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


@pytest.mark.parametrize("tracker", [7, "wandb"])
def test_what_cannot_be_told_is_refused(tmp_path, tracker):
    with pytest.raises(TypeError, match=f"tracker={tracker!r}: must be a function"):
        run(tmp_path, tracker)
    assert not list(tmp_path.iterdir())
