"""What REPAIR's labels say of wrong pairs, beside those of NCR and BiCro: measurements for three claims.

    python book/probes/labels.py labels --rates 0.4       # two runs a seed, a minute or two each

Trains NCR and REPAIR with the same noise and first weights on drawn scenes, where it is known which
statements of a caption hold for a picture. Writes ``book/measured/probe_labels.json`` after every seed.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from probe_common import Case, Part, Run, main
from torch import Tensor

import nclib
from nclib.methods import Batch, Loop, Steps, Truth, register
from nclib.methods.parts.anchors import closeness_ratios, noisy_labels
from nclib.methods.parts.bank import pooled
from nclib.methods.parts.replacing import relevance_of
from nclib.methods.repair import REPAIR
from nclib.noise import auc
from nclib.runs import epoch_arrays

HIGH = 10  # a label is high in the top tenth of all pairs


@register("repair_probe", summary="REPAIR that also labels by the nearest entry of its banks, as BiCro does")
class Probe(REPAIR):
    """REPAIR; keeps BiCro's label of every pair from the same features and banks, and trains without it."""

    settings: ClassVar = REPAIR.settings

    def begin_epoch(self, loop: Loop) -> Steps:
        steps = super().begin_epoch(loop)
        if loop.active == 0:
            self._label_by_nearest(loop)
        return steps

    def _label_by_nearest(self, loop: Loop) -> None:
        """Keep labels of all pairs by the nearest of all entries and of a batch of entries, (N, 2) each."""
        known, drawn = [bank.features() for bank in self.banks], []
        for k, bank in enumerate(self.banks):
            order = torch.randperm(len(bank), generator=loop.generator(f"nearest {k}"))
            drawn.append(order[: loop.batch_size])

        def labels(batch: Batch) -> Tensor:
            found = []
            for k, (u, t) in enumerate(known):
                own = [pooled(half) for half in loop.encode(batch, k)]
                for entries in (slice(None), drawn[k]):
                    found.append(noisy_labels(*closeness_ratios(*own, u[entries], t[entries]), 0.0))
            return torch.stack(found, dim=1)  # (B, 4)

        values = loop.each_pair(labels)
        banked = torch.zeros(loop.n_pairs, len(self.banks), dtype=torch.bool)
        for k, bank in enumerate(self.banks):
            banked[bank.pairs(torch.device("cpu")), k] = True
        loop.keep(nearest=values[:, 0::2], nearest_of_batch=values[:, 1::2], banked=banked)


def in_top(values: np.ndarray, share: int = HIGH) -> np.ndarray:
    """Return how far each value (N,) belongs to the largest ``N // share``, in [0, 1].

    1 above the value at the boundary, 0 below; values equal to it share the places that are left.
    """
    k = len(values) // share
    edge = np.sort(values)[-k]
    above, equal = values > edge, values == edge
    return above + equal * (k - above.sum()) / equal.sum()


def staying(first: np.ndarray, last: np.ndarray, wrong: np.ndarray) -> float:
    """Return the share of the wrong pairs starting with a high label that ends with one."""
    begun, ended = (in_top(values)[wrong] for values in (first, last))
    return float((begun * ended).sum() / begun.sum()) if begun.any() else 0.0


def labels_of_kinds(label: np.ndarray, matched: np.ndarray, relevance: np.ndarray) -> dict[str, float]:
    """Return the mean label of matched pairs, and of mismatched ones of which something or nothing holds."""
    related = relevance > 0
    kinds = {"matched": matched, "related": ~matched & related, "unrelated": ~matched & ~related}
    return {f"label_{name}": float(label[rows].mean()) for name, rows in kinds.items()}


def replaced(arrays: dict[str, np.ndarray], truth: Truth) -> dict[str, float]:
    """Return the relevance of pictures that half-replacing put into mismatched pairs, and of those before."""
    rows = arrays["replaced_image"]
    pair, source = (torch.as_tensor(arrays[f"replaced_{name}"][rows]) for name in ("pair", "by"))
    wrong = ~truth.matched[pair.numpy()]
    pictures = {"old_picture": pair, "new_picture": source}
    return {name: float(relevance_of(truth, by, pair)[wrong].mean()) for name, by in pictures.items()}


def labels(made: Run, case: Case) -> dict[str, float]:
    """Train both methods of a seed, and compare their labels with the truth."""
    found: dict[str, float] = {}
    orders: dict[str, list[np.ndarray]] = {}
    record = made("ncr", "ncr")
    kept = epoch_arrays(record.folder)
    first, last = min(kept), max(kept)
    # The posterior and the predicted correspondence of a pair both fall with its loss.
    orders["ncr"] = [-(kept[e]["loss"] + kept[e]["loss_b"]) for e in (first, last)]
    record = made("repair", "repair_probe")
    kept = epoch_arrays(record.folder)
    orders["repair"] = [kept[e]["correlation"] + kept[e]["correlation_b"] for e in (min(kept), max(kept))]
    end = kept[max(kept)]

    truth = nclib.open_run(record).trainer.pairs.truth()
    matched = np.asarray(truth.matched)
    for name, (begin, finish) in orders.items():
        found[f"stay.{name}"] = staying(begin, finish, ~matched)
    every = torch.arange(len(matched))
    found |= labels_of_kinds(
        (end["label"] + end["label_b"]) / 2, matched, relevance_of(truth, every, every)
    ) | replaced(end, truth)
    signals = {name: end[name] for name in ("nearest", "nearest_of_batch")}
    signals["ranks"] = np.stack([end["correlation"], end["correlation_b"]], axis=1)
    for name, values in signals.items():
        outside = [~end["banked"][:, k] for k in range(2)]
        areas = [auc(values[rows, k], matched[rows]) for k, rows in enumerate(outside)]
        found[f"auc.{name}"] = float(np.mean(areas))
    return found


if __name__ == "__main__":
    main(__doc__, labels=Part(labels, {"protocol": "captions"}))
