"""Runs on mismatched pairs: any method on any model, any data, any noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nclib import data, models
from nclib.data import Dataset, Split
from nclib.data.registry import datasets
from nclib.evaluation import dual_softmax, map_at_r, recall, relevant_recall
from nclib.methods.base import METHODS
from nclib.models import Matcher
from nclib.models.registry import MODELS, SIZES, misfits_of
from nclib.noise import Mismatch
from nclib.runs.experiment import Experiment, LoadedRun, check_unknown, last_diagnostics
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.options import PairOptions, PairSchedule, Settings
from nclib.runs.pair_trainer import PairTrainer
from nclib.runs.presets import pair_preset

SIZES_OF_THE_DATA = ("feature_dim", "vocab_size", "n_regions")

PairSettings = Settings[PairOptions, PairSchedule]
LoadedPairs = LoadedRun[PairTrainer, Dataset, Mismatch]


class PairExperiment(Experiment[PairTrainer, Dataset, Mismatch]):
    """Runs of a method in ``nclib.methods``."""

    options = PairOptions
    schedule = PairSchedule
    methods = METHODS
    catalogues = {"dataset": datasets.of["pairs"], "model": MODELS}  # noqa: RUF012
    mappings = ("model_options", "data_options")
    synonyms = {"noise_rate": "mrate"}  # noqa: RUF012
    file_noise = {"mrate": None, "protocol": "file"}  # noqa: RUF012
    items = "pairs"

    def preset(self, name: str, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return pair_preset(name, dataset, self.method, {"model": PairOptions.model, **given})

    def resolve(self, **values: Any) -> PairSettings:
        """Return the complete settings of a run, as :meth:`Experiment.resolve`."""
        settings = super().resolve(**values)
        _check_model_options(settings.run.model, settings.model_options or {})
        if settings.schedule.epochs + settings.schedule.warmup_epochs == 0:
            raise ValueError("epochs=0 and warmup_epochs=0: nothing to train")
        return settings

    def title(self, settings: PairSettings) -> str:
        run = settings.run
        noise = f"file-{settings.noise_sha256[:8]}" if run.noise_file else f"m{run.mrate:g}-{run.protocol}"
        return f"{self.method}-{run.model}-{run.dataset}-{noise}-s{run.seed}"

    def load(self, settings: PairSettings, folder: Path, device: torch.device) -> LoadedPairs:
        dataset = data.load(settings.run.dataset, **settings.data_options)
        noise = draw_mismatch(settings, dataset.train)
        method = self.methods.build(self.method, settings.method_options)
        networks = build_networks(settings, dataset, method.n_networks)
        trainer = PairTrainer(
            method,
            [method.prepare(network) for network in networks],
            NoisyPairs(dataset.train, noise, truth_is_known=not dataset.details.get("pairs_as_found", False)),
            dataset.val,
            settings.schedule,
            seed=settings.run.seed,
            device=device,
            folder=folder,
            fingerprint=self.fingerprint(settings),
            data_checksum=dataset.checksum,
        )
        return LoadedRun(trainer, dataset, noise)

    def noise_facts(self, noise: Mismatch) -> dict[str, Any]:
        return {"of": len(noise)}

    def evaluate(self, loaded: LoadedPairs) -> dict[str, dict[str, float]]:
        return split_metrics(loaded.trainer, loaded.dataset.test)

    def data_facts(self, loaded: LoadedPairs) -> dict[str, Any]:
        return {
            "train_pairs": len(loaded.trainer.pairs),
            "val_images": loaded.dataset.val.n_images,
            "test_images": loaded.dataset.test.n_images,
        }

    def diagnostics(self, loaded: LoadedPairs) -> dict[str, Any]:
        """Return the diagnostics of the last training epoch."""
        return last_diagnostics([row for row in loaded.trainer.history if row["phase"] == "training"])


def draw_mismatch(settings: PairSettings, train: Split) -> Mismatch:
    """Draw the mismatch of a run, or read it from its file.

    Parameters
    ----------
    settings : Settings
    train : Split
        Training split, of N captions.

    Returns
    -------
    Mismatch
        Of N pairs.

    Raises
    ------
    ValueError
        When the noise file does not fit the split.
    """
    run = settings.run
    if run.noise_file:
        return Mismatch.from_file(run.noise_file, train.image_of, captions_per_image=train.captions_per_image)
    assert run.mrate is not None
    return Mismatch.draw(train.image_of, run.mrate, seed=run.seed, protocol=run.protocol)


def build_networks(settings: PairSettings, dataset: Dataset, n: int) -> list[Matcher]:
    """Build ``n`` models with weights drawn from the run's seed.

    Parameters
    ----------
    settings : Settings
    dataset : Dataset
        Decides the sizes of features and vocabulary.
    n : int

    Returns
    -------
    list of Matcher
    """
    networks = []
    for i in range(n):
        torch.manual_seed(settings.run.seed * 1000 + i)
        networks.append(
            models.build(
                settings.run.model,
                feature_dim=dataset.feature_dim,
                vocab_size=dataset.vocabulary.size,
                n_regions=dataset.n_regions,
                **(settings.model_options or {}),
            )
        )
    return networks


def split_metrics(trainer: PairTrainer, split: Split) -> dict[str, dict[str, float]]:
    """Evaluate the networks of a trainer on a split.

    Parameters
    ----------
    trainer : PairTrainer
    split : Split

    Returns
    -------
    dict of str to dict
        ``test`` scores the mean similarity of all networks: recalls in percent and, where the truth is known,
        retrieval metrics that count it. ``test_dsl`` adds dual-softmax post-processing. ``single``, for
        methods with several networks, is the mean result of the networks alone.
    """
    parts = trainer.scores(split)
    S, d = parts.mean(0), split.captions_per_image
    result = {"test": dict(recall(S, d)), "test_dsl": dict(recall(dual_softmax(S), d))}
    if split.has_relevance:
        truth = split.relevance()
        result["test"] |= map_at_r(S, truth)
        result["test"] |= {f"relevant_{k}": v for k, v in relevant_recall(S, truth).items()}
    if len(parts) > 1:
        alone = [recall(part, d) for part in parts]
        result["single"] = {k: sum(r[k] for r in alone) / len(alone) for k in alone[0]}
    return result


def _check_model_options(model: str, given: Mapping[str, Any]) -> None:
    """Raise a ValueError when a model lacks such an option, or its value is not allowed."""
    known = [*models.options(model), *(n for n in SIZES if n not in SIZES_OF_THE_DATA)]
    check_unknown("model_options", model, given, known)
    if wrong := misfits_of(MODELS[model].factory, given):
        raise ValueError("model_options: " + "; ".join(wrong))
