"""Figures and tables of the chapter on BiCro."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ncbook import show
from ncbook.chapters.common import Finished
from nclib import plots
from nclib.methods.bicro import by_reliability, closeness_ratios, global_vectors, n_anchors, noisy_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas.io.formats.style import Styler

QUERIES = 1500  # noisy pairs that the figures look at
LABELS = {
    "auc": "division: AUC",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    "ece": "division: calibration error",
    "anchor_precision": "anchors: really matched",
    "clean_label_auc": "labels of clean pairs: AUC",
    "clean_label_matched": "their mean, really matched",
    "clean_label_mismatched": "their mean, really mismatched",
    "label_auc": "labels of noisy pairs: AUC",
    "label_matched": "mean, really matched",
    "label_mismatched": "mean, really mismatched",
}


@dataclass(frozen=True)
class Anchors:
    """Anchors of one batch of pairs that the last division calls clean, and pairs it calls noisy.

    Parameters
    ----------
    run : Finished
    rows : ndarray, int, (M,)
        The anchors among the training pairs.
    images, captions : Tensor, (M, D)
        Their global vectors.
    noisy : ndarray, int
        Pairs that the last division calls noisy, in random order.
    batch : int
        Pairs of the batch from which the anchors were chosen.
    """

    run: Finished
    rows: np.ndarray
    images: Tensor
    captions: Tensor
    noisy: np.ndarray
    batch: int

    def judge(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return some pairs' cosines with all anchors, by picture and by caption, and their soft labels."""
        images, captions, _ = _seen(self.run, rows)
        near = [
            (normalize(q, dim=1) @ normalize(k, dim=1).T).numpy()
            for q, k in ((images, self.images), (captions, self.captions))
        ]
        options = self.run.options
        ratios = closeness_ratios(images, captions, self.images, self.captions, options["metric"])
        return near[0], near[1], noisy_labels(*ratios, options["label_threshold"]).numpy()


