"""How focused OMIT's plans are, and what further passes of its loop change: measurements for three claims.

    python book/probes/plans.py plans      # three runs a seed, a minute each, and a minute of scoring

Trains the model ``omit`` on matched pairs with partial transport, cross attention, and partial transport in
ten passes. Plans are those of the test pictures with their first
captions. Writes ``book/measured/probe_plans.json`` after every seed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ncbook.training import words_of
from probe_common import Case, Part, Run, main
from torch import Tensor

import nclib
from nclib.data import Dataset
from nclib.evaluation import recall
from nclib.models import similarity_matrix

TRAINED = {
    "partial_ot": {"matching": "partial_ot"},
    "cam": {"matching": "cam"},
    "ten": {"matching": "partial_ot", "iterations": 10},
}
LEAD = {"partial_ot": 1, "cam": 0}  # rows and columns that are dustbins
PASSES = range(1, 11)
PICTURES = 50  # that are aligned at a time
FEW = 3  # entries of a row or column whose share is looked at
OVERLAP = 0.5  # intersection over union from which a region lies on an object
SIDE = 96  # of a scene, in its units


def view(network: Any, **changes: Any) -> Any:
    """Return a network with the same weights that compares in another way."""
    part = copy.copy(network)
    for name, value in changes.items():
        setattr(part, name, value)
    return part.eval()


def encoded(network: Any, data: Dataset) -> Iterator[tuple[int, Any, Any]]:
    """Yield by blocks the first picture, and the encodings of test pictures and of their first captions."""
    test = data.test
    for first in range(0, test.n_images, PICTURES):
        rows = np.arange(first, min(first + PICTURES, test.n_images))
        captions = test.captions.batch(rows * test.captions_per_image)
        with torch.no_grad():
            both = network.encode_images(test.features(rows)), network.encode_captions(captions)
        yield first, *both


def on_object(dataset: Dataset, picture: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the position of each word that names one object of a scene, and which regions lie on it, (R,)."""
    split = dataset.test
    if "scenes" not in split.details or split.boxes is None:
        return
    scene, concepts = split.details["scenes"][picture], dataset.details["concepts"]
    text, box = words_of(split, picture * split.captions_per_image), split.boxes[picture]
    for k in range(scene["count"]):
        name = concepts[scene["concept"][k]].split()
        starts = [j for j in range(len(text)) if text[j : j + len(name)] == name]
        if len(starts) == 1:
            low = np.array([scene["x"][k], scene["y"][k]], float) / SIDE
            high = low + float(scene["size"][k]) / SIDE
            sides = np.minimum(box[:, 2:], high) - np.maximum(box[:, :2], low)
            common = np.prod(sides.clip(0), axis=1)
            both = np.prod(box[:, 2:] - box[:, :2], axis=1) + np.prod(high - low) - common
            yield starts[0] + len(name) - 1, common / both >= OVERLAP


def spread(shares: Tensor, used: Tensor) -> dict[str, Tensor]:
    """Describe how far the columns of shares (n, a, b) spread over their ``a`` entries; values of ``used``.

    ``in_use`` is the exponential of the entropy, ``top`` the share of the :data:`FEW` largest entries.
    """
    shares = shares / shares.sum(1, keepdim=True).clamp_min(1e-12)
    top = shares.topk(min(FEW, shares.shape[1]), dim=1)[0].sum(1)
    return {"in_use": torch.special.entr(shares).sum(1).exp()[used], "top": top[used]}


def aligned(network: Any, data: Dataset, **how: Any) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the first picture, plans (n, regions, words) and lengths of captions, by blocks.

    Of test pictures with their first captions, dustbins included; ``how`` goes to :func:`view`.
    """
    for first, v, t in encoded(network, data):
        own = torch.arange(len(t.lengths))
        yield first, view(network, **how).alignments(v, t)[own, own], torch.tensor(t.lengths)


def focus(network: Any, data: Dataset, lead: int) -> dict[str, float]:
    """Describe a trained network's plans without their dustbins: means over words, and over regions.

    ``regions_in_use`` and ``top_regions`` of a word, ``top_words`` of a region. ``on_object``: share of a
    word that names an object on the regions of this object, ``any_region`` if all had the same; for scenes.
    """
    found: dict[str, list[Any]] = {}

    def note(**values: Any) -> None:
        for name, value in values.items():
            found.setdefault(name, []).extend(np.atleast_1d(value).tolist())

    for first, plans, lengths in aligned(network, data):
        local = plans[:, lead:, lead:]
        words = torch.arange(local.shape[2]) < lengths[:, None]  # (n, W)
        of_words = spread(local, words)
        of_regions = spread(local.transpose(1, 2), torch.ones(local.shape[:2], dtype=torch.bool))
        note(regions_in_use=of_words["in_use"], top_regions=of_words["top"], top_words=of_regions["top"])
        shares = (local / local.sum(1, keepdim=True).clamp_min(1e-12)).numpy()
        for i in range(len(shares)):
            for word, there in on_object(data, first + i):
                note(on_object=shares[i, there, word].sum(), any_region=there.mean())
    return {name: float(np.mean(values)) for name, values in found.items()}


def cells_in_use(plans: Tensor) -> Tensor:
    """Return the exponential of the entropy of plans (n, rows, columns), each divided by its mass, (n,)."""
    flat = plans.flatten(1) / plans.flatten(1).sum(1, keepdim=True)
    return torch.special.entr(flat).sum(1).exp()


def by_passes(network: Any, data: Dataset) -> dict[str, float]:
    """Return what passes change: mean cells in use, and rSum.

    Pass 0 is the kernel exp(s / lambda), as in the paper's Fig. A1.
    """
    found: dict[str, float] = {}
    kernels = []
    for _, v, t in encoded(network, data):
        own = torch.arange(len(t.lengths))
        s, _, q = network.transport_problem(v, t)
        kernel = torch.exp((s - 1) / network.lam)[own, own] * (q[own, own] > 0)[:, None]
        kernels.append(cells_in_use(kernel))
    found["cells.0"] = float(torch.cat(kernels).mean())
    for n in PASSES:
        cells = [cells_in_use(plans) for _, plans, _ in aligned(network, data, iterations=n)]
        found[f"cells.{n}"] = float(torch.cat(cells).mean())
        score = similarity_matrix(view(network, iterations=n), data.test)
        found[f"test.{n}"] = float(recall(score, data.test.captions_per_image)["rsum"])
    return found


def plans(made: Run, case: Case) -> dict[str, float]:
    """Train the three models of a seed, and measure their plans."""
    found: dict[str, float] = {}
    for label, options in TRAINED.items():
        record = made(label, "plain", model_options=options)
        found[f"trained.{label}"] = record.metrics["test"]["rsum"]
        if label not in LEAD:
            continue
        run = nclib.open_run(record)
        network = run.trainer.networks[0]
        found |= {f"{k}.{label}": v for k, v in focus(network, run.dataset, LEAD[label]).items()}
        if label == "partial_ot":
            found |= by_passes(network, run.dataset)
    return found


if __name__ == "__main__":
    main(__doc__, plans=Part(plans, {"model": "omit", "mrate": 0.0, "protocol": "images"}))
