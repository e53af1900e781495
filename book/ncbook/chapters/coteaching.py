"""Figures and tables of the page on co-teaching: NCR, BiCro and MSCN."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import show
from ncbook.chapters import family
from ncbook.chapters.family import Views
from ncbook.demo import timed
from ncbook.papers import ONLY_PRINTED, printed, wide
from ncbook.training import Finished, say, training_epochs
from nclib import losses, methods, plots
from nclib.methods.ncr import predicted_correspondence, rectified_label
from nclib.methods.parts.meta import MetaPairs
from nclib.runs import load_record

# Diagnostics of the methods, and what the page calls them.
DIVIDED = {
    "auc": "division: AUC",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    "called_matched": "pairs called clean",
    "ece": "division: calibration error",
}
SEEN = {
    **DIVIDED,
    "anchor_precision": "anchors: really matched",
    "clean_label_auc": "labels of clean pairs: AUC",
    "clean_label_matched": "their mean, really matched",
    "clean_label_mismatched": "their mean, really mismatched",
    "label_auc": "labels of noisy pairs: AUC",
    "label_matched": "mean, really matched",
    "label_mismatched": "mean, really mismatched",
    "meta_auc": "meta set: AUC",
    "meta_loss": "meta set: loss after the look-ahead",
    "components_crossed": "networks whose components crossed, share",
}
BATCHES = 6  # timed; the first one warms up


@functools.lru_cache(maxsize=2)
def rectified_labels(run: Finished) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by name which pairs both networks of NCR call clean, and noisy, (N,), with labels, (N,)."""
    last, options = run.last, run.options
    if "p_clean" not in last:  # no mixture was fitted
        return {}
    predicted = run.trainer.each_pair(
        lambda batch: torch.stack(
            [predicted_correspondence(run.trainer.similarity(batch, k), options["margin"]) for k in (0, 1)], 1
        )
    )
    w = np.stack([last["p_clean"], last["p_clean_b"]], axis=1)
    clean = rectified_label(torch.from_numpy(w[:, 1]), predicted[:, 0])
    return {
        "clean by both": ((w > options["threshold"]).all(1), clean.numpy()),
        "noisy by both": ((w <= options["threshold"]).all(1), predicted.numpy().mean(1)),
    }


def anchored_labels(run: Finished) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by name which pairs BiCro's first network trained as clean, and as noisy, (N,), with labels."""
    labels = {kind: run.last.get(f"label_{kind}", np.empty(0)) for kind in ("clean", "noisy")}
    return {kind: (~np.isnan(y), y) for kind, y in labels.items() if np.isfinite(y).any()}


def label_histograms(run: Finished) -> Figure | None:
    """Draw the labels of NCR or BiCro after the last division, by truth."""
    found = rectified_labels(run) if run.record.settings["method"] == "ncr" else anchored_labels(run)
    if not found:
        return None
    figure, (axes,) = plots.panels(1, len(found), height=2.9)
    for axis, (name, (chosen, label)) in zip(axes, found.items(), strict=True):
        plots.by_truth(axis, label[chosen], run.matched[chosen], np.linspace(0, 1, 26), "% of all")
        axis.set(xlabel="soft label", title=f"Pairs called {name}")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("% of these pairs")
    return figure


def margins_said(run: Finished) -> Markdown:
    """Say how much of the margin NCR still asks of wrong pairs that both networks call clean."""
    chosen, label = rectified_labels(run).get("clean by both", (np.zeros(0, bool), np.zeros(0)))
    if not (wrong := chosen & ~run.matched[: len(chosen)]).any():
        return say("Both networks call no wrong pair clean.")
    given = losses.soft_margins(torch.from_numpy(label), 1.0, run.options["m"]).numpy()
    return say(
        f"Of the pairs that both networks call clean {wrong.sum() / chosen.sum():.0%} are wrong, and these "
        f"are still asked for {given[wrong].mean():.0%} of the full margin; right ones for "
        f"{given[chosen & run.matched].mean():.0%}."
    )


def validated() -> pd.DataFrame:
    """Return validation rSum of NCR's recorded runs on Flickr8K, epochs x (mismatch rate, seed)."""
    runs = family.rates(["ncr"])
    curves = {
        (run["mrate"], run["seed"]): training_epochs(load_record(run["path"]))["val_rsum"]
        for _, run in runs[runs["label"] == "ncr"].iterrows()
    }
    return pd.DataFrame(curves).rename_axis(columns=["rate", "seed"])


