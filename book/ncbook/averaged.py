"""Two networks that teach each other, beside two that were trained apart and averaged."""

from __future__ import annotations

from typing import Any

from ncbook.board import AVERAGED, REAL, TWO, is_marked, scored
from ncbook.compare import Difference, paired
from ncbook.runs import Runs, select

GCE = "plain (gce)"
OF = {  # what a method with two networks trains with, as a label of the board
    "ncr": "plain (triplet)",
    "bicro": "plain (triplet)",
    "mscn": "plain (triplet)",
    "repair": "plain (triplet)",
    "pcsr": "plain (triplet)",
    "sps": "plain (infonce)",
    "cream": "plain (infonce)",
    "in2r": "plain (infonce_rce)",
    "gsc_plus": "gsc",
    "crank_plus": "crank",
}
RATES = (0.0, 0.4, 0.6)
PLACES: dict[str, dict[str, Any]] = {
    **{dataset: {"dataset": dataset, **where} for dataset, where in REAL["pairs"].items()},
    "emoji": {"dataset": "emoji", "preset": "quick", "model": "vse", "protocol": "images"},
}
"""Where both kinds of pairs are recorded, by data set."""


def against_averaged(runs: Runs, dataset: str, rate: float) -> dict[str, tuple[Difference, Difference]]:
    """Return each method with two networks minus the averaged pair of its own loss, and minus that of GCE.

    Parameters
    ----------
    runs : Runs
        From :func:`ncbook.load_runs`.
    dataset : str
        One of :data:`PLACES`.
    rate : float
        Share of the images that were exchanged.

    Returns
    -------
    dict
        By method, in the order of :data:`OF`; over shared seeds, which draw the same noise. Without values
        where a side is not recorded or not ranked.
    """
    part = select(scored(runs), **PLACES[dataset], networks=TWO, rate=float(rate))
    part = part[~is_marked(part)] if len(part) else part

    def minus(method: str, label: str) -> Difference:
        pair = part[part["label"] == label + AVERAGED]
        return paired(part[part["label"] == method], pair, "value", name=method)

    return {method: (minus(method, own), minus(method, GCE)) for method, own in OF.items()}
