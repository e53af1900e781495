"""The loop: selection, precision, what settings and noise decide, and errors before work starts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from registered import REGISTERED
from small import SMALL

import nclib
from nclib import data, methods
from nclib.noise import Mismatch
from nclib.runs import experiment_of, pairs, resolve
from nclib.runs.noisy_pairs import NoisyPairs

TINY = SMALL | {
    "model": "saf",  # has batch norm
    "warmup_epochs": 1,
    "epochs": 2,
    "data_options": {"n_train": 64, "n_val": 20, "n_test": 20},
    "model_options": {"embed_dim": 16, "sim_dim": 8, "word_dim": 8},
}


def run(out, method="l2rm", **values):
    return nclib.run(method, **{**TINY, **values}, out=str(out), progress=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


def test_record_holds_what_a_table_needs(finished):
    stored = json.loads((Path(finished.folder) / "record.json").read_text())
    assert stored["settings"]["method_options"]["rho"] == 0.1
    assert stored["noise"]["true_rate"] == pytest.approx(0.4, abs=0.05)
    assert len(stored["data"]["checksum"]) == 64
    assert [row["phase"] for row in stored["curves"]] == ["warm-up", "training", "training"]
    assert stored["cost"]["parameters"] > 100
    assert (finished.collapsed, "collapsed" in stored["diagnostics"]) == ("", False)
    assert {"rsum", "i2t_map_at_r", "relevant_rsum"} <= set(stored["metrics"]["test"])


def test_selected_epoch_is_the_best_on_validation_and_is_what_is_tested(finished):
    rsums = [row["val_rsum"] for row in finished.curves]
    assert finished.best_epoch == int(np.argmax(rsums)) + 1
    state = torch.get_rng_state()
    opened = nclib.open_run(finished)
    assert torch.equal(torch.get_rng_state(), state)  # looking draws nothing
    trainer, dataset = opened.trainer, opened.dataset
    assert not trainer.networks[0].training
    again = nclib.evaluation.recall(trainer.score(dataset.test), dataset.test.captions_per_image)
    assert again["rsum"] == finished.metrics["test"]["rsum"]


def start_of(method, folder, **values):
    """Return the trainer of a run before its first step."""
    experiment = experiment_of(method)
    return experiment.load(
        experiment.resolve(**{**TINY, **values}), folder / "start", torch.device("cpu")
    ).trainer


METHODS = [
    name for name in methods.METHODS if not issubclass(methods.METHODS[name].factory, methods.ClosedForm)
]
MODELS = list(REGISTERED)


def rank_share(trainer, split):
    """Mean share of the others of 32 images that stand above a caption's own: 0 at best, 0.5 by chance."""
    split = split.part(0, 32)
    S = torch.as_tensor(trainer.scores(split)).mean(0)
    own = S[torch.as_tensor(split.image_of), torch.arange(S.shape[1])]
    return float((own < S).float().mean())


LEARNS = {("plain", model): {"warmup_epochs": 4, "epochs": 0} for model in MODELS}
LEARNS |= {(method, "vse"): {"mrate": 0.2, "warmup_epochs": 2, "epochs": 4} for method in METHODS}
LEARNS["rcl", "vse"]["warmup_epochs"] = 0
LEARNS["crcl", "vse"]["schedules"] = 1
for slow in ("saf", "sgr"):  # so few steps with dropout teach them nothing under some seeds
    options = {**TINY["model_options"], "dropout": 0.0}
    LEARNS["plain", slow] |= {"warmup_epochs": 8, "lr": 2e-3, "model_options": options}
