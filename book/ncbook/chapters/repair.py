"""Figures and tables of the chapter on REPAIR."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

import nclib
from ncbook import recorded, show, training
from ncbook.chapters import gains
from ncbook.measurements import made, measurement
from ncbook.papers import printed
from ncbook.training import Finished, kind_of_pair, say, training_epochs
from nclib import Record, plots
from nclib.methods.parts.bank import FeatureBank
from nclib.methods.parts.replacing import relevance_of
from nclib.models import CaptionEncoding, ImageEncoding
from nclib.noise import bank_distances, max_ranks, rank_correlation
from nclib.runs import load_record
from nclib.runs.noisy_pairs import NoisyPairs

SEEN = {
    "auc": "AUC of the division (losses)",
    "rc_auc": "AUC of the rank correlation",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    "ece": "division: calibration error",
    "replaced": "pairs half-replaced",
    "replaced_precision": "of them really mismatched",
    "replaced_label": "mean label of the new pairs",
    "old_relevance": "relevance before replacing",
    "new_relevance": "relevance after replacing",
    "bank_mb": "banks of both networks, MB",
}
SWEPT = ("eta", "variant", "replace", "tau", "bank_size")
CASE = ["model", "protocol", "mrate", "epochs"]
CASE_NAMES = ["model", "noise", "mismatch rate", "epochs"]
DRAWN = 4000  # half-replaced pairs whose relevance is drawn

# Eight entries of a bank on a circle, and the angles of picture and caption of two pairs.
BANK = torch.stack(
    [torch.arange(8.0).mul(torch.pi / 4).cos(), torch.arange(8.0).mul(torch.pi / 4).sin()], dim=1
)
QUERIES = {"matched": (0.1, 0.3), "mismatched": (0.1, 1.8)}


def drawn_ranks(name: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the ranks of the bank's entries by image and by caption for a pair of :data:`QUERIES`."""
    places = [torch.tensor([[math.cos(angle), math.sin(angle)]]) for angle in QUERIES[name]]
    distances = [bank_distances(place, BANK) for place in places]
    by_image, by_text = (max_ranks(d)[0].numpy() for d in distances)
    return by_image, by_text, float(rank_correlation(*distances)[0])


def problem(pairs: NoisyPairs, seed: int) -> Figure | None:
    """Draw wrong pairs, each of which has a usable picture and a usable caption."""
    rows = training.some_pairs(pairs, False, 4, seed)
    return training.drawn_pairs(pairs, rows.tolist(), ["both halves are real, only not together"] * len(rows))


def seen_said(run: Finished) -> Markdown:
    """Say whether losses or ranks know more of the truth, and how the two change over the epochs."""
    curve = training_epochs(run.record)
    if "rc_auc" not in curve or not np.isfinite(float(curve["rc_auc"].iloc[-1])):
        return say("This variant makes no rank correlations, or the truth of these pairs is not known.")
    first, last = curve.iloc[0], curve.iloc[-1]
    both = {"rank correlation": "rc_auc", "losses": "auc"}
    changes = [f"that of the {name} from {first[key]:.2f} to {last[key]:.2f}" for name, key in both.items()]
    better = max(both, key=lambda name: last[both[name]])
    corre = run.last["correlation"]
    means = [corre[run.matched == flag].mean() for flag in (True, False)]
    return say(
        f"From the first to the last division the AUC changes: {' and '.join(changes)}.",
        f"At the end the {better} know{'s' if better == 'rank correlation' else ''} more.",
        f"Mean correlation is {means[0]:.2f} for matched pairs and {means[1]:.2f} for mismatched ones.",
    )


def replaced_said(run: Finished) -> Markdown:
    """Say how true the pairs are before and after half-replacing."""
    last = training_epochs(run.record).iloc[-1]
    if "new_relevance" not in last or not np.isfinite(float(last["new_relevance"] or np.nan)):
        return say("Nothing was replaced in the last epoch, or these data cannot tell how true a caption is.")
    return say(
        f"In the last epoch {last['replaced']:,.0f} pairs were replaced by half; "
        f"{last['replaced_precision']:.0%} of them were really wrong. Of a caption's facts, a share of "
        f"{last['old_relevance']:.2f} held for its picture before and {last['new_relevance']:.2f} after."
    )


