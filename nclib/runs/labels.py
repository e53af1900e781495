"""Runs on wrong labels (category retrieval): any method, any data, any label noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nclib.data import CategoryData, CategorySplit
from nclib.data.registry import datasets
from nclib.evaluation import precision_at_k
from nclib.label_noise import DeepMethod, Shape, Training
from nclib.label_noise.base import METHODS
from nclib.noise import LabelNoise
from nclib.runs.experiment import Experiment, LoadedRun, last_diagnostics
from nclib.runs.label_trainer import LabelTrainer, inputs_of, retrieval_map
from nclib.runs.loop import Place, epoch_arrays
from nclib.runs.options import LabelOptions, LabelSchedule, Settings
from nclib.runs.presets import label_preset

LARGEST_CONFUSION = 50  # classes up to which a record holds the matrix of corrected labels

LabelSettings = Settings[LabelOptions, LabelSchedule]
LoadedLabels = LoadedRun[LabelTrainer, CategoryData, LabelNoise]


class LabelExperiment(Experiment[LabelTrainer, CategoryData, LabelNoise]):
    """Runs of a method in ``nclib.label_noise``."""

    options = LabelOptions
    schedule = LabelSchedule
    methods = METHODS
    catalogues = {"dataset": datasets.of["categories"]}  # noqa: RUF012
    mappings = ("data_options",)
    file_noise = {"noise_rate": None, "protocol": "file", "scope": "file"}  # noqa: RUF012
    items, rate_letter = "labels", "n"

    def preset(self, name: str, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return label_preset(name, dataset, self.method)

    def check_settings(self, settings: LabelSettings) -> None:
        """Check the options of the data, and that the warm-up of a method leaves epochs for itself."""
        super().check_settings(settings)
        warm, epochs = getattr(settings.method_options, "warmup_epochs", 0), settings.schedule.epochs
        if warm >= epochs:
            raise ValueError(
                f"epochs={epochs}: all of them would be warm-up (warmup_epochs={warm}), without any of "
                f"{settings.method}; on labels epochs include the warm-up. Give epochs={warm + 1} or more, "
                "or a smaller warmup_epochs"
            )

    def assemble(self, settings: LabelSettings, dataset: CategoryData, place: Place) -> LoadedLabels:
        run, schedule = settings.run, settings.schedule
        truth, k = dataset.train.labels, dataset.n_classes
        if run.noise_file:
            noise = LabelNoise.from_file(run.noise_file, truth, n_classes=k)
        else:
            assert run.noise_rate is not None
            how = {"protocol": run.protocol, "scope": run.scope}
            noise = LabelNoise.draw(truth, run.noise_rate, n_classes=k, seed=run.drawn_with, **how)
        method = self.methods[self.method].factory(settings.method_options)
        labels = torch.from_numpy(noise.image_labels), torch.from_numpy(noise.text_labels)
        train = Training(*inputs_of(dataset.train), *labels, k)
        network = None
        if isinstance(method, DeepMethod):
            torch.manual_seed(run.seed)
            sizes = {"hidden": schedule.hidden, "dim": schedule.dim}
            network = method.build(Shape(dataset.image_dim, dataset.text_dim, k, **sizes))
        own = place.with_noise(noise.checksum)
        trainer = LabelTrainer(method, network, train, truth, dataset.val, schedule, own)
        return LoadedRun(trainer, dataset, noise)

    def evaluate(self, loaded: LoadedLabels) -> dict[str, dict[str, float]]:
        test = loaded.dataset.test
        v, t = loaded.trainer.embed_split(test)
        return {"test": retrieval_map(v, t, test.labels), "neighbours": neighbours(v, t, test)}

    def data_facts(self, loaded: LoadedLabels) -> dict[str, Any]:
        dataset = loaded.dataset
        sizes = {f"{part}_pairs": len(getattr(dataset, part)) for part in ("train", "val", "test")}
        return {**sizes, "classes": dataset.n_classes}

    def diagnostics(self, loaded: LoadedLabels) -> dict[str, Any]:
        """Return the accuracy of the given labels, and the diagnostics of the last epoch."""
        noise, trainer = loaded.noise, loaded.trainer
        return {
            "given_accuracy_image": float((noise.image_labels == noise.truth).mean()),
            "given_accuracy_text": float((noise.text_labels == noise.truth).mean()),
            "given_accuracy": 1 - noise.true_rate,
            **last_diagnostics(trainer.history),
            **_corrected_confusion(trainer.folder, noise.truth, trainer.best["epoch"]),
        }


def neighbours(v: Tensor, t: Tensor, split: CategorySplit, k: int = 10) -> dict[str, float]:
    """Describe the nearest neighbours of the pairs of a split, by their true classes.

    Parameters
    ----------
    v, t : Tensor, (n, L)
        Embeddings of images and texts.
    split : CategorySplit
    k : int
        Neighbours of every item; fewer where the split is smaller.

    Returns
    -------
    dict
        Shares in [0, 1]. ``texts_of_class``, ``images_of_class``: among the first five texts of an image, and
        the first three images of a text, those of its class. ``purity``: among the k nearest images of an
        image and texts of a text, those of its class; ``purity_given``: the same for the features that were
        trained on. ``other_modality``: among the k nearest images and texts, those of the other modality.
        Empty for a single pair.
    """
    device, n = v.device, len(split)
    if n < 2:
        return {}
    y = torch.from_numpy(split.labels).to(device)
    k = min(k, n - 1)

    def purity(*parts: Tensor) -> float:
        return sum(precision_at_k(x, x, y, y, k, same_items=True) for x in parts) / len(parts)

    given = (torch.from_numpy(x).to(device) for x in (split.images, split.texts))
    both = torch.cat([v, t])
    is_text = torch.arange(2 * n, device=device) >= n
    return {
        "texts_of_class": precision_at_k(v, t, y, y, min(5, n)),
        "images_of_class": precision_at_k(t, v, y, y, min(3, n)),
        "purity": purity(v, t),
        "purity_given": purity(*given),
        "other_modality": 1 - precision_at_k(both, both, is_text, is_text, k, same_items=True),
    }


def _corrected_confusion(folder: Path, truth: np.ndarray, epoch: int) -> dict[str, Any]:
    """Return the confusion between true classes and corrected labels, of the epoch nearest to ``epoch``.

    ``confusion`` has K rows of K shares, true classes in rows; a row sums to 1, or to 0 for a class without
    pairs. Empty when no labels were corrected, or for more than 50 classes.
    """
    kept = {e: x["corrected"] for e, x in epoch_arrays(folder).items() if "corrected" in x}
    if not kept or next(iter(kept.values())).shape[1] > LARGEST_CONFUSION:
        return {}
    nearest = min(kept, key=lambda e: abs(e - epoch))
    corrected = kept[nearest].astype(np.float64)
    k = corrected.shape[1]
    mass = np.zeros((k, k))
    np.add.at(mass, truth, corrected)
    share = mass / np.maximum(mass.sum(1, keepdims=True), 1e-12)
    return {"confusion": share.round(4).tolist(), "confusion_epoch": nearest}