if "teran" in REGISTERED:
    LEARNS["plain", "teran"] |= {"warmup_epochs": 8, "lr": 1e-3}  # transformers learn at smaller rates


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*do not fill a batch")
@pytest.mark.parametrize(("method", "model"), LEARNS)
def test_every_model_and_every_method_learn(method, model, tmp_path):
    given = {"model": model, "mrate": 0.0, "lr": 5e-3} | LEARNS[method, model]
    record = run(tmp_path, method, **given)
    opened, start = nclib.open_run(record), start_of(method, tmp_path, **given)
    # Every network has moved as a whole, and the tested numbers are those of the weights that were kept.
    for network, before in zip(opened.trainer.networks, start.networks, strict=True):
        pairs_of = zip(network.named_parameters(), before.parameters(), strict=True)
        # Some parts of VSRN and HREM move by the models' own losses only.
        later = {"vsrn": ("decoder.",), "hrem": ("relations.",)}.get(model, ())
        moved = [not torch.equal(p, q) for (name, p), q in pairs_of if not name.startswith(later)]
        assert sum(moved) > 0.9 * len(moved)
        assert all(torch.isfinite(p).all() for p in network.parameters())
    test = opened.dataset.test
    found = pairs.metrics_of(opened.trainer.scores(test), test)
    assert found == {name: record.metrics[name] for name in found}
    untrained = rank_share(start, opened.dataset.train)
    assert untrained > 0.4
    assert rank_share(opened.trainer, opened.dataset.train) < 0.85 * untrained


@pytest.mark.slow
@pytest.mark.parametrize("model", REGISTERED)
def test_bf16_is_for_the_forward_pass_only(model, tmp_path):
    few = {"n_train": 16, "n_val": 8, "n_test": 8}
    trainer = start_of("plain", tmp_path, model=model, epochs=0, precision="bf16", data_options=few)
    batch = trainer.batch(torch.arange(9))
    for logits in (False, True):
        assert trainer.similarity(batch, logits=logits).dtype == torch.float32
    (row,) = trainer.fit(progress=False)
    assert np.isfinite([row["loss_triplet"], row["val_rsum"]]).all()
    assert {p.dtype for p in trainer.networks[0].parameters()} == {torch.float32}
    assert all(torch.isfinite(p).all() for p in trainer.networks[0].parameters())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mrat": 0.6}, r"unknown parameter 'mrat'; did you mean 'mrate'\?"),
        ({"rho": 0}, "rho=0: must be a number, above 0"),
        ({"model": "sgrr"}, "model='sgrr': must be one of"),
        (
            {"dataset": "f30", "protocol": "image"},
            "protocol='image': must be .*dataset='f30': must be",
        ),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used here"),
        ({"device": "meta"}, "device='meta' cannot be used here"),
        ({"model": ["vse"]}, r"model=\['vse'\]: must be one of"),
        ({"method": ["plain"]}, r"method=\['plain'\]: must be one of"),
        ({"batch_size": 100_000}, "batch_size=100000 exceeds the 320 training pairs"),
        ({"noise_file": "none.npy"}, r"noise_file='none\.npy': there is no such file"),
        ({"seed": 2**40}, "seed=1099511627776: must be a whole number"),
        ({"epochs": 0, "warmup_epochs": 0}, "nothing to train"),
        ({"model_options": 3}, "model_options=3: must be a mapping"),
        ({"data_options": {"n_trian": 3}}, "data_options: unknown parameter 'n_trian'"),
        ({"dataset": "f30k", "data_options": {}}, r"data_options: root is needed"),
        ({"rhoo": np.float32(1)}, r"unknown parameter 'rhoo'; did you mean 'rho'\?"),
    ],
)
def test_wrong_settings_stop_before_training(wrong, said, tmp_path, monkeypatch):
    monkeypatch.setattr("nclib.runs.pair_trainer.PairTrainer.fit", lambda *_: pytest.fail("training began"))
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        run(tmp_path, **wrong)


def test_a_run_of_warm_up_alone_is_refused_on_labels():
    with pytest.raises(ValueError, match=r"epochs=6: all of them would be warm-up \(warmup_epochs=6\)"):
        resolve("uot_rcl", dataset="planted_category", epochs=6)
    assert resolve("uot_rcl", dataset="planted_category", epochs=7).schedule.epochs == 7