def ablation_said() -> Markdown:
    """Say which rows of the ablation do better or worse than the full method."""
    rows = _ablation_rows()
    gain = gains(rows, "rc+npr", CASE, "option.variant")
    better, worse = (
        [f"`{k[-1]}` at rate {k[2]:g} ({k[0]}, {k[1]})" for k in gain.index[found]]
        for found in (gain["largest gain"] < 0, gain["smallest gain"] > 0)
    )
    return say(
        f"Better than the full method with every seed: {', '.join(better)}." if better else "",
        f"Worse with every seed: {', '.join(worse)}." if worse else "",
        "The paper's rows rise from `hard` to `rc+npr`.",
    )


def _pairs_of_runs() -> Iterator[tuple[dict[str, Any], dict[str, Record]]]:
    """Yield recorded runs of REPAIR and NCR with equal settings, the longest first."""
    every = recorded(dataset="emoji", protocol="images")
    every = every[every["method"].isin(["repair", "ncr"])]
    keys = ["model", "mrate", "seed", "epochs", "warmup_epochs", "decay_every"]
    for key, part in every.sort_values("epochs", ascending=False).groupby(keys, sort=False):
        usual = part[(part["method"] == "ncr") | (part["option.variant"] == "rc+npr")]
        paths = usual.drop_duplicates("method").set_index("method")["path"]
        if {"ncr", "repair"} <= set(paths.index):
            yield dict(zip(keys, key, strict=True)), {k: load_record(v) for k, v in paths.items()}


def longer_runs() -> Figure:
    """Draw validation rSum of the longest recorded runs of REPAIR and NCR with the same settings."""
    key, runs = next(_pairs_of_runs())
    figure, ((axis,),) = plots.panels(1, 1, 7.0, 3.2)
    for name in ("repair", "ncr"):
        rows, (colour, mark) = pd.DataFrame(runs[name].curves), plots.METHOD_STYLES[name]
        axis.plot(rows["epoch"], rows["val_rsum"], marker=mark, ms=4, color=colour, label=name)
    enter = key["warmup_epochs"] + key["epochs"] // 2 + 0.5
    axis.axvline(enter, ls="--", color=plots.NEUTRAL, label="noisy pairs enter")
    axis.axvspan(0.5, key["warmup_epochs"] + 0.5, color="#f0f0f0", zorder=0)
    title = f"{key['model']}, rate {key['mrate']:g}, seed {key['seed']}"
    axis.set(xlabel="epoch", ylabel="rSum on validation", title=title)
    axis.legend()
    return figure


def correlations(run: Finished) -> Figure | None:
    """Draw the rank correlations by truth, in the first and the last epoch that has them."""
    return plots.pairs_by_epoch(
        run.kept, "correlation", run.matched, xlabel="rank correlation", bins=40, unit="% of kind"
    )


def soft_labels(run: Finished) -> Figure | None:
    """Draw the soft labels by truth, in the first and the last epoch that has them."""
    return plots.pairs_by_epoch(
        run.kept, "label", run.matched, xlabel="soft label", bins=30, unit="% of kind"
    )


def thresholds(run: Finished) -> Figure | None:
    """Draw accuracy, precision and recall of finding mismatched pairs over the threshold eta."""
    last, matched = run.last, run.matched
    if "p_clean" not in last or matched.all():
        return None
    worst = np.maximum(last["p_clean"], last["p_clean_b"])
    etas = np.linspace(0, 0.5, 51)[1:]
    chosen = worst < etas[:, None]  # (etas, N)
    right, found = (chosen & ~matched).sum(1), chosen.sum(1)
    measures = {
        "accuracy": ((chosen == ~matched).mean(1), "-", plots.ACCENT),
        "precision": (np.where(found, right / np.maximum(found, 1), np.nan), "--", plots.IMAGES),
        "recall": (right / (~matched).sum(), ":", plots.THIRD),
    }
    figure, ((axis,),) = plots.panels(1, 1, 7.0, 3.2)
    for name, (values, style, colour) in measures.items():
        axis.plot(etas, values, style, color=colour, label=name)
    axis.axvline(run.options["eta"], color=plots.NEUTRAL, lw=1)
    axis.set(xlabel="threshold eta", ylabel="share", ylim=(0, 1.02), title="Finding mismatched pairs")
    axis.legend()
    return figure


