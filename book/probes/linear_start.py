"""What the closed form ``linear`` gives to networks: the pairs that it keeps, and maps to begin from.

    python book/probes/linear_start.py --root /data --rates 0.6 --seeds 0 1 2  # a minute a run of Flickr8K

A row is a run of ``bow`` with the settings of the preset ``standard``. ``pairs``: all, or those that
``filter="linear"`` of ``plain`` keeps, which are fewer steps in as many epochs. ``start``: both towers are
drawn, or begin at the maps of ``linear``. Writes ``book/measured/probe_start.json`` after every row.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ncbook.measurements import MEASURED
from probe_common import PLACES, Case, fill
from torch import Tensor

import nclib
from nclib import evaluation
from nclib.common.cca import fit_cca
from nclib.methods import Batch
from nclib.methods.parts.closed import linear_division, weighted_words
from nclib.methods.plain import KEPT, WORDS
from nclib.runs.experiment import LoadedRun
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.pairs import LoadedPairs, PairExperiment

OPTIONS: dict[str, dict[str, Any]] = {
    "InfoNCE": {"method": "plain", "loss": "infonce"},
    "GCE": {"method": "plain", "loss": "gce"},
    "L2RM": {"method": "l2rm"},
    "CRANK": {"method": "crank"},
}
CELLS = (("all", "drawn"), ("kept", "drawn"), ("all", "linear"), ("kept", "linear"))


class KeptPairs(NoisyPairs):
    """The training pairs at some ``rows``, ascending int (n,), under new numbers."""

    def __init__(self, pairs: NoisyPairs, rows: np.ndarray) -> None:
        noise = pairs.noise
        super().__init__(
            pairs.split, replace(noise, image_of=noise.image_of[rows], matched=noise.matched[rows])
        )
        self.rows = torch.from_numpy(rows)

    def load(self, device: torch.device, index: Tensor) -> Batch:
        captions = self.split.captions.batch(self.rows[index].numpy())
        return Batch(index, self.split.features(self.image_of[index].numpy()), captions)


class Begun(PairExperiment):
    """Runs of one cell: with these pairs, from this start."""

    def __init__(self, method: str, pairs: str, start: str) -> None:
        super().__init__(method)
        self.pairs, self.start = pairs, start
        self.found: dict[str, Any] = {}

    def assemble(self, *given: Any) -> LoadedPairs:
        loaded = super().assemble(*given)
        trainer, matched = loaded.trainer, loaded.noise.matched
        pairs = trainer.all_pairs()
        texts, weights = weighted_words(pairs, WORDS)
        p_clean = linear_division(pairs, texts).p_clean
        self.found["noise"] = loaded.noise.checksum
        if self.start == "linear":
            cca = fit_cca(pairs.images, texts, pairs.image_of, p_clean)
            begin(trainer.networks[0], cca, weights, pairs.captions)
            S = trainer.score(trainer.val)
            self.found["val.start"] = evaluation.recall(S, trainer.val.captions_per_image)["rsum"]
        if self.pairs == "kept":
            kept = np.flatnonzero(p_clean > KEPT)
            self.found |= {"kept": len(kept) / len(matched), "right": float(matched[kept].mean())}
            trainer.pairs = KeptPairs(trainer.pairs, kept)
            trainer.n_pairs, trainer.image_of = len(kept), trainer.pairs.image_of
        return LoadedRun(trainer, loaded.dataset, trainer.pairs.noise)


@torch.no_grad()
def begin(network: Any, cca: Any, weights: np.ndarray, captions: Any) -> None:
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
    put = {
        network.image_map.weight: of_image * cca.image_map[:, :n].T,
        network.image_map.bias: -of_image * (cca.image_mean @ cca.image_map[:, :n]),
        network.text_map.weight: turn,
        network.text_map.bias: -shrunk * (cca.text_mean @ cca.text_map[:, :n]),
    }
    for parameter, values in put.items():
        parameter.copy_(torch.from_numpy(values))


def measure(case: Case, root: str) -> dict[str, Any]:
    """Return rSum of the selected epoch on both splits, and of the last one on the test split."""
    named = ("label", "pairs", "start")
    same = {k: v for k, v in case.items() if k not in named} | OPTIONS[case["label"]]
    with tempfile.TemporaryDirectory() as folder:
        settings = nclib.resolve(data_options={"root": root}, out=folder, device="cpu", threads=1, **same)
        experiment = Begun(same["method"], case["pairs"], case["start"])
        record = experiment.run(settings, progress=False)
    found = {f"{name}.rsum": record.metrics[name]["rsum"] for name in ("val", "test", "last")}
    steps = sum(row["steps"] for row in record.curves)
    return {**found, **experiment.found, "epoch": record.best_epoch, "steps": steps}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", default="data", help="folder of the prepared photographs")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.6], help="mismatch rates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--labels", choices=tuple(OPTIONS), nargs="+", default=list(OPTIONS))
    parser.add_argument("--out", type=Path, default=MEASURED, help="folder of the JSON file")
    given = parser.parse_args()
    at = {"dataset": "f8k", **PLACES["f8k"], "protocol": "images"}
    cases = [
        {**at, "mrate": rate, "seed": seed, "label": label, "pairs": pairs, "start": start}
        for rate, seed, (pairs, start), label in itertools.product(
            given.rates, given.seeds, CELLS, given.labels
        )
    ]
    fill(given.out / "probe_start.json", cases, lambda _, case: measure(case, given.root), given.root)