def test_noisy_pairs_load_the_image_that_the_noise_gave():
    split = data.load("planted", n_train=12).train
    noise = Mismatch.draw(split.image_of, 0.5, seed=3, protocol="captions")
    pairs = NoisyPairs(split, noise)
    index = torch.tensor([7, 0, 31])
    batch = pairs.batch(index, torch.device("cpu"))
    assert torch.equal(batch.images, torch.from_numpy(split.images[noise.image_of[index.numpy()]].copy()))
    assert batch.captions.lengths == tuple(split.captions.lengths[index.numpy()])
    truth = pairs.truth()
    assert np.array_equal(truth.matched, noise.image_of == split.image_of)
    every = torch.arange(len(pairs))
    known = truth.relevance(every, every).numpy()
    assert np.allclose(np.diagonal(known)[truth.matched], 1)
    assert np.array_equal(known, split.relevance(noise.image_of, np.arange(len(pairs))))


def test_near_noise_exchanges_images_whose_mean_regions_are_alike(tmp_path):
    given = {"dataset": "planted", "data_options": {"n_train": 40}, "mrate": 0.5, "seed": 4}
    record = nclib.run("linear", **given, protocol="near", out=tmp_path)
    train = data.load("planted", n_train=40).train
    seen = np.stack([train.features([row]).numpy()[0].mean(0) for row in range(40)])
    drawn = Mismatch.draw(train.image_of, 0.5, seed=4, protocol="near", features=seen)
    assert (record.noise["checksum"], record.noise["true_rate"]) == (drawn.checksum, 0.5)
    assert "-m0.5-near-s4" in record.name


def test_quick_runs_take_one_thread_and_restore_the_number(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("nclib.runs.Experiment.finish", lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    run(tmp_path, threads=None)
    run(tmp_path, threads=2)
    assert seen == [1, 2]
    assert torch.get_num_threads() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*do not fill a batch")
@pytest.mark.parametrize("mrate", [0.0, 1.0])
def test_one_sided_truth_runs_and_prints(mrate, tmp_path, capsys):
    values = {**TINY, "model": "vse", "epochs": 1, "mrate": mrate, "protocol": "pairs"}
    record = nclib.run("l2rm", **values, out=str(tmp_path))
    assert record.diagnostics["auc"] is None
    assert "epoch  2/2 training" in capsys.readouterr().out


@pytest.mark.parametrize("value", [np.float32(0.6), np.float16(0.6), np.array(0.6, "f4"), torch.tensor(0.6)])
def test_a_float_of_fewer_digits_names_the_same_run(value):
    settings = resolve("l2rm", **{**TINY, "mrate": value}, rho=value)
    assert settings == resolve("l2rm", **{**TINY, "mrate": 0.6}, rho=0.6)
    assert (settings.run.mrate, settings.method_options.rho) == (0.6, 0.6)


def test_noise_file_decides_rate_name_and_identity(tmp_path):
    split = data.load("planted", **TINY["data_options"]).train
    path = tmp_path / "noise.npy"
    names = []
    for seed in (1, 2):
        noise = Mismatch.draw(split.image_of, 0.2, seed=seed, protocol="captions")
        noise.save(path)
        record = run(tmp_path / "runs", "plain", model="vse", epochs=1, noise_file=path)
        assert record.noise["checksum"] == noise.checksum
        assert record.settings["mrate"] is None
        assert record.settings["protocol"] == "file"
        names.append(record.name)
    assert len(set(names)) == 2  # other content under the same path is another run


@pytest.mark.slow
def test_web_pairs_are_not_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "nclib.runs.noisy_pairs.NoisyPairs.truth", lambda _: pytest.fail("asked for an unknown truth")
    )
    trainer = start_of("l2rm", tmp_path, epochs=1)
    trainer.pairs.truth_is_known = False
    assert "auc" not in trainer.fit(progress=False)[-1]
    web = resolve("l2rm", dataset="cc152k", preset="paper", data_options={"root": "x"})
    assert (web.run.mrate, web.method_options.mask) == (0.0, False)
