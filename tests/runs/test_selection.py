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


def test_warmup_alone_is_tested(worse_every_epoch, tmp_path):
    record = nclib.run("ncr", epochs=0, out=tmp_path, progress=False, **SHORT)
    assert record.best_epoch == 1
