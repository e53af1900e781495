"""Figures and tables of the chapter on NCR."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import chapters, recorded, show
from ncbook.chapters import ONLY_PRINTED, Finished, say, training, wide
from ncbook.papers import printed
from ncbook.schematic import Schematic, Sketch
from nclib import losses, noise, plots
from nclib.methods.ncr import predicted_correspondence, rectified_label
from nclib.runs import load_record
from nclib.runs.noisy_pairs import NoisyPairs

MARGIN = 0.2  # alpha of the paper
SWITCH = ["model", "protocol", "mismatch rate"]


def problem(pairs: NoisyPairs, seed: int) -> Figure | None:
    """Draw two right and two wrong pairs with the margin that plain training asks of each."""
    rows = np.concatenate([chapters.some_pairs(pairs, flag, 2, seed) for flag in (True, False)])
    return chapters.drawn_pairs(pairs, rows.tolist(), [f"margin asked: {MARGIN:g}"] * len(rows))


def exchange() -> Sketch:
    """Draw two networks, each of which trains on the division that the other one made."""
    sketch = Sketch(
        "Networks A and B; the division made by A trains B, and the division by B trains A.", 290, 200
    )
    for x, name, other in ((30, "A", "B"), (190, "B", "A")):
        sketch.box(x, 20, 70, 40, words=f"network {name}", colour="match", opacity=0.12)
        sketch.box(x - 15, 130, 50, 34, words="clean", colour="match", opacity=0.3)
        sketch.box(x + 38, 130, 50, 34, words="noisy", colour="mismatch", opacity=0.2, hatched=True, size=12)
        sketch.text(x + 36, 182, f"divided by {name}, trains {other}", size=11.5, colour="soft")
    sketch.line([(52, 60), (52, 126)])
    sketch.line([(238, 60), (238, 126)])
    sketch.line([(80, 126), (195, 64)], colour="match")
    sketch.line([(210, 126), (95, 64)], colour="match", dashed=True)
    return sketch


def idea() -> Schematic:
    """Draw the method in four panels; labels and margins are computed by the package's functions."""
    split = Sketch(
        "Losses of all pairs as two Gaussian humps; the posterior w falls with the loss.", 290, 200
    )
    x = np.linspace(0, 1, 60)
    humps = [np.exp(-(((x - centre) / width) ** 2) / 2) for centre, width in ((0.25, 0.11), (0.65, 0.15))]
    for hump, colour, dashed in zip(humps, ("match", "mismatch"), (False, True), strict=True):
        points = [(20 + 250 * a, 160 - 100 * b) for a, b in zip(x, hump, strict=True)]
        split.line(points, colour=colour, arrow=False, dashed=dashed, weight=2)
    posterior = [
        (20 + 250 * a, 160 - 130 * b) for a, b in zip(x, humps[0] / (humps[0] + humps[1]), strict=True)
    ]
    split.line(posterior, colour="ink", arrow=False)
    split.line([(20, 160), (275, 160)])
    split.text(60, 24, "posterior w", anchor="start")
    split.text(148, 182, "loss of the pair", colour="soft")

    label = Sketch("Bars: posterior, prediction, and the label made of both.", 290, 200)
    w, prediction = torch.tensor([0.55]), torch.tensor([0.8])
    y = float(rectified_label(w, prediction))
    values = (float(w), float(prediction), y)
    label.bars(60, 150, values, colours=("match", "soft", "ink"), height=115, width=42, gap=24, top=1,
               names=("w", "P", "label"))  # fmt: skip
    for k, value in enumerate(values):
        label.text(81 + 66 * k, 144 - 115 * value, f"{value:.2f}")
    label.text(148, 185, "w + (1 − w) P", colour="soft")

    margin = Sketch(
        "Similarity of a pair above its strongest rival: wide margin for a sure pair, narrow else.", 290, 200
    )
    for top, sure in ((30, 1.0), (115, 0.5)):
        wide = 600 * float(losses.soft_margins(torch.tensor([sure]))[0])
        margin.line([(20, top + 40), (275, top + 40)])
        margin.dot(110, top + 40, colour="mismatch", hollow=True)
        margin.dot(110 + wide, top + 40, colour="match")
        margin.box(110, top + 18, wide, 14, colour="match", opacity=0.3)
        margin.text(20, top + 10, f"label {sure:g}: margin {wide / 600:.3f}", anchor="start")
        margin.text(110, top + 62, "rival", colour="mismatch", size=12)
        margin.text(max(110 + wide, 150), top + 62, "pair", colour="match", size=12)
    titles = ("Divide by the losses", "Exchange the divisions", "Correct the label", "Ask for a soft margin")
    words = (
        "A mixture of two Gaussians on the losses gives every pair a probability w of being clean.",
        "Each network trains on the division that the other one made, so its own mistakes are not confirmed.",
        "The network's own prediction P raises the label of a clean pair; a noisy pair is judged by P "
        "of both.",
        "A sure pair must beat its strongest rival by the full margin, a doubtful one by much less.",
    )
    return Schematic.of(titles, (split, exchange(), label, margin), words)


