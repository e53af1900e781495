"""Which epochs validation may select, and the last epoch beside the selected one."""

import pytest

import nclib
from nclib.runs.pair_trainer import PairTrainer

SHORT = {"dataset": "planted", "model": "bow", "mrate": 0.4, "warmup_epochs": 2, "seed": 1}


@pytest.fixture
def worse_every_epoch(monkeypatch):
    """Validation results that fall, so that the first epoch that takes part is selected."""
    validate = PairTrainer._validate

    def falling(self):
        return validate(self) | {"rsum": 500.0 - self.epoch}

    monkeypatch.setattr(PairTrainer, "_validate", falling)


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("l2rm", 1), ("plain", 1), ("mscn", 2), ("ncr", 3), ("bicro", 3), ("repair", 3), ("decl", 3),
        ("gsc", 3), ("gsc_plus", 3), ("cream", 3),
        ("sps", 3), ("pcsr", 4),
    ],
)  # fmt: skip
def test_first_epoch_that_may_be_tested(worse_every_epoch, tmp_path, method, first):
    record = nclib.run(method, epochs=2, out=tmp_path, progress=False, **SHORT)
    assert record.best_epoch == first


def test_warmup_alone_is_tested(worse_every_epoch, tmp_path):
    record = nclib.run("ncr", epochs=0, out=tmp_path, progress=False, **SHORT)
    assert record.best_epoch == 1


def test_last_epoch_is_recorded(worse_every_epoch, tmp_path):
    record = nclib.run("plain", loss="infonce", epochs=1, out=tmp_path / "a", progress=False, **SHORT)
    assert record.best_epoch == 1 < len(record.curves) == 3
    assert record.metrics["last"]["rsum"] != record.metrics["test"]["rsum"]
    # The same weights are the selected ones of a run whose last epoch is the best.
    PairTrainer._validate = lambda self: {"rsum": float(self.epoch)}  # monkeypatch restores it
    other = nclib.run("plain", loss="infonce", epochs=1, out=tmp_path / "b", progress=False, **SHORT)
    assert other.best_epoch == 3
    assert other.metrics["test"] == other.metrics["last"] == record.metrics["last"]
