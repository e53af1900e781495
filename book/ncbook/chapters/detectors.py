"""Figures and tables of the chapter on finding wrong pairs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import show
from ncbook.chapters.photographs import ORDER
from ncbook.measurements import measurement
from ncbook.notebook import measures
from nclib import plots
from nclib.noise import BetaMixture, GaussianMixture1d

DETECTORS = (
    ("low similarity, after generalised cross entropy", "plain (gce)", "detection.auc"),
    ("counted, then ranked (CRANK)", "crank", "auc"),
    ("agreement of relations (GSC)", "gsc", "auc_consistency"),
    ("learned cost (L2RM)", "l2rm", "auc_cost"),
    ("beta mixture of losses (L2RM)", "l2rm", "auc"),
    ("rank correlation with a bank (REPAIR)", "repair", "rc_auc"),
    ("Gaussian mixture of losses (NCR)", "ncr", "auc"),
    ("uncertainty of evidence (DECL)", "decl", "auc_uncertainty"),
)
"""What is measured as a detector: words, label of the runs, column of the area under the ROC curve."""


def made_losses(rate: float, overlap: float = 1.0, n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Return made losses, (n,), of which a share ``rate`` is of wrong pairs, and which pairs are right."""
    rng = np.random.default_rng(0)
    matched = rng.random(n) >= rate
    return np.where(matched, rng.gamma(2.0, 0.5 * overlap, n), 3.0 + rng.normal(0, 0.8 * overlap, n)), matched


