"""Figures of chapters whose methods give noisy pairs other captions: kinds of pairs, and their truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure

from ncbook import chapters
from ncbook.chapters import Finished, kind_of_pair, say, training
from nclib import plots
from nclib.methods.parts.replacing import relevance_of
from nclib.runs.noisy_pairs import NoisyPairs

DRAWN = 4000  # captions of a kind whose truth is drawn
NOTHING = "No caption was borrowed in this run."
DIVIDED = {
    "auc": "AUC of the division (losses)",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
}
REPLACED = {
    "replaced": "captions replaced",
    "replaced_precision": "of their pairs really mismatched",
    "replaced_label": "mean label",
    "old_relevance": "relevance of the given captions",
    "new_relevance": "relevance of the borrowed captions",
}


class Borrowed(NamedTuple):
    """Pairs that got captions of other pairs in the last epoch that has some."""

    pair: np.ndarray  # rows of the training pairs, (R,)
    by: np.ndarray  # rows that the captions come from, (R, k)
    used: np.ndarray  # whether the label is above 0, bool, (R,)


def borrowed(run: Finished) -> Borrowed | None:
    """Return what was borrowed (kept arrays ``replaced_*``, or IN2R's ``rectified_*``), None if nothing."""
    for _, kept in sorted(run.kept.items(), reverse=True):
        if "rectified_pair" in kept:
            pair = kept["rectified_pair"]
            return Borrowed(pair, kept["rectified_by"], np.ones(len(pair), bool))
        if "replaced_pair" in kept:
            used = kept["replaced_label"] > 0
            return Borrowed(kept["replaced_pair"], kept["replaced_by"][:, None], used)
    return None


def problem(pairs: NoisyPairs, seed: int, note: str) -> Figure | None:
    """Draw four wrong pairs with one note under each."""
    rows = chapters.some_pairs(pairs, False, 4, seed)
    return chapters.drawn_pairs(pairs, rows.tolist(), [note] * len(rows))


def kinds_by_truth(run: Finished, names: Sequence[str]) -> Figure:
    """Draw how many pairs of each kind an epoch has, by truth; mean of both networks.

    ``names`` are those of the kinds, in the order of their numbers in the kept arrays ``kind``, ``kind_b``.
    """
    figure, (axes,) = plots.panels(1, len(names), 8.4, 2.9, sharey=True)
    epochs = sorted(run.kept)
    both = [np.stack([run.kept[e]["kind"], run.kept[e]["kind_b"]]) for e in epochs]
    for k, (axis, name) in enumerate(zip(axes, names, strict=True)):
        for shift, flag in ((-0.2, True), (0.2, False)):
            counts = [(kinds[:, run.matched == flag] == k).sum() / 2 for kinds in both]
            word, colour = kind_of_pair(flag)
            look = {"color": colour, "alpha": 0.55, "edgecolor": colour, "hatch": "" if flag else "///"}
            axis.bar(np.array(epochs) + shift, counts, 0.4, label=f"really {word}", **look)
        axis.set(title=name, xlabel="epoch", xticks=epochs)
    axes[0].set_ylabel("pairs")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def truth_of_captions(run: Finished) -> Figure | None:
    """Draw which share of given and borrowed captions is true of the picture; None if that is unknown."""
    truth, found = run.trainer.pairs.truth(), borrowed(run)
    if truth.relevance is None or found is None:
        return None
    k = found.by.shape[1]
    pictures, captions, used = found.pair.repeat(k), found.by.ravel(), found.used.repeat(k)
    groups = {"given caption": (found.pair, found.pair), "borrowed captions": (pictures, captions)}
    if used.any() and not used.all():
        groups["borrowed, label above 0"] = pictures[used], captions[used]
    figure, ((axis,),) = plots.panels(1, 1, 7.0, 3.0)
    looks = ((plots.MISMATCHED, "///"), (plots.MATCHED, ""), (plots.THIRD, "..."))
    drawn = []
    for (name, rows), look in zip(groups.items(), looks, strict=False):
        some = np.random.default_rng(0).permutation(len(rows[0]))[:DRAWN]
        values = relevance_of(truth, *(torch.as_tensor(each[some]) for each in rows))
        drawn.append((values, *look, f"{name}, mean {values.mean():.2f}"))
    plots.histograms(axis, drawn, np.linspace(0, 1, 11), "% of kind")
    axis.set(xlabel="share of the caption that is true of the picture", ylabel="% of the captions")
    axis.legend(fontsize=8)
    return figure


def examples(run: Finished, seed: int, name: str, n: int = 2) -> Figure | None:
    """Draw ``n`` mismatched pairs, each beside up to three pairs whose captions it borrowed.

    ``name`` is what the method calls these, such as ``neighbour``.
    """
    split, truth, found = run.trainer.pairs.split, run.trainer.pairs.truth(), borrowed(run)
    if not split.has_pictures or truth.relevance is None or found is None:
        return None
    others = found.by[:, :3]
    wrong = np.flatnonzero(~run.matched[found.pair])
    rows, lines = [], []
    for i in np.random.default_rng(seed).permutation(wrong)[:n]:
        for k, row in enumerate((found.pair[i], *others[i])):
            share = float(relevance_of(truth, torch.tensor([found.pair[i]]), torch.tensor([row]))[0])
            number = f" {k}" if others.shape[1] > 1 else ""
            head = (f"{name}{number}", plots.MATCHED) if k else ("✗ the noisy pair", plots.MISMATCHED)
            said = f"{share:.0%} true of {'the noisy' if k else 'its'} picture"
            lines.append([head, (split.captions.text(int(row)), "#222222"), (said, "#444444")])
            rows.append(int(run.image_of[row]))
    return plots.captioned_pictures(split, rows, lines, columns=4) if rows else None


def borrowed_said(run: Finished) -> Markdown:
    """Say how many captions were replaced in the last epoch, with which labels, and how true they are."""
    last = training(run.record).iloc[-1]
    if not last.get("replaced"):
        return say("No caption was replaced in the last epoch.")
    zero = float((run.last["replaced_label"] == 0).mean())
    truth = (
        f"Given captions are true to {last['old_relevance']:.2f} of their facts, borrowed ones to "
        f"{last['new_relevance']:.2f}."
        if pd.notna(last.get("new_relevance"))
        else ""
    )
    return say(
        f"In the last epoch {last['replaced']:,.0f} captions were replaced (two networks; a pair counts each "
        f"time); {last['replaced_precision']:.0%} of their pairs are really mismatched.",
        f"The label of {zero:.0%} of them is 0, which leaves them out of the loss." if zero else "",
        truth,
    )


def sources_said(run: Finished) -> Markdown:
    """Say how many borrowed captions come from pairs with the very same picture, and how many are right."""
    found = borrowed(run)
    if found is None:
        return say(NOTHING)
    same = run.image_of[found.by] == run.image_of[found.pair][:, None]
    right = run.matched[found.by]
    own, other = (f"{right[part].mean():.0%}" if part.any() else "none" for part in (same, ~same))
    return say(
        f"Of the borrowed captions, {same.mean():.0%} come from pairs with the very same picture; {own} of "
        f"these pairs are really matched, and {other} of those with other pictures."
    )


def recorded_range(runs: pd.DataFrame, method: str, column: str, words: str) -> Markdown:
    """Say between which values a diagnostic of the last epoch lies in recorded runs of a method.

    ``runs`` are those of :func:`ncbook.chapters.photographs.photograph_runs`; ``words`` name the diagnostic.
    """
    own = runs[runs["label"] == method]
    values = own[column].dropna() if column in own else own["mrate"].iloc[:0]
    if values.empty:
        return say(f"No recorded runs of {method} on photographs here have this diagnostic: {words}.")
    low, high = (f"{value:.3g}" for value in (values.min(), values.max()))
    between = low if low == high else f"{low} to {high}"
    return say(f"Over {len(values)} recorded runs on photographs, {words}: {between}.")