def _usual() -> dict[str, Any]:
    """Return the swept options as the preset quick has them, by column."""
    options = nclib.resolve("repair").method_options
    return {f"option.{k}": getattr(options, k) for k in SWEPT}


def _with_usual(every: pd.DataFrame, free: str) -> pd.DataFrame:
    """Return the runs in which every swept option but ``free`` is the preset's."""
    fixed = [every[c] == value for c, value in _usual().items() if c != free]
    return every[np.logical_and.reduce(fixed)]


def sweep_table() -> Styler:
    """Show recorded runs of REPAIR in which one option differs from the preset."""
    every = recorded(dataset="emoji", method="repair", preset="quick")
    sweeps = []
    for column in _usual():
        for key, group in _with_usual(every, column).groupby(CASE):
            if group[column].nunique() > 1:
                cells = group.groupby(column)["rsum"].agg(["mean", "std", "count"]).reset_index()
                cells.columns = ["value", "rSum, mean", "standard deviation", "seeds"]
                cells["value"] = [f"{v:g}" if isinstance(v, float) else v for v in cells["value"]]
                where = dict(zip(CASE_NAMES, key, strict=True))
                sweeps.append(cells.assign(option=column.removeprefix("option."), **where))
    table = pd.concat(sweeps).set_index([*CASE_NAMES, "option", "value"])
    caption = "Measured, preset quick: test rSum of REPAIR when one option changes"
    return show(table, "sweep", caption, digits=1, missing="–")


def _ablation_rows() -> pd.DataFrame:
    """Return the recorded runs of the ablation."""
    return _with_usual(recorded(dataset="emoji", method="repair", preset="quick"), "option.variant")


def ablation_table() -> Styler:
    """Show rSum of each row of the ablation minus that of the full method, same seeds."""
    own = gains(
        _ablation_rows(), "rc+npr", CASE, "option.variant"
    )  # of the full method: of the row it is the negative
    cells = own.mul([-1, 1, -1, -1, 1])[own["seeds"] > 1]
    cells = cells[["mean gain", "standard deviation", "largest gain", "smallest gain", "seeds"]]
    cells.index.names = [*CASE_NAMES, "row"]
    cells.columns = ["mean gain", "standard deviation", "least", "most", "seeds"]
    caption = "Measured, preset quick, same seeds: rSum of the row minus that of the full method (rc+npr)"
    return show(cells, "ablation-paired", caption, digits=1)


def examples(run: Finished, seed: int) -> Figure | None:
    """Draw pairs with their soft labels, and pairs before and after one half was replaced."""
    last, split = run.last, run.trainer.pairs.split
    if "label" not in last or not split.has_pictures:
        return None
    rng, matched, label, image_of = np.random.default_rng(seed), run.matched, last["label"], run.image_of

    def true(image: int, caption: int) -> str:
        return f"truth {100 * split.relevance([image], [caption])[0, 0]:.0f} %"

    order = rng.permutation(len(label))
    order = order[np.argsort(-label[order], kind="stable")]
    chosen = [*order[matched[order]][:2], *order[~matched[order]][:1], *order[~matched[order]][-1:]]
    pictures, lines = [], []
    for row in chosen:
        kind, colour = kind_of_pair(matched[row])
        head = (f"really {kind}, label {label[row]:.2f}", colour)
        pictures.append(image_of[row])
        lines.append([head, (split.captions.text(row), "#222222"), (true(image_of[row], row), "#444444")])
    if "replaced_pair" in last:
        swapped = np.flatnonzero(last["replaced_image"])
        _, unique = np.unique(last["replaced_pair"][swapped], return_index=True)
        for i in rng.permutation(swapped[unique])[:2]:
            pair, by = last["replaced_pair"][i], last["replaced_by"][i]
            bank = f"picture from the bank, label {last['replaced_label'][i]:.2f}"
            for p, head, text in (
                (pair, ("✗ the given pair", plots.MISMATCHED), split.captions.text(pair)),
                (by, (bank, plots.MATCHED), "➜ its caption there: " + split.captions.text(by)),
            ):
                pictures.append(image_of[p])
                lines.append([head, (text, "#222222"), (true(image_of[p], pair), "#444444")])
    return plots.captioned_pictures(split, pictures, lines)


