"""The closed form and trained networks, averaged: ``linear`` beside GCE with one network and with two.

    python book/probes/linear_average.py average --dataset f8k --root /data --rates 0.6  # 3 minutes a row

The similarities of each part, all those of a split standardised together, are averaged half and half; the
weight is fixed beforehand. The two networks are those of ``networks=2``: same noise, seeds s and 1000 + s.
Writes ``book/measured/probe_average.json`` after every seed.
"""

from __future__ import annotations

from typing import Any

from probe_common import Case, Part, Run, main
from torch import Tensor

import nclib
from nclib import evaluation


def standardised(similarity: Tensor) -> Tensor:
    """Return similarities with mean 0 and deviation 1."""
    return (similarity - similarity.mean()) / similarity.std()


def average(made: Run, case: Case) -> dict[str, float]:
    """Return rSum on the test and validation splits of each part, and of the averages."""
    seed, gce = case["seed"], {"method": "plain", "loss": "gce"}
    runs = {
        "linear": made("linear", "linear", model="bow"),
        "first": made("first", **gce, noise_seed=seed),
        "second": made("second", **gce, noise_seed=seed, seed=seed + 1000),
    }
    loaded: dict[str, Any] = {name: nclib.open_run(run) for name, run in runs.items()}
    data = loaded["linear"].dataset
    found = {}
    for name, split in {"test": data.test, "val": data.val}.items():
        closed, one, other = (standardised(parts.trainer.score(split)) for parts in loaded.values())
        pair = standardised(sum(parts.trainer.score(split) for parts in list(loaded.values())[1:]))
        scores = {"linear": closed, "one": one, "other": other, "pair": pair}
        scores |= {"linear+one": closed + one, "linear+pair": closed + pair}
        for label, S in scores.items():
            found[f"{name}.{label}"] = evaluation.recall(S, split.captions_per_image)["rsum"]
    return found


if __name__ == "__main__":
    main(__doc__, average=Part(average, {"protocol": "images"}))
