"""Exact resume of every method: stopped after each epoch and continued, a run equals one never stopped."""

import pytest
import tiny
import torch

from nclib.methods import METHODS
from nclib.methods.mscn import MSCN
from nclib.testing import check_method

COMMON = {
    **tiny.TINY,
    "model": "saf",  # has batch norm and dropout: statistics and draws must survive, too
    "data_options": {"n_train": 32, "n_val": 12, "n_test": 12},
    "threads": 1,
}
# Settings that fill a method's own state; several rows try several states.
OWN = {
    "crank": [{"model": "vse", "warmup_epochs": 2}],
    "crank_plus": [{"model": "vse", "warmup_epochs": 2}],
    "crcl": [{"epochs": 5, "warmup_epochs": 0, "lr": 5e-3}],  # three schedules, each with a new network
    "in2r": [{"mrate": 0.5, "lr": 5e-3, "queue": 64}],
    "mscn": [{"meta_lr": 1e-3}],
    "pcsr": [{"classes": 12}],
    "plain": [{}, {"optimizer": "amsgrad"}, {"ema": 0.9, "epochs": 3}],
    "rcl": [{"warmup_epochs": 0}],
    "repair": [{"mrate": 0.5, "epochs": 3, "eta": 0.6, "K": 5, "bank_size": 64, "bank_precision": "bf16"}],
}
_posterior = MSCN.posterior
CASES = [(method, own) for method in tiny.TRAINED for own in OWN.get(method, [{}])]


def sixty_clean(self, loop, network, values):
    """Division that calls the first 60 pairs clean: so few pairs leave MSCN's mixture without one."""
    found = _posterior(self, loop, network, values)
    p_clean = (torch.arange(len(found.p_clean)) < 60).double()
    return found._replace(p_clean=p_clean, is_clean=p_clean > 0.5)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*do not fill a batch", "ignore:crank counted 100%")
@pytest.mark.parametrize(("method", "own"), CASES, ids=[method for method, _ in CASES])
def test_stopped_after_every_epoch_equals_never_stopped(method, own, monkeypatch):
    monkeypatch.setattr(MSCN, "posterior", sixty_clean)
    check_method(METHODS[method].factory, **COMMON | own)
