"""Figures and tables of the chapter on NCR."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import printed, recorded, show
from ncbook.chapters import ONLY_PRINTED, Finished, training, wide
from nclib import Record, losses, noise, plots
from nclib.methods.ncr import predicted_correspondence, rectified_label


def printed_by_protocol() -> Styler:
    """Show the rSum of NCR on Flickr30K as two later papers print it, for the two noise protocols."""
    parts, names = [], ["printed in", "what is moved", "method"]
    for paper, number, kind in (("L2RM", "6", "images"), ("REPAIR", "I", "captions, most likely")):
        rows = printed("retrieval", paper=paper, table=number, dataset="Flickr30K", metric="rsum")
        rows = rows[rows["method"].isin(["SGR", "NCR"])].drop_duplicates(["method", "noise_rate"])
        parts.append(rows.assign(**{"printed in": paper, "what is moved": kind}))
    cells = wide(pd.concat(parts), names, "noise_rate").sort_index().sort_index(axis=1)
    cells = cells.rename_axis(columns="mismatch rate")
    return show(cells, "printed", f"Printed in other papers; {ONLY_PRINTED}", digits=1, missing="")


def label_and_margin() -> Figure:
    """Draw the rectified label of a clean pair over posterior and prediction, and the soft margins."""
    figure, ((left, right),) = plots.panels(1, 2)
    grid = torch.linspace(0, 1, 101)
    label = rectified_label(grid[None], grid[:, None])
    drawn = left.contourf(grid, grid, label, levels=np.linspace(0, 1, 11), cmap="cividis")
    figure.colorbar(drawn, ax=left, label="rectified label")
    left.set(xlabel="posterior w (the peer's division)", ylabel="prediction P (own network)")
    left.set_title("Label of a clean pair")
    left.axvspan(0, 0.5, facecolor="none", edgecolor="white", hatch="//", lw=0)
    centred = {"ha": "center", "va": "center", "fontsize": 9}
    left.text(0.25, 0.5, "noisy:\nmean of both P", backgroundcolor="white", **centred)
    kinds, colours = ("exponential", "linear", "sine"), (plots.MATCHED, plots.MISMATCHED, plots.ACCENT)
    for kind, style, colour in zip(kinds, ("-", "--", ":"), colours, strict=True):
        right.plot(grid, losses.soft_margins(grid, kind=kind), style, color=colour, label=kind)
    right.set(xlabel="rectified label", ylabel="margin", title="Soft margin")
    right.legend()
    return figure


def entering(record: Record) -> None:
    """Print validation rSum before and after the noisy pairs enter training."""
    rows = [row for row in record.curves if row["phase"] == "training"]
    start = next((i for i, row in enumerate(rows) if "loss_noisy" in row), 0)
    before, after = ([row["val_rsum"] for row in part] for part in (rows[:start], rows[start:]))
    if before and after:
        first = rows[start]["epoch"]
        print(f"validation rSum before the noisy pairs entered (epoch {first}): {before[-1]:.1f}")
        print(f"after the first epoch with them: {after[0]:.1f}; best with them: {max(after):.1f}")
    else:
        print("this run has no epoch on either side of the switch")


def labels(run: Finished) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return which pairs both networks call clean, and noisy, bool (N,), with rectified labels, float (N,).

    Empty where the last epoch kept no division.
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
    runs, keys = (
        recorded(dataset="emoji", method="ncr", preset="quick"),
        ["model", "protocol", "mismatch rate"],
    )
    rows = []
    for _, run in runs.rename(columns={"mrate": "mismatch rate"}).iterrows():
        values = training(Record.load(run["path"]))["val_rsum"].tolist()
        start = int(run["epochs"]) // 2
        if 0 < start < len(values):
            around = {"last without": values[start - 1], "first with": values[start]}
            end = {"last epoch": values[-1], "tested epoch": run["best_epoch"], "AUC at the end": run["auc"]}
            rows.append({**run[keys], **around, **end})
    if not rows:
        return None
    by = pd.DataFrame(rows).groupby(keys)
    caption = "Measured, preset quick: validation rSum around the switch, mean over the seeds"
    shown = show(by.mean().assign(seeds=by.size()), "switch", caption, digits=1, missing="–")
    shown = shown.format(precision=3, na_rep="–", subset=["AUC at the end"])
    return shown.format_index("{:g}", level="mismatch rate")


def switch_figure() -> Figure | None:
    """Draw validation rSum by epoch, a line per mismatch rate, with the beginning of the noisy loss.

    The counterpart of REPAIR's Fig. 1b: on photographs where runs on them are recorded, else on the drawings.
    """
    places = (("f8k", "standard", "bow"), ("emoji", "quick", "vse"))
    found = (recorded(method="ncr", dataset=d, preset=p, model=m, protocol="images") for d, p, m in places)
    runs = next((table for table in found if len(table)), None)
    if runs is None:
        return None
    figure, ((axis,),) = plots.panels(1, 1, width=6.4, height=3.6)
    levels = sorted(set(runs["mrate"]))
    for colour, rate in zip(sns.color_palette("viridis", len(levels)), levels, strict=True):
        part = runs[runs["mrate"] == rate]
        curves = [
            pd.DataFrame(Record.load(path).curves).set_index("epoch")["val_rsum"] for path in part["path"]
        ]
        mean = pd.concat(curves, axis=1).mean(axis=1)
        axis.plot(mean.index, mean, color=colour, marker="o", ms=4)
        axis.annotate(
            f"rate {rate:g}", (mean.index[-1], mean.iloc[-1]), (6, 0), textcoords="offset points", va="center"
        )
    row = runs.iloc[0]
    switch = int(row["warmup_epochs"]) + int(row["epochs"]) // 2
    axis.axvspan(0.5, row["warmup_epochs"] + 0.5, color=plots.NEUTRAL, alpha=0.15, lw=0)
    axis.axvline(switch + 0.5, color=plots.NEUTRAL, ls=":")
    seeds = runs.groupby("mrate")["seed"].nunique()
    many = f"{seeds.min()} to {seeds.max()}" if seeds.nunique() > 1 else f"{seeds.iloc[0]}"
    axis.set(
        xlabel="epoch (shaded: warm-up; dotted: the noisy loss begins)",
        ylabel="validation rSum",
        title=f"NCR, {row['dataset']}, {row['model']}, {row['preset']}; mean of {many} seeds",
        xlim=(0.5, len(mean) + 2),
    )
    return figure