def _seen(run: Finished, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Return global vectors and similarities of some pairs by the first network."""
    network, batch = run.trainer.networks[0], run.trainer.batch(torch.as_tensor(rows))
    with torch.no_grad():
        images, captions = network.encode_images(batch.images), network.encode_captions(batch.captions)
        return *global_vectors(images, captions), network.similarity(images, captions)


def anchors(run: Finished, seed: int) -> Anchors:
    """Choose anchors as the method does, from one batch of pairs that the last division calls clean.

    Parameters
    ----------
    run : Finished
    seed : int
        Of the choice of the batch.
    """
    rng, options, n = np.random.default_rng(seed), run.options, len(run.matched)
    p_clean = run.last.get("p_clean", np.ones(n))  # without a fitted division every pair counts as clean
    ranked = np.argsort(-p_clean, kind="stable")
    size = run.trainer.batch_size
    clean = rng.permutation(ranked[: max(size, int((p_clean > options["threshold"]).sum()))])
    noisy = rng.permutation(np.setdiff1d(np.arange(n), clean))[:QUERIES]
    clean = clean[:size]
    images, captions, S = _seen(run, clean)
    chosen = by_reliability(S, options["margin"])[-n_anchors(len(clean)) :]
    return Anchors(run, clean[chosen.numpy()], images[chosen], captions[chosen], noisy, len(clean))


def nearest_anchors(found: Anchors) -> Figure | None:
    """Draw noisy pairs with the anchors whose picture, and whose caption, is nearest."""
    run, matched = found.run, found.run.matched
    split, pictures = run.trainer.pairs.split, run.trainer.pairs.image_of.numpy()
    if not (len(found.noisy) and split.has_pictures):
        return None
    examples: list[int] = []
    for flag in (True, False):
        some = found.noisy[matched[found.noisy] == flag]
        once = np.sort(np.unique(pictures[some], return_index=True)[1])  # a picture has several captions
        examples += list(some[once[:2]])
    by_picture, by_caption, labels = found.judge(np.array(examples))
    shown: list[list[tuple[int, list[tuple[str, str]]]]] = [[], [], []]
    for k, row in enumerate(examples):
        colour = plots.MATCHED if matched[row] else plots.MISMATCHED
        kind = "really matched" if matched[row] else "really mismatched"
        lines = [(f"{kind}, label {labels[k]:.2f}", colour), (split.captions.text(row), "#222222")]
        shown[0].append((row, lines))
        for part, name, order in ((1, "picture", by_picture), (2, "caption", by_caption)):
            c = int(order[k].argmax())
            anchor = int(found.rows[c])
            numbers = f"cos picture {by_picture[k, c]:.2f}, caption {by_caption[k, c]:.2f}"
            head = (f"anchor, nearest {name}", plots.ACCENT)
            shown[part].append(
                (anchor, [head, (split.captions.text(anchor), "#222222"), (numbers, "#444444")])
            )
    flat = [entry for part in shown for entry in part]
    rows = [row for row, _ in flat]
    return plots.captioned_pictures(
        split, pictures[rows].tolist(), [text for _, text in flat], columns=len(examples)
    )


def soft_labels(found: Anchors) -> Figure | None:
    """Draw noisy pairs beside their nearest anchor, and their soft labels, by truth."""
    if not len(found.noisy):
        return None
    truth = found.run.matched[found.noisy]
    by_picture, by_caption, labels = found.judge(found.noisy)
    nearest = by_picture.argmax(1)
    x, y = (np.take_along_axis(v, nearest[:, None], 1)[:, 0] for v in (by_picture, by_caption))
    figure, ((left, right),) = plots.panels(1, 2, height=3.6, width_ratios=(1, 1.15))
    low = min(x.min(), y.min(), 0)
    for flag, colour, mark, name in (
        (False, plots.MISMATCHED, "x", "really mismatched"),
        (True, plots.MATCHED, "o", "really matched"),
    ):
        part = truth == flag
        left.scatter(x[part], y[part], s=12, marker=mark, color=colour, alpha=0.5, lw=1, label=name)
    left.plot([low, 1], [low, 1], color="#444444", lw=1)
    left.set(
        xlabel="cosine of the pictures", ylabel="cosine of the captions", title="Query and nearest anchor"
    )
    left.legend(loc="lower right", fontsize=8)
    plots.by_truth(right, labels, truth, np.linspace(0, 1, 26), "% of kind")
    right.set(xlabel="soft label", ylabel="% of the pairs of that kind", title="Soft labels")
    right.legend(fontsize=8)
    print(
        f"{len(found.rows)} anchors in a batch of {found.batch}; mean cosine of a noisy pair with the "
        f"nearest anchor: pictures {by_picture.max(1).mean():.2f}, captions {by_caption.max(1).mean():.2f}"
    )
    return figure


def label_table(run: Finished) -> Styler:
    """Show division, anchors and soft labels against the truth, and where the margin goes, by epoch."""
    curve = pd.DataFrame([row for row in run.record.curves if row["phase"] == "training"]).set_index("epoch")
    curve = curve[[c for c in LABELS if c in curve]].astype(float).rename(columns=LABELS)
    wrong = np.tile(~run.matched, 2)
    for kind in ("clean", "noisy"):
        for epoch in curve.index.intersection(list(run.kept)):
            y = np.concatenate([run.kept[epoch][f"label_{kind}{end}"] for end in ("", "_b")])
            base = run.options["base"]
            margin = np.nan_to_num((base**y - 1) / (base - 1))
            if margin.sum():
                share = margin[wrong].sum() / margin.sum()
                curve.loc[epoch, f"margin that goes to mismatched pairs, {kind} batches"] = share
    return show(
        curve.T,
        "labels",
        "Against the truth, mean of both networks; labels of noisy pairs exist from the second half on",
        digits=3,
        missing="–",
    )
