"""Figures and tables of the chapter on BiCro."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor
from torch.nn.functional import normalize

from ncbook import chapters, show
from ncbook.chapters import Finished, kind_of_pair, say, training
from ncbook.schematic import Schematic, Sketch
from nclib import losses, plots
from nclib.methods.bicro import by_reliability, closeness_ratios, global_vectors, n_anchors, noisy_labels
from nclib.runs.noisy_pairs import NoisyPairs

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

# Angles, in degrees, of an anchor and of two noisy pairs in the space of pictures and in that of captions.
ANCHOR, PAIRS = (60.0, 60.0), {"consistent": (30.0, 33.0), "inconsistent": (30.0, -20.0)}


def _at(degrees: float) -> Tensor:
    angle = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([angle.cos(), angle.sin()])[None]


def drawn_ratios(name: str) -> tuple[float, float, float]:
    """Return the cosine with the anchor by picture and by caption, and the soft label, of a drawn pair."""
    u, t, anchor_u, anchor_t = (_at(degrees) for degrees in (*PAIRS[name], *ANCHOR))
    ratios = closeness_ratios(u, t, anchor_u, anchor_t)
    cosines = [float((x * y).sum()) for x, y in ((u, anchor_u), (t, anchor_t))]
    return cosines[0], cosines[1], float(noisy_labels(*ratios)[0])


def _two_spaces(name: str) -> Sketch:
    """Draw an anchor and a pair as vectors in the space of pictures and in that of captions."""
    by_picture, by_caption, _ = drawn_ratios(name)
    sketch = Sketch(
        f"Anchor and pair in two spaces, cosines {by_picture:.2f} and {by_caption:.2f}.", 290, 200
    )
    colour = "match" if name == "consistent" else "mismatch"
    for k, (space, cosine) in enumerate((("pictures", by_picture), ("captions", by_caption))):
        left, base = 25 + 140 * k, 130
        sketch.text(left + 50, 24, space)
        for degrees, look in ((ANCHOR[k], "ink"), (PAIRS[name][k], colour)):
            x, y = (90 * float(v) for v in _at(degrees)[0])
            sketch.line(
                [(left, base), (left + x, base - y)], colour=look, dashed=look == "mismatch", weight=2
            )
        sketch.text(left + 62, 44, "anchor", size=11.5, anchor="start")
        sketch.text(left + 60, 188, f"cosine {cosine:.2f}", size=12, colour="soft")
    return sketch


def idea() -> Schematic:
    """Draw the method in four panels; cosines, labels and margins come from the package's functions."""
    chosen = Sketch("Ten bars of reliability; the two highest are the anchors.", 290, 200)
    values = [0.9, 0.55, 0.7, 0.4, 0.95, 0.6, 0.35, 0.5, 0.65, 0.45]
    best = np.argsort(values)[-n_anchors(len(values)) :]
    colours = ["match" if k in best else "soft" for k in range(10)]
    chosen.bars(20, 150, values, colours=colours, height=110, width=18, gap=8, top=1)
    for k in best:
        chosen.text(29 + 26 * int(k), 146 - 110 * values[k], "★", colour="match")
    chosen.text(148, 178, "pairs of a clean batch, by reliability", colour="soft", size=12)
    label = Sketch("Labels of the two pairs, and the margins that they give.", 290, 200)
    labels = [drawn_ratios(name)[2] for name in PAIRS]
    label.bars(
        70, 140, labels, colours=("match", "mismatch"), height=95, width=55, gap=40, top=1, names=tuple(PAIRS)
    )
    for k, y in enumerate(labels):
        margin = float(losses.soft_margins(torch.tensor([y]))[0])
        label.text(97 + 95 * k, 132 - 95 * y, f"{y:.2f}")
        label.text(97 + 95 * k, 178, f"margin {margin:.2f}", colour="soft", size=12)
    titles = (
        "Choose anchors",
        "A pair that is consistent",
        "A pair that is not",
        "The agreement is the label",
    )
    words = (
        "The pairs that stand highest above their rivals in a clean batch are trusted: about one in ten.",
        "As close to the anchor by picture as by caption: the two cosines nearly agree.",
        "Close by picture, far by caption: the caption is probably about something else.",
        "The ratio of the two closenesses is the soft label, and a label up to one half becomes 0. It "
        "sets the margin.",
    )
    sketches = (chosen, _two_spaces("consistent"), _two_spaces("inconsistent"), label)
    return Schematic.of(titles, sketches, words)


def problem(pairs: NoisyPairs, seed: int) -> Figure | None:
    """Draw right and wrong pairs that a division by losses could both call noisy."""
    rows = np.concatenate([chapters.some_pairs(pairs, flag, 2, seed) for flag in (True, False)])
    return chapters.drawn_pairs(pairs, rows.tolist(), ["called noisy: drop it?"] * len(rows))


def labels_said(run: Finished) -> Markdown:
    """Say what the labels of noisy pairs know, and what wrong pairs are still asked for."""
    last = training(run.record).iloc[-1]
    if "label_auc" not in last or not np.isfinite(float(last["label_auc"] or np.nan)):
        return say("No noisy pair got a label in the last epoch, or the truth of these pairs is not known.")
    return say(
        f"In the last epoch {last['anchor_precision']:.0%} of the anchors are really matched.",
        "Among pairs called noisy, a really matched one has the higher label with probability "
        f"{last['label_auc']:.2f}",
        f"(mean label {last['label_matched']:.2f} against {last['label_mismatched']:.2f}); one half "
        "would be chance.",
    )


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
