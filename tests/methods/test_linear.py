"""The closed form on planted pairs: what it fits, what it keeps, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nclib
from nclib.common.cca import fit_cca, tf_idf, word_counts, word_weights
from nclib.noise import Mismatch, auc
from nclib.runs import epoch_arrays

DATA = {"n_train": 600, "n_val": 30, "n_test": 100}


def run(out: Path, **values: Any) -> nclib.Record:
    given = {"dataset": "planted", "data_options": DATA, "preset": "standard", **values}
    return nclib.run("linear", **given, out=out, progress=False)


def test_similarities_are_cosines_of_the_fitted_maps_of_mean_regions_and_tf_idf(tmp_path: Path) -> None:
    opened = nclib.open_run(run(tmp_path, mrate=0.4, filter=False))
    train, test, vocabulary = opened.dataset.train, opened.dataset.test, opened.dataset.vocabulary
    counts = [word_counts(s.captions.tokens, s.captions.offsets, vocabulary.size) for s in (train, test)]
    weights = word_weights(counts[0]) * vocabulary.is_word
    images = [s.images[:].astype(np.float64).mean(1) for s in (train, test)]
    cca = fit_cca(images[0], tf_idf(counts[0], weights), opened.noise.image_of)
    expected = cca.images(images[1]) @ cca.texts(tf_idf(counts[1], weights)).T
    np.testing.assert_allclose(opened.trainer.score(test).numpy(), expected, atol=2e-7)
    assert opened.trainer.n_parameters == 0


def test_the_filter_finds_wrong_pairs_and_the_refit_gains(tmp_path: Path) -> None:
    plain, filtered = (run(tmp_path, mrate=0.6, filter=on) for on in (False, True))
    assert filtered.metrics["test"]["rsum"] > plain.metrics["test"]["rsum"] + 5
    assert plain.diagnostics == {}
    assert filtered.diagnostics["auc"] > 0.9
    assert abs(filtered.diagnostics["share"] - 0.6) < 0.08
    opened = nclib.open_run(filtered)
    kept = epoch_arrays(filtered.folder)[1]
    assert auc(kept["score"], opened.noise.matched) > 0.9
    assert list(nclib.load(filtered).pairs()["p_clean"]) == list(kept["p_clean"])


def test_clean_pairs_lose_nothing(tmp_path: Path) -> None:
    plain, filtered = (run(tmp_path, mrate=0.0, filter=on) for on in (False, True))
    assert filtered.diagnostics["share"] < 0.03
    assert abs(filtered.metrics["test"]["rsum"] - plain.metrics["test"]["rsum"]) <= 2


def test_a_pair_is_judged_without_its_siblings(tmp_path: Path) -> None:
    """Which captions belong to one image is not known: renumbered pairs keep their probabilities."""
    from nclib.methods.base import AllPairs
    from nclib.methods.parts.closed import linear_division, weighted_words

    train = nclib.data.load("planted", n_train=120).train
    of = Mismatch.draw(train.image_of, 0.4, seed=0, protocol="captions").image_of
    images = train.images[:].astype(np.float64).mean(1)
    order = np.random.default_rng(1).permutation(len(of))
    found = []
    for rows in (np.arange(len(of)), order):
        pairs = AllPairs(images, train.captions.take(rows), of[rows])
        found.append(linear_division(pairs, weighted_words(pairs, 4096)[0], rounds=1).scores)
    np.testing.assert_allclose(found[1], found[0][order], atol=1e-9)


def test_the_result_does_not_depend_on_threads_or_a_draw(tmp_path: Path) -> None:
    first, again = (
        run(tmp_path / str(n), mrate=0.4, seed=seed, noise_seed=0, threads=n) for n, seed in ((1, 0), (2, 7))
    )
    scores = [nclib.open_run(r).trainer.score(nclib.open_run(r).dataset.test) for r in (first, again)]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-6, rtol=0)
    assert first.metrics["test"]["rsum"] == again.metrics["test"]["rsum"]


def test_a_loaded_model_reads_captions_and_finds_pictures(tmp_path: Path) -> None:
    record = run(tmp_path / "runs", mrate=0.0)
    loaded = nclib.load(record.folder)
    opened = nclib.open_run(record)
    test = opened.dataset.test
    score = loaded.score(test.images[:], [test.captions.text(i) for i in range(5)])
    np.testing.assert_allclose(score, opened.trainer.score(test)[:, :5].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 3}, "epochs=3: linear is fitted at once; leave it out"),
        ({"lr": 0.1, "networks": 2}, "lr=0.1: linear .*networks=2: linear"),
        ({"model": "vse"}, "model='vse': linear sees what 'bow' sees"),
        ({"model_options": {"embed_dim": 8}}, "model_options=.*: linear is fitted at once"),
        ({"ridge": 0.0}, "ridge=0.0: must be a number, above 0"),
    ],
)
def test_what_a_closed_form_does_not_use_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nclib.resolve("linear", dataset="planted", **wrong)


def test_all_presets_resolve_to_one_fit() -> None:
    for preset in ("quick", "standard", "paper"):
        found = nclib.resolve("linear", preset=preset)
        assert (found.run.model, found.model_options, found.schedule.epochs) == ("bow", {}, 1)
        assert found.schedule.warmup_epochs == 0
