"""Figures and tables of the chapter on BiCro."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor
from torch.nn.functional import normalize

from ncbook import show
from ncbook.chapters import Finished, kind_of_pair, training
from nclib import plots
from nclib.methods.bicro import by_reliability, closeness_ratios, global_vectors, n_anchors, noisy_labels

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
    """Anchors of one batch of pairs that the last division calls clean, and pairs it calls noisy."""

    run: Finished
    rows: np.ndarray  # the anchors among the training pairs, (M,)
    images: Tensor  # their global vectors, (M, D)
    captions: Tensor
    noisy: np.ndarray  # pairs that the last division calls noisy, in random order
    batch: int  # pairs of the batch from which the anchors were chosen

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
    """Choose anchors as the method does, from a random batch of pairs that the last division calls clean."""
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
    split, pictures = run.trainer.pairs.split, run.image_of
    if not (len(found.noisy) and split.has_pictures):
        return None
    examples: list[int] = []
    for flag in (True, False):
        some = found.noisy[matched[found.noisy] == flag]
        once = np.sort(np.unique(pictures[some], return_index=True)[1])  # a picture has several captions
        examples += list(some[once[:2]])
    by_picture, by_caption, labels = found.judge(np.array(examples))
    rows, lines = list(examples), []
    for row, label in zip(examples, labels, strict=True):
        kind, colour = kind_of_pair(matched[row])
        lines.append([(f"really {kind}, label {label:.2f}", colour), (split.captions.text(row), "#222222")])
    for name, order in (("picture", by_picture), ("caption", by_caption)):
        for k, c in enumerate(order.argmax(1)):
            anchor = int(found.rows[c])
            numbers = f"cos picture {by_picture[k, c]:.2f}, caption {by_caption[k, c]:.2f}"
            text = (split.captions.text(anchor), "#222222")
            lines.append([(f"anchor, nearest {name}", plots.ACCENT), text, (numbers, "#444444")])
            rows.append(anchor)
    return plots.captioned_pictures(split, pictures[rows].tolist(), lines, columns=len(examples))


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
    for flag, mark in ((False, "x"), (True, "o")):
        part, (kind, colour) = truth == flag, kind_of_pair(flag)
        look = {"s": 12, "marker": mark, "color": colour, "alpha": 0.5, "lw": 1}
        left.scatter(x[part], y[part], label=f"really {kind}", **look)
    left.plot([low, 1], [low, 1], color="#444444", lw=1)
    left.set(xlabel="cosine of the pictures", ylabel="cosine of the captions")
    left.set_title("Query and nearest anchor")
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
    curve = training(run.record)
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
    caption = "Against the truth, mean of both networks; labels of noisy pairs exist from the second half on"
    return show(curve.T, "labels", caption, digits=3, missing="–")
