"""Exact resume of every method: stopped after each epoch and continued, a run equals one never stopped."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import nclib
from nclib.methods.mscn import MSCN
from nclib.runs import checkpoint, cpu_threads, epoch_arrays, experiment_of, resolve

COMMON = {
    "dataset": "planted",
    "model": "saf",  # has batch norm and dropout: statistics and draws must survive, too
    "mrate": 0.4,
    "batch_size": 16,
    "warmup_epochs": 1,
    "epochs": 2,
    "data_options": {"n_train": 32, "n_val": 12, "n_test": 12},
    "model_options": {"embed_dim": 16, "sim_dim": 8, "word_dim": 8},
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


def fit_until(settings, epoch):
    """Train until ``epoch`` is on disk, then stop as Ctrl-C would; return what was started."""
    experiment = experiment_of(settings.method)
    dataset = experiment.read_data(settings)
    request = experiment.request(settings, dataset)
    folder = experiment.folder(settings, request)
    trainer = experiment.load(settings, folder, torch.device("cpu")).trainer
    save = trainer._save

    def save_and_stop():
        save()
        if len(trainer.history) == epoch:
            raise KeyboardInterrupt

    trainer._save = save_and_stop
    with cpu_threads(1), pytest.raises(KeyboardInterrupt):  # as many as a run uses: sums depend on it
        trainer.fit(progress=False)


def numbers(record):
    """Results, curves and weights of a run, as text."""
    curves = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in record.curves]
    saved = checkpoint.load(Path(record.folder) / "checkpoint.safetensors")
    tensors = {f"{i} {k}": v for i, network in enumerate(saved["networks"]) for k, v in network.items()}
    results = [record.metrics, record.diagnostics, record.best_epoch, curves]
    return json.dumps([results, checkpoint.digest(tensors)], sort_keys=True)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*do not fill a batch", "ignore:crank counted 100%")
@pytest.mark.parametrize(("method", "own"), CASES, ids=[method for method, _ in CASES])
def test_stopped_after_every_epoch_equals_never_stopped(method, own, tmp_path, monkeypatch):
    monkeypatch.setattr(MSCN, "posterior", sixty_clean)
    given = {**COMMON, **own}
    whole = nclib.run(method, **given, out=str(tmp_path / "whole"), progress=False)
    settings = resolve(method, **given, out=str(tmp_path / "parts"))
    for epoch in range(1, len(whole.curves)):
        fit_until(settings, epoch)
    resumed = nclib.run(method, **given, out=str(tmp_path / "parts"), progress=False)
    assert numbers(resumed) == numbers(whole)
    kept, again = epoch_arrays(whole.folder), epoch_arrays(resumed.folder)
    assert kept.keys() == again.keys()
    for e in kept:
        assert all(np.array_equal(kept[e][k], again[e][k], equal_nan=True) for k in kept[e])
    if method == "repair":
        assert whole.diagnostics["replaced"] > 0
