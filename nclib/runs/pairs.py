"""Runs on mismatched pairs: any method on any model, any data, any noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib import models
from nclib.common.options import Rule, problems, refuse, rules
from nclib.data import Dataset, Split
from nclib.data.registry import datasets
from nclib.evaluation import dual_softmax, error_correlation, map_at_r, recall, relevant_recall
from nclib.methods.base import METHODS, ClosedForm
from nclib.models import Matcher
from nclib.models.registry import MODELS
from nclib.noise import Mismatch, calibration, detection
from nclib.runs.collapse import collapse
from nclib.runs.experiment import Experiment, LoadedRun, Work, last_diagnostics
from nclib.runs.loop import Place, epoch_arrays
from nclib.runs.machine import environment
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.options import LARGEST_SEED, PairOptions, PairSchedule, Settings
from nclib.runs.pair_trainer import PairTrainer
from nclib.runs.presets import pair_preset
from nclib.runs.record import Record

SIZES = ("feature_dim", "vocab_size", "n_regions")  # options of models that the data decide
ONCE = {"warmup_epochs": 0, "epochs": 1}  # schedule of a closed form
NEXT = 1000  # between the seeds of networks that are trained apart
FOLD = 1000  # images of a block of the test set that is evaluated apart

PairSettings = Settings[PairOptions, PairSchedule]
LoadedPairs = LoadedRun[PairTrainer, Dataset, Mismatch]


class PairExperiment(Experiment[PairTrainer, Dataset, Mismatch]):
    """Runs of a method in ``nclib.methods``."""

    options = PairOptions
    schedule = PairSchedule
    methods = METHODS
    catalogues = {"model": MODELS, "dataset": datasets.of["pairs"]}  # noqa: RUF012
    mappings = ("model_options", "data_options")
    synonyms = {"noise_rate": "mrate"}  # noqa: RUF012
    file_noise = {"mrate": None, "protocol": "file"}  # noqa: RUF012
    items, rate_letter = "pairs", "m"

    def preset(self, name: str, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        model = PairOptions.model if self.closed is None else self.closed.model
        usual = pair_preset(name, dataset, self.method, {"model": model, **given})
        return usual if self.closed is None else {**usual, **ONCE, "model": model, "model_options": {}}

    def check(self, values: Mapping[str, Any], extra: Mapping[str, Rule] | None = None) -> dict[str, Any]:
        given = super().check(values, extra)
        if self.closed is not None:
            unused = [k for k in given if k in rules(PairSchedule) or k in ("model_options", "networks")]
            faults = [f"{k}={given[k]!r}: {self.method} is fitted at once; leave it out" for k in unused]
            if given.get("model", self.closed.model) != self.closed.model:
                faults.append(f"model={given['model']!r}: {self.method} sees what {self.closed.model!r} sees")
            refuse(faults)
        return given

    @property
    def closed(self) -> type[ClosedForm] | None:
        """The class of the method where it is a closed form."""
        cls = self.methods[self.method].factory
        return cls if issubclass(cls, ClosedForm) else None

    def check_settings(self, settings: PairSettings) -> None:
        """Check the options of data and model, and the number of epochs."""
        super().check_settings(settings)
        model, given = settings.run.model, settings.model_options or {}
        allowed = {k: v for k, v in rules(models.options(model)).items() if k not in SIZES}
        refuse(problems(given, allowed), "model_options")
        if settings.schedule.epochs + settings.schedule.warmup_epochs == 0 and not given.get("clip_folder"):
            raise ValueError(
                "epochs=0 and warmup_epochs=0: nothing to train; only a whole CLIP needs nothing"
            )
        run = settings.run
        if run.seed > LARGEST_SEED - NEXT * (run.networks - 1):
            raise ValueError(
                f"networks={run.networks} with seed={run.seed}: seeds of the networks are {NEXT} apart, and "
                f"must be at most {LARGEST_SEED}; give a smaller seed"
            )

    def apart(self, settings: PairSettings) -> list[PairSettings]:
        """Return the settings of each of ``networks``: seeds 1,000 apart from the run's on, and its noise."""
        run, every = settings.run, []
        for seed in range(run.seed, run.seed + NEXT * run.networks, NEXT):
            own = None if seed == run.drawn_with or run.noise_file else run.drawn_with
            every.append(replace(settings, run=replace(run, seed=seed, noise_seed=own, networks=1)))
        return every

    def combined(
        self, records: Sequence[Record], settings: Mapping[str, Any], folder: Path, device: str = "cpu"
    ) -> Record:
        """Test the mean similarity of finished runs; costs are summed, ``single`` is their mean result.

        ``last`` is the result of the last epoch of every run.
        """
        scores: dict[str, list[torch.Tensor]] = {"val": [], "test": [], "last": []}
        parameters = 0
        for record in records:
            loaded = self.open_run(record, device)
            trainer, splits = loaded.trainer, {"val": loaded.trainer.val, "test": loaded.dataset.test}
            for split, data in splits.items():
                scores[split].append(trainer.score(data))
            trainer.load_last()
            scores["last"].append(trainer.score(splits["test"]))
            parameters += trainer.n_parameters
        tested = metrics_of(torch.stack(scores["test"]), splits["test"])
        tested["last"] = metrics_of(torch.stack(scores["last"]), splits["test"])["test"]
        summed = [k for k in ("seconds", "cpu_seconds", "test_seconds") if all(k in r.cost for r in records)]
        cost = {k: round(sum(r.cost[k] for r in records), 2) for k in summed}
        cost["peak_memory_mb"] = max(record.cost["peak_memory_mb"] for record in records)
        about = {k: v for k, v in records[0].environment.items() if k in ("numerics", "own_code")}
        about["parts"] = [record.name for record in records]
        if remarks := list(dict.fromkeys(text for record in records for text in record.remarks)):
            about["remarks"] = remarks
        record = Record(
            name=folder.name,
            settings={k: v for k, v in settings.items() if k != "out"},
            data=records[0].data,
            noise=records[0].noise,
            metrics={"val": metrics_of(torch.stack(scores["val"]), splits["val"])["test"], **tested},
            curves=[],
            diagnostics={"collapsed": 1} if any(one.collapsed for one in records) else {},
            best_epoch=min(record.best_epoch for record in records),
            cost=cost | {"parameters": parameters},
            environment=environment(trainer.device) | about,
            warnings=list(dict.fromkeys(text for record in records for text in record.warnings)),
            folder=str(folder),
        )
        record.keep_paths(settings)
        record.save(folder / "record.json")
        return record

    def make(self, settings: PairSettings, dataset: Dataset, work: Work) -> Record:
        """Train a run, as of its base; networks that are trained apart are runs of their own."""
        if settings.run.networks == 1:
            return super().make(settings, dataset, work)
        epochs = settings.schedule.epochs + settings.schedule.warmup_epochs
        records = list[Record]()
        for one in self.apart(settings):
            records.append(self.run(one, work.progress, work.tracker, len(records) * epochs))
        work.set_aside()
        return self.combined(records, work.request.settings, work.folder, settings.run.device)

    def assemble(self, settings: PairSettings, dataset: Dataset, place: Place) -> LoadedPairs:
        noise = noise_of(settings.run, dataset.train)
        for split in (dataset.val, dataset.test):  # those of training are checked as they are read
            split.check_finite()
        method = self.methods[self.method].factory(settings.method_options)

        def networks(restart: int = 0) -> list[Matcher]:
            built = build_networks(settings, dataset, method.n_networks, restart)
            return [method.prepare(network) for network in built]

        trainer = PairTrainer(
            method,
            networks(),
            NoisyPairs(dataset.train, noise, truth_is_known=not dataset.details.get("pairs_as_found", False)),
            dataset.val,
            settings.schedule,
            place.with_noise(noise.checksum),
            pictures_on=settings.run.pictures_on,
            renew=networks,
        )
        return LoadedRun(trainer, dataset, noise)

    def evaluate(self, loaded: LoadedPairs) -> dict[str, dict[str, float]]:
        test = loaded.dataset.test
        return metrics_of(loaded.trainer.scores(test), test)

    def probe(self, loaded: LoadedPairs) -> dict[str, dict[str, Any]]:
        """Return ``detection`` of wrong training pairs, and agreement with ``people`` where they judged."""
        trainer, test = loaded.trainer, loaded.dataset.test
        groups: dict[str, dict[str, Any]] = {}
        matched = loaded.noise.matched
        given: Tensor | None = None
        if trainer.pairs.truth_is_known and 0 < matched.sum() < len(matched):
            given = trainer.given_similarity()
            groups["detection"] = detection(given, matched)
        if judged := test.details.get("judgements"):
            S = trainer.score(test)
            people = groups.setdefault("people", {})
            for name, judgements in judged.items():
                score = S[judgements.image, judgements.caption]
                people |= {f"{name}_{k}": v for k, v in judgements.agreement(score).items()}
                if given is not None and (p := probability(trainer, given, score)) is not None:
                    people[f"{name}_ece"] = calibration(p, judgements.fits)["ece"]
        return groups

    def data_facts(self, loaded: LoadedPairs) -> dict[str, Any]:
        return {
            "train_pairs": len(loaded.trainer.pairs),
            "val_images": loaded.dataset.val.n_images,
            "test_images": loaded.dataset.test.n_images,
        }

    def diagnostics(self, loaded: LoadedPairs) -> dict[str, Any]:
        """Return the diagnostics of the last training epoch, and ``collapsed`` where the run did."""
        rows = loaded.trainer.history
        last = last_diagnostics([row for row in rows if row["phase"] == "training"])
        return last | ({"collapsed": 1} if collapse(rows) else {})


