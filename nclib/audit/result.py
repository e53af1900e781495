"""Audit of pairs: the call, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nclib.audit.calibration import Calibration, Share, calibrate
from nclib.audit.pairs import Pairs, from_arrays
from nclib.audit.partners import Neighbours, find_neighbours
from nclib.audit.scores import SCORES

Array = NDArray[Any]
COLUMNS = [
    "id",
    "image",
    "caption",
    "score",
    "p_wrong",
    "p_low",
    "p_high",
    "rank",
    "reason",
    "partner_id",
    "partner_score",
    "partner_margin",
    "partner_mass",
    "image_duplicate_of",
    "caption_duplicate_of",
]
ASSUMPTION = (
    "The probabilities hold if wrong pairs are like captions exchanged at random among these pairs; "
    "captions that are wrong but related to the picture get too low a probability, and the share is then "
    "too low."
)


@dataclass
class Audit:
    """Result of :func:`nclib.audit`."""

    pairs: Pairs
    neighbours: Neighbours
    score: str
    settings: dict[str, Any]
    seed: int
    table: pd.DataFrame
    share: Share
    curves: dict[str, Any]
    assumption: str = ASSUMPTION
    patterns: list[dict[str, Any]] = field(default_factory=list)

    def partners(self, k: int = 3) -> pd.DataFrame:
        """Return proposed partners of captions and of pictures."""
        return pd.DataFrame(columns=["direction", "id", "place", "partner_id", "score", "mass", "margin"])

    def check(self, truth: Any, partner_of: Any = None) -> dict[str, float]:
        """Compare with known mistakes."""
        raise NotImplementedError

    def ask(self, n: int = 100) -> pd.DataFrame:
        """Return the pairs whose label would teach most."""
        return self.table.sort_values("rank").head(n)[["id", "image", "caption", "p_wrong"]]

    def tell(self, labels: Any) -> Audit:
        """Return the audit recalibrated by labels."""
        raise NotImplementedError

    def save(self, folder: str | Path) -> Path:
        """Write the results as files."""
        raise NotImplementedError

    def report(self, folder: str | Path) -> Path:
        """Write the files of :meth:`save` and a page, and return the page's path."""
        from nclib.audit.report import write_report

        self.save(folder)
        return write_report(self, Path(folder))


def audit(
    source: Any = None,
    *,
    images: Any = None,
    captions: Any = None,
    image_of: Any = None,
    ids: Any = None,
    texts: Any = None,
    pictures: Any = None,
    score: str = "auto",
    seed: int = 0,
    labels: Any = None,
    one_to_one: bool = False,
    progress: bool = True,
    **reader: Any,
) -> Audit:
    """Audit pairs of pictures and captions: which are wrong, how many, and what belongs together."""
    if isinstance(source, Pairs):
        pairs = source
    elif source is None and images is not None and captions is not None:
        pairs = from_arrays(images, captions, image_of, ids, texts, pictures)
    else:
        from nclib.audit.readers import read_pairs

        pairs = read_pairs(source, **reader)
    neighbours = find_neighbours(pairs, progress=progress)
    name = "cosine" if score == "auto" else score
    function = SCORES[name]
    rng = np.random.default_rng(seed)
    usable = np.flatnonzero(pairs.usable)
    given = function(pairs, neighbours)
    exchanged = function(pairs, neighbours, usable, rng.permutation(pairs.image_of[usable]))
    calibration = calibrate(given[usable], exchanged)
    table = _table(pairs, given, calibration)
    curves = _curves(given[usable], exchanged, exchanged, calibration, table)
    return Audit(
        pairs,
        neighbours,
        name,
        {"score": score, "one_to_one": one_to_one},
        seed,
        table,
        calibration.share,
        curves,
    )


def _table(pairs: Pairs, given: Array, calibration: Calibration) -> pd.DataFrame:
    m = len(pairs)
    p, low, high = calibration(given)
    p[~pairs.usable] = low[~pairs.usable] = high[~pairs.usable] = np.nan
    order = np.lexsort((given, -np.nan_to_num(p, nan=-1.0)))
    rank = np.empty(m, np.int64)
    rank[order] = np.arange(1, m + 1)
    reason = np.where(p >= 0.5, "low score", "").astype(object)
    for row, text in pairs.problems.items():
        reason[row] = text
    none: dict[str, Any] = dict.fromkeys(COLUMNS[9:])
    table = {
        "id": pairs.ids,
        "image": [str(i) for i in pairs.image_of]
        if pairs.pictures is None
        else [pairs.pictures[i] for i in pairs.image_of],
        "caption": pairs.texts if pairs.texts is not None else [""] * m,
        "score": np.where(pairs.usable, given, np.nan),
        "p_wrong": p,
        "p_low": low,
        "p_high": high,
        "rank": rank,
        "reason": reason,
        "partner_id": [""] * m,
        "partner_score": np.full(m, np.nan),
        "partner_margin": np.full(m, np.nan),
        "partner_mass": np.zeros(m),
        "image_duplicate_of": [""] * m,
        "caption_duplicate_of": [""] * m,
    }
    return pd.DataFrame({**none, **table})[COLUMNS]


def _curves(
    given: Array, exchanged: Array, near: Array, calibration: Calibration, table: pd.DataFrame
) -> dict[str, Any]:
    edges = np.linspace(min(given.min(), exchanged.min()), max(given.max(), exchanged.max()) + 1e-6, 61)
    curves: dict[str, Any] = {"edges": edges}
    for key, values in (("given", given), ("exchanged", exchanged), ("near", near)):
        curves[key] = np.histogram(values, edges, density=True)[0]
    t = np.linspace(0, 1, 101)
    p = np.sort(table["p_wrong"].dropna().to_numpy())
    total = np.concatenate([[0.0], np.cumsum(p)])
    at = np.searchsorted(p, t)
    dropped = len(p) - at
    curves["threshold"] = {
        "t": t,
        "dropped": dropped,
        "wrong_kept": total[at],
        "right_lost": dropped - (total[-1] - total[at]),
    }
    curves["reliability"] = []
    return curves