def switch_figure() -> Figure:
    """Draw validation rSum of NCR by epoch, a line per mismatch rate, as Fig. 1b of REPAIR."""
    means = validated().T.groupby("rate").mean().T
    figure, ((axis,),) = plots.panels(1, 1, width=6.4, height=3.2)
    for rate, colour in zip(means, sns.color_palette("viridis", means.shape[1]), strict=True):
        axis.plot(means.index, means[rate], color=colour, marker="o", ms=4, label=f"rate {rate:g}")
    axis.axvline(means.index[len(means) // 2] - 0.5, color=plots.NEUTRAL, ls=":")
    axis.set(xlabel="epoch (dotted: the noisy loss begins)", ylabel="validation rSum", title="NCR, Flickr8K")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def switch_said() -> Markdown:
    """Say in how many recorded runs validation falls in the first epoch with noisy pairs."""
    curves = validated()
    half = len(curves) // 2
    fell = curves.iloc[half] < curves.iloc[half - 1]
    by_rate = ", ".join(f"{part.sum()} of {len(part)} at {rate:g}" for rate, part in fell.groupby("rate"))
    return say(f"Validation falls in that epoch in {fell.sum()} of {len(fell)} runs: {by_rate}.")


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


def scores(run: Finished) -> Figure | None:
    """Draw the scores of MSCN's meta set and of its training pairs at the last division."""
    arrays = run.last
    if "density" not in arrays:
        return None
    figure, ((left, right),) = plots.panels(1, 2, height=2.9)
    meta = (
        (arrays["meta_matched"], plots.MATCHED, "", "known matches"),
        (arrays["meta_mismatched"], plots.MISMATCHED, "///", "random mismatches"),
    )
    plots.histograms(left, meta, np.linspace(0, 1, 31))
    plots.by_truth(right, arrays["loss"], run.matched, np.linspace(0, 1, 61))
    at, high, low = arrays["density"].T
    right.plot(at, high, color=plots.MATCHED, label="component of the matches")
    right.plot(at, low, "--", color=plots.MISMATCHED, label="component of the mismatches")
    limit = np.histogram(arrays["loss"], 60, (0, 1), density=True)[0].max()
    left.set(xlabel="score", ylabel="density", title="meta set")
    right.set(xlabel="score", ylim=(0, 1.4 * limit), xlim=(0, 1), title="training pairs")
    for axis in (left, right):
        axis.legend(fontsize=8, loc="upper left")
    return figure


def look_ahead_cost(run: Finished) -> Styler:
    """Show the time of the look-ahead step, exact and by differences, timed with the run."""
    found = timed(run.record, "look-ahead", lambda: _look_ahead_cost(run))
    what = f"batches of {found['size']}, model {run.record.settings['model']}"
    caption = f"Measured: {what}, median of {BATCHES - 1} batches"
    return show(pd.DataFrame(found["rows"]).T, "cost", caption)


def _look_ahead_cost(run: Finished) -> dict[str, Any]:
    """Time the look-ahead step, exact and by differences, and compare their gradients; no weight changes."""
    trainer, settings = run.trainer, run.record.settings
    network = trainer.networks[0].train()
    method: Any = methods.build("mscn", **settings["method_options"])
    method.meta_loss, trainer.epoch = [[], []], run.record.best_epoch
    before = {k: v.clone() for k, v in network.state_dict().items()}
    weights = list(network.get_submodule("meta").parameters())
    size = max(2, trainer.batch_size // 2)
    batches = [trainer.batch(torch.arange(size) + k * size) for k in range(BATCHES)]
    meta = MetaPairs(trainer).batches(size)
    pairs = [next(meta) for _ in batches]

    def clock(work: Callable[[Any, Any], Any]) -> float:
        seconds = []
        for batch, pair in zip(batches, pairs, strict=True):
            started = time.perf_counter()
            work(batch, pair)
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        return float(np.median(seconds[1:]))

    def main_step(batch: Any, pair: Any) -> None:
        method._loss(trainer.similarity(batch)).backward()
        network.zero_grad()

    threads = torch.get_num_threads()
    torch.set_num_threads(settings["threads"] or threads)
    plain, rows, found = clock(main_step), {}, {}
    for kind in ("exact", "difference"):
        kept: list[Tensor] = []  # an optimiser that keeps the gradient and takes no step
        method.meta_optimizers = [
            SimpleNamespace(
                step=lambda kept=kept: kept.append(torch.cat([w.grad.flatten() for w in weights])),
                zero_grad=lambda set_to_none: network.zero_grad(),
            )
        ]
        method.options = type(method.options)(**{**settings["method_options"], "lookahead": kind})
        spent = clock(lambda batch, pair: method.meta_step(trainer, batch, *pair))
        found[kind] = torch.stack(kept)
        apart = (found[kind] - found["exact"]).norm() / found["exact"].norm()
        rows[kind] = {
            "model's step, ms": f"{1e3 * plain:.1f}",
            "look-ahead, ms": f"{1e3 * spent:.1f}",
            "look-ahead's share": f"{spent / (spent + plain):.0%}",
            "gradient, relative distance to exact": f"{float(apart):.1e}",
        }
    torch.set_num_threads(threads)
    network.load_state_dict(before)
    return {"size": size, "rows": rows}


VIEWS: Views = {"ncr": (label_histograms,), "bicro": (label_histograms,), "mscn": (scores, look_ahead_cost)}
"""What the page shows of a run of each method."""