def noise_of(run: PairOptions, train: Split) -> Mismatch:
    """Return the noise of the training pairs of a run: that of its file, or a draw."""
    if run.noise_file:
        each = train.captions_per_image
        return Mismatch.from_file(run.noise_file, train.image_of, captions_per_image=each)
    assert run.mrate is not None
    seen = train.mean_regions() if run.protocol == "near" else None
    seed, own = run.drawn_with, train.image_of
    return Mismatch.draw(own, run.mrate, seed=seed, protocol=run.protocol, features=seen)


def probability(trainer: PairTrainer, given: Tensor, score: Tensor) -> np.ndarray | None:
    """Return the P(clean) of a method for pairs that it did not train on, by their similarity.

    Methods divide the training pairs only. The monotone curve through (similarity, P(clean)) of these pairs,
    of the tested epoch, gives the probability of others.

    Parameters
    ----------
    trainer : PairTrainer
    given : Tensor, (n_pairs,)
        Similarities of the training pairs.
    score : Tensor, (n,)
        Similarities of other pairs.

    Returns
    -------
    ndarray, (n,), in [0, 1], or None
        None where the method kept no P(clean) of the tested epoch.
    """
    from sklearn.isotonic import IsotonicRegression

    kept = epoch_arrays(trainer.folder).get(trainer.best["epoch"], {})
    p = [values for name, values in kept.items() if name.startswith("p_clean")]
    if not p:
        return None
    curve = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(given.numpy(), np.mean(p, 0))
    return curve.predict(score.numpy())