def mixture_figure(losses: np.ndarray, matched: np.ndarray) -> Figure:
    """Draw losses with a Gaussian mixture, and P(clean) by a Gaussian and by a beta mixture."""
    gauss, beta = GaussianMixture1d().fit(losses), BetaMixture().fit(losses)
    at = np.linspace(losses.min(), losses.max(), 300)
    figure, ((left, right),) = plots.panels(1, 2, height=3.2)
    plots.by_truth(left, losses, matched, np.linspace(at[0], at[-1], 41))
    left.plot(at, gauss.pdf(at), color=plots.ACCENT, lw=2, label="Gaussian mixture")
    left.set(xlabel="loss", ylabel="density", ylim=(0, 1.5 * left.get_ylim()[1]))
    left.legend(fontsize=8)
    for name, mixture, style in (("Gaussian mixture", gauss, "-"), ("beta mixture", beta, "--")):
        right.plot(at, mixture.predict_proba(at)[:, 0], style, label=name, lw=2)
    right.set(xlabel="loss", ylabel="P(clean)", ylim=(-0.02, 1.02))
    right.legend()
    return figure


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the area under the ROC curve of every detector: names in rows, mismatch rates in columns."""
    part = runs[(runs["protocol"] == "images") & (runs["mrate"] > 0)]
    lines = {
        name: part[part["label"] == label].groupby("mrate")[column].mean()
        for name, label, column in DETECTORS
        if column in part and part.loc[part["label"] == label, column].notna().any()
    }
    audit = pd.DataFrame(measurement("audit_posteriors")["rows"])
    lines["the audit"] = audit[audit["score"] == "auto"].set_index("rate")["auroc"]
    return pd.DataFrame(lines).T


def all_detectors(runs: pd.DataFrame, rate: float = 0.6) -> Figure | None:
    """Draw every detector over the mismatch rate, and at one rate P(clean) beside the plain similarity."""
    part = runs[(runs["protocol"] == "images") & (runs["mrate"] == rate)].dropna(subset=["auc"])
    if part.empty:
        return None
    found = points(runs)
    both = part.groupby("label")[["detection.auc", "auc"]].mean().sort_values("detection.auc")
    figure, ((left, right),) = plots.panels(1, 2, width=9.4, height=5.2)
    looks = {name: plots.method_style(label) for name, label, _ in DETECTORS}
    looks["learned cost (L2RM)"]["ls"] = "--"
    for name in found[rate].sort_values(ascending=False).index:
        look = looks.get(name, {"color": plots.ACCENT, "marker": "*", "ls": ":"})
        left.plot(found.columns, found.loc[name], label=name, **look)
    left.set(xlabel="mismatch rate", ylabel="AUROC of finding wrong pairs", xticks=list(found.columns))
    for place, (similarity, p_clean) in enumerate(both.to_numpy()):
        right.plot([p_clean, similarity], [place, place], color="#999999", lw=1.2, zorder=1)
    right.plot(both["auc"], range(len(both)), "o", mfc="none", color=plots.MISMATCHED, label="P(clean)")
    right.plot(both["detection.auc"], range(len(both)), "o", color=plots.MATCHED, label="similarity")
    right.set(xlabel=f"AUROC at mismatch rate {rate:g}", yticks=range(len(both)), yticklabels=both.index)
    right.legend(loc="lower right")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    return figure


def said(runs: pd.DataFrame, rate: float) -> str:
    """Return what the runs at one rate say of similarity and P(clean), in Markdown."""
    part = runs[(runs["protocol"] == "images") & (runs["mrate"] == rate)]
    part = part.dropna(subset=["detection.auc"]) if "detection.auc" in part else part[:0]
    if part.empty:
        return "No recorded runs here."
    mean = part.groupby("label")[["detection.auc", "auc"]].mean()
    both, similarity = mean.dropna(), mean["detection.auc"]
    better = int((both["detection.auc"] >= both["auc"]).sum())
    return (
        f"At rate {rate:g} the plain similarity of the trained models finds wrong pairs with an AUROC of "
        f"{similarity.min():.2f} to {similarity.max():.2f}. It is at least that of the method's own P(clean) "
        f"for {better} of {len(both)} methods."
    )


def detectors(runs: pd.DataFrame, rate: float) -> Styler | None:
    """Show how well each method finds the wrong pairs: by its P(clean), and by the similarity alone."""
    part = runs[(runs["protocol"] == "images") & (runs["mrate"] == rate)]
    if part.empty or "detection.auc" not in part:
        return None
    columns = {
        "detection.auc": "similarity: AUROC",
        "detection.ap": "average precision",
        "detection.precision_first": "precision of 100",
        "auc": "P(clean): AUROC",
        "ap": "average precision ",
        "precision_first": "precision of 100 ",
        "ece": "calibration error",
    }
    caption = (
        f"Measured on the training pairs of Flickr8K, {rate:g} of the images exchanged: wrong pairs found by "
        "low similarity (tested epoch) and by low P(clean) (last epoch); precision of 100: wrong ones among "
        "the hundred most suspicious; mean ± standard deviation (seeds)"
    )
    return show(_measured(part, columns), f"detectors-{rate:g}", caption)


def people(runs: pd.DataFrame, rate: float) -> Styler | None:
    """Show how well the scores of test pairs agree with people who judged them."""
    part = runs[(runs["protocol"] == "images") & (runs["mrate"] == rate)]
    if part.empty or "people.crowd_auc" not in part:
        return None
    columns = {
        "people.experts_tau": "experts: tau-c",
        "people.experts_auc": "AUROC",
        "people.experts_ap": "average precision",
        "people.crowd_auc": "crowd: AUROC",
        "people.crowd_ap": "average precision ",
        "people.crowd_ece": "calibration error of P(clean)",
    }
    caption = (
        "Measured on test pairs of Flickr8K that people judged (5,822 by three experts each, 47,830 by a "
        f"crowd), trained with {rate:g} of the images exchanged: agreement of the similarity with them; "
        "mean ± standard deviation (seeds)"
    )
    return show(_measured(part, columns), f"people-{rate:g}", caption)


def _measured(part: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    table = measures(part, columns, missing="")
    return table.loc[[name for name in ORDER if name in table.index]]
