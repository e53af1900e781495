"""Figures and tables of the chapter on L2RM."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import recorded, show
from ncbook.chapters import Finished, labelled
from nclib import Record, plots

SPLIT = (
    *("auc", "division_precision", "division_recall", "rematch_precision"),
    *("rematch_relevance", "best_relevance", "given_relevance", "chance_relevance"),
)


def rematched_examples(run: Finished, seed: int) -> Figure | None:
    """Draw rematched pairs: the four with the largest share, and four drawn with a seed."""
    last, split = run.last, run.trainer.pairs.split
    if "rematch_mass" not in last or not split.has_pictures:
        return None
    moved = np.flatnonzero(last["rematch_mass"] > 0.5)
    best = moved[np.argsort(-last["rematch_share"][moved], kind="stable")[:4]]
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(moved, best))[:4]
    rows = np.concatenate([best, rest])
    if not len(rows):
        return None
    pair, new = last["rematch_image"][rows], last["rematch_caption"][rows]
    pictures, lines = run.image_of[pair], []
    for p, n, picture, share in zip(pair, new, pictures, last["rematch_share"][rows], strict=True):
        true = 100 * split.relevance([picture], [n])[0, 0]
        given = ("✗ " + split.captions.text(p), plots.MISMATCHED)
        found = ("➜ " + split.captions.text(n), plots.MATCHED)
        lines.append([given, found, (f"share {share:.2f}, {true:.0f} % of it true", "#222222")])
    return plots.captioned_pictures(split, pictures, lines)


def longer_runs() -> pd.DataFrame:
    """Return the recorded runs of ten training epochs on SAF at rate 0.6."""
    runs = recorded(preset="quick", model="saf", dataset="emoji", protocol="images", epochs=10, mrate=0.6)
    return runs if runs.empty else labelled(runs)


def longer_curves(runs: pd.DataFrame) -> Figure | None:
    """Draw the learning curves of one longer run per method."""
    if runs.empty:
        return None
    first = runs.sort_values(["label", "seed"]).drop_duplicates("label").set_index("label")["path"]
    return plots.learning_curves({label: Record.load(path) for label, path in first.items()})


def longer_table(runs: pd.DataFrame) -> Styler | None:
    """Show test rSum of the longer runs."""
    if runs.empty:
        return None
    columns = {"rsum": ["mean", "min", "max", "count"], "best_epoch": ["mean"]}
    table = runs.groupby("label").agg(columns).rename_axis(index=None)
    table.columns = ["test rSum, mean", "lowest", "highest", "seeds", "best epoch, mean"]
    caption = "Measured, preset quick with 2 + 10 epochs, mismatch rate 0.6, otherwise as above"
    return show(table, "longer", caption, digits=1)