def build_networks(settings: PairSettings, dataset: Dataset, n: int, restart: int = 0) -> list[Matcher]:
    """Build ``n`` models with the sizes of the data and weights drawn from the run's seed.

    Those of a later ``restart``, a number from 1, are drawn apart.
    """
    networks, d = [], dataset
    sizes = dict(zip(SIZES, (d.feature_dim, d.vocabulary.size, d.n_regions), strict=True))
    for i in range(restart * n, (restart + 1) * n):
        torch.manual_seed(settings.run.seed * 1000 + i)
        networks.append(models.build(settings.run.model, **{**sizes, **(settings.model_options or {})}))
    return networks


def metrics_of(parts: Tensor, split: Split, fold: int = FOLD) -> dict[str, dict[str, float]]:
    """Evaluate the mean similarity of one or several networks on a split.

    Parameters
    ----------
    parts : Tensor, (n_networks, n_images, n_captions)
        Similarities of each network.
    split : Split
    fold : int
        Images of a block that is evaluated apart.

    Returns
    -------
    dict of str to dict
        ``test`` scores the mean similarity of all networks: recalls in percent and, where the truth is known,
        retrieval metrics that count it. ``test_dsl`` adds dual-softmax post-processing. ``folds`` is the mean
        over blocks of ``fold`` images, where the split has several whole ones: the 1K protocol of
        MS-COCO. For several networks ``single`` is the mean result of the networks alone, and ``errors`` has
        the ``correlation`` of their errors, where these differ.
    """
    S, d = parts.mean(0), split.captions_per_image
    result = {"test": dict(recall(S, d)), "test_dsl": dict(recall(dual_softmax(S), d))}
    folds, rest = divmod(split.n_images, fold)
    if folds > 1 and not rest:
        result["folds"] = dict(recall(S, d, folds=folds))
    if split.has_relevance:
        truth = split.relevance()
        result["test"] |= map_at_r(S, truth)
        result["test"] |= {f"relevant_{k}": v for k, v in relevant_recall(S, truth).items()}
    if len(parts) > 1:
        alone = [recall(part, d) for part in parts]
        result["single"] = {k: sum(r[k] for r in alone) / len(alone) for k in alone[0]}
        if (correlation := error_correlation(list(parts), d)) is not None:
            result["errors"] = {"correlation": correlation}
    return result
