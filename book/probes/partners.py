"""How many wrong pairs of Flickr8K have a true partner in their batch, by protocol and rate.

    python book/probes/partners.py --root data     # seconds; the folder of ``nclib data prepare f8k``

Writes ``book/measured/probe_counts.json``.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
from probe_common import MEASURED, save

import nclib
from nclib.noise import Mismatch

BATCH, RATES, SEEDS = 128, (0.2, 0.4, 0.6, 0.8), range(3)


def count_partners(shown: np.ndarray, described: np.ndarray, batch: int, seed: int) -> dict[str, float]:
    """Count true partners in batches drawn from the wrong pairs.

    Parameters
    ----------
    shown, described : ndarray of int, (N,)
        Picture that each pair shows, and the one that its caption describes.
    batch : int
        B; a last batch that is not full is left out.
    seed : int
        Of the order.

    Returns
    -------
    dict
        ``wrong``, the number of wrong pairs; ``batches``; ``with_partner``, the share of pairs whose picture
        another pair of the batch describes; ``partners``, the mean number of such pairs.
    """
    wrong = np.flatnonzero(shown != described)
    order = np.random.default_rng(seed).permutation(wrong)
    rows = order[: len(order) // batch * batch].reshape(-1, batch)
    found = np.concatenate([(shown[r][:, None] == described[r]).sum(1) for r in rows])
    return {
        "wrong": len(wrong),
        "batches": len(rows),
        "with_partner": float((found > 0).mean()),
        "partners": float(found.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", default="data", help="folder of the prepared photographs")
    parser.add_argument("--out", type=Path, default=MEASURED, help="folder of the JSON file")
    given = parser.parse_args()
    own = nclib.data.load("f8k", root=given.root).train.image_of
    rows = []
    for protocol, rate, seed in itertools.product(("images", "captions"), RATES, SEEDS):
        noise = Mismatch.draw(own, rate, seed=seed, protocol=protocol)
        found = count_partners(noise.image_of, own, BATCH, seed)
        rows.append({"protocol": protocol, "rate": rate, "seed": seed, "batch": BATCH, **found})
    save(given.out / "probe_counts.json", rows, dataset="f8k")


if __name__ == "__main__":
    main()
