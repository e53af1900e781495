"""Two networks that teach each other, beside two that were trained apart and averaged."""

from __future__ import annotations

from typing import Any

from ncbook.board import AVERAGED, REAL, TWO, is_marked, scored
from ncbook.compare import Difference, paired
from ncbook.runs import Runs, select
from ncbook.statistics import judged

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


def standing(
    runs: Runs, dataset: str = "f8k", rate: float = 0.6, *, gce: bool = True
) -> dict[str, list[str]]:
    """Return the methods with two networks that are above an averaged pair, level with it, and below.

    Parameters
    ----------
    runs, dataset, rate
        As for :func:`against_averaged`.
    gce : bool
        Beside the pair of GCE, or beside that of the method's own loss.

    Returns
    -------
    dict
        Methods by ``above``, ``level`` and ``below``, by the rule of :mod:`ncbook.statistics`, and
        ``fewer than three seeds``.
    """
    groups: dict[str, list[str]] = {"above": [], "level": [], "below": [], "fewer than three seeds": []}
    verdicts = judged({m: both[gce] for m, both in against_averaged(runs, dataset, rate).items()})
    for method, one in verdicts.items():
        groups[one.sign.replace("not judged", "fewer than three seeds")].append(method)
    return groups
