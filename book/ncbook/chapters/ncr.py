"""Figures and tables of the chapter on NCR."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from ncbook import printed, recorded, show
from ncbook.chapters.common import Finished
from nclib import Record, losses, noise, plots
from nclib.methods.ncr import predicted_correspondence, rectified_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas.io.formats.style import Styler


def printed_by_protocol() -> Styler:
    """Show the rSum of NCR on Flickr30K as two later papers print it, for the two noise protocols."""
    parts: dict[tuple[str, str, str], dict[str, float]] = {}
    for paper, number, kind in (("L2RM", "6", "images"), ("REPAIR", "I", "captions, most likely")):
        table = printed("retrieval", paper=paper, table=number, dataset="Flickr30K", metric="rsum")
        table = table[table["method"].isin(["SGR", "NCR"])]
        for (method, rate), value in table.groupby(["method", "noise_rate"])["value"].first().items():
            parts.setdefault((paper, kind, method), {})[rate] = float(value)
    cells = pd.DataFrame(parts).T
    cells = cells[sorted(cells.columns)]
    cells.index.names, cells.columns.name = ["printed in", "what is moved", "method"], "mismatch rate"
    caption = "Printed in other papers; nothing here was measured."
    return show(cells, "printed", caption, digits=1, missing="")


def label_and_margin() -> Figure:
    """Draw the rectified label of a clean pair over posterior and prediction, and the soft margins."""
    figure, ((left, right),) = plots.panels(1, 2)
    grid = torch.linspace(0, 1, 101)
    label = rectified_label(grid[None], grid[:, None])
    drawn = left.contourf(grid, grid, label, levels=np.linspace(0, 1, 11), cmap="cividis")
    figure.colorbar(drawn, ax=left, label="rectified label")
    left.set(
        xlabel="posterior w (the peer's division)",
        ylabel="prediction P (own network)",
        title="Label of a clean pair",
    )
    left.axvspan(0, 0.5, facecolor="none", edgecolor="white", hatch="//", lw=0)
    left.text(
        0.25, 0.5, "noisy:\nmean of both P", ha="center", va="center", backgroundcolor="white", fontsize=9
    )
    looks = {
        "exponential": ("-", plots.MATCHED),
        "linear": ("--", plots.MISMATCHED),
        "sine": (":", plots.ACCENT),
    }
    for kind, (style, colour) in looks.items():
        right.plot(grid, losses.soft_margins(grid, kind=kind), style, color=colour, label=kind)
    right.set(xlabel="rectified label", ylabel="margin", title="Soft margin")
    right.legend()
    return figure


def entering(record: Record) -> None:
    """Print validation rSum before and after the noisy pairs enter training."""
    training = [row for row in record.curves if row["phase"] == "training"]
    first = next((row["epoch"] for row in training if "loss_noisy" in row), None)
    before = [row["val_rsum"] for row in training if first is not None and row["epoch"] < first]
    after = [row["val_rsum"] for row in training if first is not None and row["epoch"] >= first]
    if before and after:
        print(f"validation rSum before the noisy pairs entered (epoch {first}): {before[-1]:.1f}")
        print(f"after the first epoch with them: {after[0]:.1f}; best with them: {max(after):.1f}")
    else:
        print("this run has no epoch on either side of the switch")


def labels(run: Finished) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return which pairs both networks call clean, and noisy, with their rectified labels.

    Parameters
    ----------
    run : Finished

    Returns
    -------
    dict
        Name to (chosen, label): bool (N,) and float (N,); empty where the last epoch kept no division.
    """
    last, options = run.last, run.options
    if "p_clean" not in last:
        return {}
    predicted = run.trainer.each_pair(
        lambda batch: torch.stack(
            [predicted_correspondence(run.trainer.similarity(batch, k), options["margin"]) for k in (0, 1)], 1
        )
    )
    w = np.stack([last["p_clean"], last["p_clean_b"]], axis=1)
    clean = rectified_label(torch.from_numpy(w[:, 1]), predicted[:, 0])
    return {
        "called clean": ((w > options["threshold"]).all(1), clean.numpy()),
        "called noisy": ((w <= options["threshold"]).all(1), predicted.numpy().mean(1)),
    }


def label_histograms(run: Finished) -> Figure | None:
    """Draw the rectified labels of the last division, by truth."""
    found = labels(run)
    if not found:
        return None
    figure, (axes,) = plots.panels(1, 2)
    for axis, (name, (chosen, label)) in zip(axes, found.items(), strict=True):
        plots.by_truth(axis, label[chosen], run.matched[chosen], np.linspace(0, 1, 26), "% of all")
        axis.set(xlabel="rectified label", title=f"Pairs {name} by both")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("% of these pairs")
    return figure


def label_table(run: Finished) -> Styler | None:
    """Show how well the rectified labels of the last division tell matched from mismatched pairs."""
    matched, columns = run.matched, {}
    for name, (chosen, label) in labels(run).items():
        if chosen.any():
            right, wrong = label[chosen & matched], label[chosen & ~matched]
            columns[name] = {
                "pairs": f"{chosen.sum():,}",
                "really matched": f"{matched[chosen].mean():.3f}",
                "AUC of the label": f"{noise.auc(label[chosen], matched[chosen]):.3f}",
                "mean label, really matched": f"{right.mean():.3f}" if len(right) else "–",
                "mean label, really mismatched": f"{wrong.mean():.3f}" if len(wrong) else "–",
            }
    if not columns:
        return None
    caption = "Against the truth; the AUC compares the pairs of its column only"
    return show(pd.DataFrame(columns), "labels", caption)


def switch_table() -> Styler | None:
    """Show validation rSum of the recorded runs around the epoch in which noisy pairs enter."""
    runs, rows = recorded(dataset="emoji", method="ncr", preset="quick"), []
    for _, run in runs.iterrows():
        values = [row["val_rsum"] for row in Record.load(run["path"]).curves if row["phase"] == "training"]
        start = int(run["epochs"]) // 2
        if 0 < start < len(values):
            numbers = {
                "last without": values[start - 1],
                "first with": values[start],
                "last epoch": values[-1],
            }
            where = {"model": run["model"], "protocol": run["protocol"], "mismatch rate": run["mrate"]}
            rows.append({**where, **numbers, "tested epoch": run["best_epoch"], "AUC at the end": run["auc"]})
    if not rows:
        return None
    by = pd.DataFrame(rows).groupby(["model", "protocol", "mismatch rate"])
    caption = "Measured, preset quick: validation rSum around the switch, mean over the seeds"
    table = show(by.mean().assign(seeds=by.size()), "switch", caption, digits=1)
    return table.format(precision=3, subset=["AUC at the end"])