def relevance_of_replaced(run: Finished) -> Figure | None:
    """Draw how true the captions of half-replaced pairs are, before and after."""
    last, truth = run.last, run.trainer.pairs.truth()
    if "replaced_pair" not in last or truth.relevance is None:
        return None
    figure, (axes,) = plots.panels(1, 2, height=3.0, sharey=True)
    for axis, side, title in zip(axes, (True, False), ("Picture replaced", "Caption replaced"), strict=True):
        rows = np.flatnonzero(last["replaced_image"] == side)[:DRAWN]
        axis.set(title=title if len(rows) else f"{title}: none")
        if len(rows):
            pair, by = (torch.as_tensor(last[name][rows]) for name in ("replaced_pair", "replaced_by"))
            before = relevance_of(truth, pair, pair)
            after = relevance_of(truth, *((by, pair) if side else (pair, by)))
            groups = (
                (before, plots.MISMATCHED, "///", f"given, mean {before.mean():.2f}"),
                (after, plots.MATCHED, "", f"replaced, mean {after.mean():.2f}"),
            )
            plots.histograms(axis, groups, np.linspace(0, 1, 11), "% of kind")
            axis.set(xlabel="share of the caption that is true")
            axis.legend(fontsize=8)
    axes[0].set_ylabel("% of the pairs")
    return figure


def bank_bytes(size: int, words: int, precision: str = "fp32", regions: int = 36, dim: int = 1024) -> int:
    """Return the bytes of two banks of ``size`` pairs, without taking that memory.

    Captions have ``words`` words; with 0 a bank holds global vectors only.
    """

    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    bank = FeatureBank(size, precision)
    bank.push(
        ImageEncoding(empty(8, dim), empty(8, regions, dim) if words else None),
        CaptionEncoding(empty(8, dim), (words or 1,) * 8, empty(8, words, dim) if words else None),
        torch.arange(8),
    )
    return 2 * bank.nbytes


def memory_table(record: Record) -> Styler:
    """Show the memory of the banks at the paper's sizes beside the printed values."""
    paper = printed("resources", paper="REPAIR", quantity="extra memory of the bank")
    unit, rows = {"GB": 1, "MB": 1e-3}, []
    for size in (4096, 8192):
        for backbone, words in (("SGR", 12), ("SGR", 18), ("SGR", 32), ("VSE∞", 0)):
            said = paper[(paper["backbone"] == backbone) & (paper["bank_size"] == str(size))].iloc[0]
            ours = [bank_bytes(size, words, precision) / 1e9 for precision in ("fp32", "fp16")]
            printed_gb = float(said["value"]) * unit[said["unit"]]
            rows.append([size, backbone, words or "–", *ours, printed_gb])
    own = next((row["bank_mb"] for row in reversed(record.curves) if "bank_mb" in row), 0.0)
    names = ["bank size", "backbone", "words per slot"]
    table = pd.DataFrame(rows, columns=[*names, "fp32, GB", "fp16, GB", "printed, GB"]).set_index(names)
    caption = f"Memory of both networks' banks. The banks of the run above: {own:.1f} MB"
    return show(table, "memory", caption, digits=3)


def step_time() -> Styler:
    """Show the recorded time of a step with the bank, relative to NCR's."""
    stored = measurement("bench_bank")
    steps = pd.DataFrame(stored["step"])
    full = "repair, " + steps["variant"].astype(str) + ", bank " + steps["bank"].astype(str)
    steps["what"] = full.where(steps["method"] != "ncr", "ncr")
    steps = steps.set_index(["model", "embed_dim", "batch", "what"])
    steps = steps[["ms", "over_ncr", "label_ms_per_1000_pairs", "bank_mb"]]
    steps.columns = ["ms per step", "relative to NCR", "labels, ms per 1,000 pairs", "banks, MB"]
    caption = f"Measured {made(stored)}, CPU time, one thread; with noisy batches in use"
    return show(steps, "time", caption, digits=2)