def labels_said(run: Finished) -> Markdown:
    """Say what the rectified labels of the last division give to wrong pairs."""
    found = labels(run)
    if "called clean" not in found or not found["called clean"][0].any():
        return say("The last epoch kept no division.")
    chosen, label = found["called clean"]
    wrong = chosen & ~run.matched
    share = wrong.sum() / chosen.sum()
    base, margin = run.options["m"], run.options["margin"]
    given = losses.soft_margins(torch.from_numpy(label), margin, base).numpy()
    return say(
        f"Of the pairs that both networks call clean {share:.0%} are wrong.",
        f"Their labels still ask for {given[wrong].mean() / margin:.0%} of the full margin on average, "
        f"against {given[chosen & run.matched].mean() / margin:.0%} for right pairs."
        if wrong.any()
        else "",
    )


def switch_said() -> Markdown:
    """Say how validation changes in the recorded runs when the noisy pairs enter."""
    rows = _around_the_switch()
    if rows.empty:
        return say("There are no recorded runs of NCR here.")
    fall = rows[rows["first with"] < rows["last without"]]
    early = rows["tested epoch"] <= rows["switch"]
    return say(
        f"Validation falls in the first epoch with noisy pairs in {len(fall)} of {len(rows)} recorded runs, "
        f"and {int(early.sum())} of them are tested at an epoch before it."
    )


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
    kinds, colours = ("exponential", "linear", "sine"), (plots.ACCENT, plots.THIRD, plots.IMAGES)
    for kind, style, colour in zip(kinds, ("-", "--", ":"), colours, strict=True):
        right.plot(grid, losses.soft_margins(grid, kind=kind), style, color=colour, label=kind)
    right.set(xlabel="rectified label", ylabel="margin", title="Soft margin")
    right.legend()
    return figure


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


def _around_the_switch() -> pd.DataFrame:
    """Return validation rSum of the recorded runs around the epoch in which noisy pairs enter."""
    runs, rows = recorded(dataset="emoji", method="ncr", preset="quick"), []
    runs = chapters.as_preset(runs) if len(runs) else runs
    for _, run in runs.rename(columns={"mrate": "mismatch rate"}).iterrows():
        values = training(load_record(run["path"]))["val_rsum"].tolist()
        start = int(run["epochs"]) // 2
        if 0 < start < len(values):
            around = {"last without": values[start - 1], "first with": values[start]}
            end = {"last epoch": values[-1], "tested epoch": run["best_epoch"], "AUC at the end": run["auc"]}
            rows.append({**run[SWITCH], **around, **end, "switch": int(run["warmup_epochs"]) + start})
    return pd.DataFrame(rows)


def switch_table() -> Styler | None:
    """Show validation rSum of the recorded runs around the epoch in which noisy pairs enter."""
    rows = _around_the_switch()
    if rows.empty:
        return None
    by = rows.drop(columns="switch").groupby(SWITCH)
    caption = "Measured, preset quick: validation rSum around the switch, mean over the seeds"
    shown = show(by.mean().assign(seeds=by.size()), "switch", caption, digits=1, missing="–")
    return shown.format(precision=3, na_rep="–", subset=["AUC at the end"])


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
            pd.DataFrame(load_record(path).curves).set_index("epoch")["val_rsum"] for path in part["path"]
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
