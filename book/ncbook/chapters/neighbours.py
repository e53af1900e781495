"""Figures of the page on neighbours: CREAM, PCSR and IN2R."""

from __future__ import annotations

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure

from ncbook.chapters.family import Views
from ncbook.training import Finished, say, training_epochs
from nclib import plots
from nclib.methods.coteaching import threshold_division
from nclib.methods.cream import SETS
from nclib.methods.parts.replacing import relevance_of
from nclib.methods.pcsr import KINDS

# Diagnostics of the methods, and what the page calls them.
SEEN = {
    "auc": "AUC of the division (losses)",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    **{f"{name}_pairs": f"{name} pairs" for name in SETS},
    **{f"{name}_matched": f"{name}: really matched" for name in SETS},
    "mined_share": "off-diagonal targets above 0",
    **{f"n_{kind}": f"{kind} pairs" for kind in KINDS},
    "classes_used": "pseudo-classes that votes name",
    "replaced": "captions replaced",
    "replaced_precision": "of their pairs really mismatched",
    "replaced_label": "mean label",
    "old_relevance": "share that is true of the given captions",
    "new_relevance": "share that is true of the borrowed captions",
    "rectified": "pairs rectified",
    "rectified_precision": "of the last ones really mismatched",
    "given_relevance": "share that is true of the given captions",
    "neighbour_relevance": "share that is true of the neighbours' captions",
}

# Similarities of four pairs, for an exercise; the second pair is wrong: its image belongs to caption 3.
BATCH = torch.tensor(
    [[0.82, 0.31, 0.12, 0.25], [0.28, 0.20, 0.62, 0.09], [0.15, 0.22, 0.66, 0.33], [0.05, 0.41, 0.18, 0.54]]
)
LABELS = torch.tensor([0.95, 0.10, 0.90, 0.90])  # of the pairs in BATCH


def label_histograms(run: Finished) -> Figure:
    """Draw the refined labels of network A in the last epoch, by set and by truth."""
    last, bound = run.last, float(run.options["threshold"])
    a, b = (threshold_division(torch.from_numpy(last[k]), bound).numpy() for k in ("p_clean", "p_clean_b"))
    figure, (axes,) = plots.panels(1, 3, 8.8, 2.9)
    trained = np.isfinite(last["label"])
    for axis, name, part in zip(axes, SETS, (a & b, a ^ b, ~(a | b)), strict=True):
        rows = part & trained
        title = f"{name}: {rows.sum():,} of {part.sum():,} pairs trained"
        plots.by_truth(axis, last["label"][rows], run.matched[rows], np.linspace(0, 1, 31), "% of all")
        axis.set(xlabel="refined label $y_i$", xlim=(0, 1))
        axis.set_title(title, fontsize=9)
        if rows.any():
            axis.legend(fontsize=7)
    axes[0].set_ylabel("% of the set's trained pairs")
    return figure


def consistencies(run: Finished) -> Figure:
    """Draw the consistency of network A's votes by truth and its threshold, first and last epoch."""
    shown = sorted({min(run.kept), max(run.kept)})
    figure, (axes,) = plots.panels(1, len(shown), height=2.9, sharey=True)
    for axis, epoch in zip(axes, shown, strict=True):
        g, theta = run.kept[epoch]["consistency"], run.kept[epoch]["theta"][0]
        plots.by_truth(axis, g, run.matched, np.arange(-0.5, g.max() + 1.5), "% of kind")
        axis.axvline(theta, color="#444444", ls="--", label=f"threshold {theta:.2f}")
        axis.set(xlabel="consistency g", xticks=np.arange(g.max() + 1), title=f"before epoch {epoch}")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("% of the pairs of that kind")
    return figure


def constant_head(classes: int, weight: float = 10.0) -> tuple[float, float]:
    """Return the loss terms ``classes`` and ``entropy`` of the best head that tells no pictures apart."""
    p = torch.logspace(-4, -0.01, 4000, dtype=torch.float64)[:, None]  # of the one class that is a target
    log_pi = torch.cat([p, ((1 - p) / (classes - 1)).expand(-1, classes - 1)], 1).log()
    terms = torch.stack([-log_pi[:, 0], weight * (log_pi.exp() * log_pi).sum(1)])
    k = int(terms.sum(0).argmin())
    return float(terms[0, k]), float(terms[1, k])


def votes_said(run: Finished) -> Markdown:
    """Say how many pseudo-classes the votes name, and how near the head is to one that is constant."""
    curve = training_epochs(run.record).reindex(columns=["classes_used", "loss_classes", "loss_entropy"])
    first, (last, target, spread) = curve["classes_used"].iloc[0], curve.iloc[-1].astype(float)
    classes, weight = (run.options[name] for name in ("classes", "entropy_weight"))
    return say(
        f"Of {classes} pseudo-classes the votes name {first:.0f} before the first training epoch and "
        f"{last:.0f} before the last (mean of both networks).",
        "The loss terms `classes` and `entropy` end at {:.2f} and {:.2f}; the best head with one "
        "distribution for all pictures has {:.2f} and {:.2f}.".format(
            target, spread, *constant_head(classes, weight)
        ),
    )


def neighbours(run: Finished, n: int = 2) -> Figure | None:
    """Draw ``n`` mismatched pairs that IN2R rectified beside three neighbours; None without pictures."""
    split, truth = run.trainer.pairs.split, run.trainer.pairs.truth()
    if not split.has_pictures or truth.relevance is None or "rectified_pair" not in run.last:
        return None
    pair, by = run.last["rectified_pair"], run.last["rectified_by"]
    rows, lines = [], []
    for i in np.random.default_rng(0).permutation(np.flatnonzero(~run.matched[pair]))[:n]:
        for k, row in enumerate((pair[i], *by[i, :3])):
            share = float(relevance_of(truth, torch.tensor([pair[i]]), torch.tensor([row]))[0])
            head = (f"neighbour {k}", plots.MATCHED) if k else ("✗ the noisy pair", plots.MISMATCHED)
            said = f"{share:.0%} true of {'the noisy' if k else 'its'} picture"
            lines.append([head, (split.captions.text(int(row)), "#222222"), (said, "#444444")])
            rows.append(int(run.image_of[row]))
    return plots.captioned_pictures(split, rows, lines, columns=4) if rows else None


VIEWS: Views = {"cream": (label_histograms,), "pcsr": (consistencies, votes_said), "in2r": (neighbours,)}
"""What the page shows of a run of each method."""
