"""What the closed form ``linear`` gives to networks: the pairs that it keeps, and maps to begin from.

    python book/probes/linear_start.py start --dataset f8k --root /data --rates 0.6  # a minute a row

A row is a run of ``bow``. ``pairs``: all, or those that ``filter="linear"`` of ``plain`` keeps, which are
fewer steps in as many epochs. ``start``: both towers are drawn, or begin at the maps of ``linear``, with
the preset's learning rate and with a tenth of it. Writes ``book/measured/probe_start.json`` after every row.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from probe_common import Case, Part, Run, main
from torch import Tensor

from nclib import evaluation
from nclib.common.cca import fit_cca
from nclib.methods import Batch
from nclib.methods.parts.closed import linear_division, weighted_words
from nclib.methods.plain import KEPT, WORDS
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.pairs import LoadedPairs, PairExperiment

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "InfoNCE": ("plain", {"loss": "infonce"}),
    "GCE": ("plain", {"loss": "gce"}),
    "L2RM": ("l2rm", {}),
    "CRANK": ("crank", {}),
}
STARTS, PAIRS, SLOW = ("drawn", "linear"), ("all", "kept"), 2e-4


class KeptPairs(NoisyPairs):
    """The training pairs at some ``rows``, ascending int (n,), under new numbers."""

    def __init__(self, pairs: NoisyPairs, rows: np.ndarray) -> None:
        of, matched = pairs.noise.image_of[rows], pairs.noise.matched[rows]
        super().__init__(pairs.split, replace(pairs.noise, image_of=of, matched=matched))
        self.rows = torch.from_numpy(rows)

    def load(self, device: torch.device, index: Tensor) -> Batch:
        captions = self.split.captions.batch(self.rows[index].numpy())
        return Batch(index, self.split.features(self.image_of[index].numpy()), captions)


def begin(loaded: LoadedPairs, case: Case) -> tuple[LoadedPairs, dict[str, float]]:
    """Give a run the pairs and the start of its case; return it, and what these are."""
    trainer, matched, found = loaded.trainer, loaded.noise.matched, {}
    pairs = trainer.all_pairs()
    texts, weights = weighted_words(pairs, WORDS)
    p_clean = linear_division(pairs, texts).p_clean
    if case["start"] == "linear":
        cca = fit_cca(pairs.images, texts, pairs.image_of, p_clean)
        put(cca, trainer.networks[0], weights, pairs.captions)
        S = trainer.score(trainer.val)
        found["val.start"] = evaluation.recall(S, trainer.val.captions_per_image)["rsum"]
    if case["pairs"] == "kept":
        kept = np.flatnonzero(p_clean > KEPT)
        found |= {"kept": len(kept) / len(matched), "right": float(matched[kept].mean())}
        trainer.pairs = KeptPairs(trainer.pairs, kept)
        trainer.n_pairs, trainer.image_of = len(kept), trainer.pairs.image_of
    return replace(loaded, noise=trainer.pairs.noise), found


@torch.no_grad()
def put(cca: Any, network: Any, weights: np.ndarray, captions: Any) -> None:
    """Put the strongest axes of a closed form into the towers of ``bow``, at the scale of drawn weights.

    The model's form leaves a difference: a caption is the sum of its words over their number, and not over
    the length of its TF-IDF row, so that the shift gets the mean of the two; and a tanh, hardly bent there.
    """
    n, width = network.text_map.weight.shape
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0][:n]  # (n, width)
    words = weights[weights > 0, None] * cca.text_map[:, :n]
    squares = np.add.reduceat(weights[captions.tokens] ** 2, captions.offsets[:-1])
    scale = np.sqrt(width / n) / words.std()
    of_image = float(network.image_map.weight.std()) / cca.image_map[:, :n].std()
    network.words.weight.zero_()
    network.words.weight[torch.from_numpy(weights > 0)] = torch.from_numpy(scale * words @ turn).float()
    shrunk = scale * (np.sqrt(squares) / captions.lengths).mean()
    for parameter, values in (
        (network.image_map.weight, of_image * cca.image_map[:, :n].T),
        (network.image_map.bias, -of_image * (cca.image_mean @ cca.image_map[:, :n])),
        (network.text_map.weight, turn),
        (network.text_map.bias, -shrunk * (cca.text_mean @ cca.text_map[:, :n])),
    ):
        parameter.copy_(torch.from_numpy(values))


def start(made: Run, case: Case) -> dict[str, Any]:
    """Return rSum of the selected epoch on both splits, and of the last one on the test split."""
    found, assemble = dict[str, Any](), PairExperiment.assemble
    method, options = METHODS[case["label"]]

    def begun(self: PairExperiment, *given: Any) -> LoadedPairs:
        loaded, facts = begin(assemble(self, *given), case)
        found.update(facts)
        return loaded

    with mock.patch.object(PairExperiment, "assemble", begun):
        record = made("run", method, **options, label=None, pairs=None, start=None)
    found |= {f"{name}.rsum": record.metrics[name]["rsum"] for name in ("val", "test", "last")}
    return found | {"epoch": record.best_epoch, "steps": sum(row["steps"] for row in record.curves)}


if __name__ == "__main__":
    cells = itertools.product(METHODS, PAIRS, STARTS)
    each = [dict(zip(("label", "pairs", "start"), cell, strict=True)) for cell in cells]
    each += [{**cell, "lr": SLOW} for cell in each if cell["start"] == "linear"]
    main(__doc__, start=Part(start, {"protocol": "images"}, each))
