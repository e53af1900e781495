"""Plain training with averaged weights, against a plain loop over the steps."""

import torch
from ncbook.variant import variant
from tiny import run

import nclib
from nclib.runs.pair_trainer import PairTrainer


def test_an_average_of_the_weights_is_validated_and_tested(tmp_path, monkeypatch):
    minimise, steps = PairTrainer._minimise, []

    def noted(self, terms):
        minimise(self, terms)
        steps.append([p.detach().double() for p in self.networks[0].parameters()])

    monkeypatch.setattr(PairTrainer, "_minimise", noted)
    whole = {"loss": "gce", "mrate": 0.0, "lr": 0.02}
    usual = run("plain", tmp_path, **whole)
    n = usual.curves[0]["steps"]
    average = steps[n - 1]  # after warm-up
    for weights in steps[n:]:
        average = [0.8 * mean + 0.2 * now for mean, now in zip(average, weights, strict=True)]
    record = run("plain", tmp_path, **whole, ema=0.8)
    assert [row["loss_gce"] for row in record.curves] == [row["loss_gce"] for row in usual.curves]
    assert record.best_epoch == len(record.curves)
    found = nclib.open_run(record).trainer.networks[0].parameters()
    for mean, weight in zip(average, found, strict=True):
        torch.testing.assert_close(weight.detach().double(), mean, rtol=1e-4, atol=1e-6)
    assert "ema=0.8" in variant(record.settings)
    assert record.name != usual.name


def test_with_the_linear_filter_only_kept_pairs_train_in_warm_up_too(tmp_path, monkeypatch):
    similarity, seen = PairTrainer.similarity, []

    def noted(self, batch, *args, **values):
        if torch.is_grad_enabled():
            seen.append(batch.index)
        return similarity(self, batch, *args, **values)

    monkeypatch.setattr(PairTrainer, "similarity", noted)
    whole = {
        "loss": "gce",
        "mrate": 0.5,
        "batch_size": 32,
        "data_options": {"n_train": 192, "n_val": 16, "n_test": 16},
    }
    record = run("plain", tmp_path, **whole, filter="linear")
    matched = nclib.open_run(record).noise.matched
    trained = torch.cat(seen).unique()
    assert record.diagnostics["auc"] > 0.9
    assert record.diagnostics["called_matched"] == len(trained) < 0.7 * len(matched)
    assert matched[trained].mean() > 0.85
    assert record.curves[1]["steps"] < record.curves[0]["steps"]
    clean = run("plain", tmp_path, **{**whole, "mrate": 0.0}, filter="linear")
    assert clean.diagnostics["share"] < 0.05
