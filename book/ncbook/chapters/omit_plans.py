"""Figures and tables of the chapter on OMIT: what the plans of one network look like."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import show
from ncbook.chapters.omit import NAMES
from ncbook.demo import opened, timed
from ncbook.training import say, words_of
from nclib import Record, plots
from nclib.data import Dataset, Split
from nclib.evaluation import recall
from nclib.models import similarity_matrix

PAIRS = 100  # matched test pairs over which alignments are measured
FEW = 3  # entries of a row or column whose share is looked at
OVERLAP = 0.5  # intersection over union from which a region lies on an object
SIDE = 96  # of a scene, in its units

TRANSPORTS = ("ot", "full", "prompt", "partial_ot")


def view(network: Any, **changes: Any) -> Any:
    """Return a network with the same weights that compares in another way."""
    part = copy.copy(network)
    for name, value in changes.items():
        setattr(part, name, value)
    return part.eval()


def encode(network: Any, split: Split, images: Any, captions: Any) -> tuple[Any, Any]:
    """Return the encodings of some pictures and captions of a split."""
    features, words = split.features(np.asarray(images)), split.captions.batch(np.asarray(captions))
    with torch.no_grad():
        return network.encode_images(features), network.encode_captions(words)


@dataclass(frozen=True)
class Look:
    """A network that transports, one that attends, and one test pair with several named objects."""

    mover: Any  # model OMIT, with matching by transport
    rival: Any  # and by cross attention
    dataset: Dataset
    image: int  # of the test split, as the caption
    caption: int
    shown: list[int]  # positions of words that name an object of the picture

    @property
    def test(self) -> Split:
        """The test split."""
        return self.dataset.test

    @property
    def lead(self) -> int:
        """Rows and columns of a plan that are dustbins."""
        return int(self.mover.matching != "ot")

    @property
    def words(self) -> list[str]:
        """Words of the caption."""
        return words_of(self.test, self.caption)

    @property
    def word(self) -> int:
        """Position of the first word that is shown."""
        return self.shown[0]

    def pair(self, network: Any) -> tuple[Any, Any]:
        """Return the pair's encodings by a network."""
        return encode(network, self.test, [self.image], [self.caption])

    def plan(self, **how: Any) -> Tensor:
        """Return the pair's plan, dustbins first; ``how`` goes to ``alignments``."""
        return self.mover.alignments(*self.pair(self.mover), **how)[0, 0]

    def shares(self, plan: Tensor, j: int, lead: int | None = None) -> np.ndarray:
        """Return the share of each region in word ``j``."""
        lead = self.lead if lead is None else lead
        part = plan[lead:, j + lead]
        return (part / part.sum().clamp_min(1e-12)).numpy()

    def boxes(self, axis: Axes, share: np.ndarray, colour: str, title: str) -> None:
        """Draw the picture with its regions; the larger a region's share, the thicker its box."""
        if self.test.has_pictures and self.test.boxes is not None:
            picture = self.test.picture(self.image)
            height, width = picture.shape[:2]
            axis.imshow(picture, interpolation="nearest", alpha=0.75)
            corners = self.test.boxes[self.image] * [width, height, width, height]
            for weight, (x0, y0, x1, y1) in zip(share, corners, strict=True):
                look = {"ec": colour, "lw": 0.4 + 4.5 * weight, "alpha": float(min(1.0, 0.12 + weight))}
                axis.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, **look))
        else:
            axis.bar(range(len(share)), share, color=colour)
        axis.set(xticks=[], yticks=[])
        axis.set_title(title, fontsize=9)
        axis.grid(False)

    def matched(self, network: Any) -> tuple[Any, Any]:
        """Return encodings of the first captions of the first test pictures."""
        rows = np.arange(min(PAIRS, self.test.n_images))
        return encode(network, self.test, rows, rows * self.test.captions_per_image)


def look(record: Record, other: Record) -> Look:
    """Open a run and the one beside it, and choose a picture with several named objects."""
    runs = [opened(run) for run in (record, other)]
    networks, dataset = [run.trainer.networks[0] for run in runs], runs[1].dataset
    movers = [net for net in networks if net.matching in TRANSPORTS]
    mover = movers[0] if movers else view(networks[0], matching="partial_ot")
    rivals = [net for net in networks if net.matching == "cam"]
    rival = rivals[0] if rivals else view(networks[1], matching="cam")
    return Look(mover, rival, dataset, *_named_objects(dataset))


def _named_objects(dataset: Dataset) -> tuple[int, int, list[int]]:
    """Return a test picture with three objects or more that one of its captions calls by one-word names."""
    split = dataset.test
    if not split.has_pictures:
        return 0, 0, list(range(1, min(4, len(split.captions.ids(0)) - 1)))
    scenes, concepts = split.details["scenes"], dataset.details["concepts"]
    for image in range(split.n_images):
        count = scenes["count"][image]
        called = {concepts[c] for c in scenes["concept"][image][:count]}
        for caption in range(5 * image, 5 * image + 5):
            found = [j for j, word in enumerate(words_of(split, caption)) if word in called]
            if count >= 3 and len(found) >= 3:
                return image, caption, found
    return 0, 0, [2]


def comparison_time(record: Record, seen: Look) -> Styler:
    """Show the time to compare test pictures with captions by each matching, timed with the run."""
    found = timed(record, "comparison", lambda: _compared(seen.mover, seen.test))
    times = pd.DataFrame({NAMES[k]: {"seconds": x} for k, x in found["seconds"].items()}).T
    for name in ("CAM", "Partial CAM"):
        times[f"ratio to {name}"] = times["seconds"] / times.loc[name, "seconds"]
    caption = f"Measured: {found['pictures']} pictures, {found['captions']} captions, one CPU thread"
    return show(times, "times", caption, digits=3)


def _compared(network: Any, test: Split) -> dict[str, Any]:
    """Time the comparison of test pictures with captions by each matching, one thread, median of three."""
    v, t = encode(network, test, range(min(200, test.n_images)), range(min(1000, test.n_captions)))
    seconds: dict[str, list[float]] = {key: [] for key in ("vse", "cam", "partial_cam", "ot", "partial_ot")}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(3):
        for key, spent in seconds.items():
            part = view(network, matching=key)
            started = time.perf_counter()
            with torch.no_grad():
                part.similarity(v, t)
            spent.append(time.perf_counter() - started)
    torch.set_num_threads(threads)
    medians = {key: float(np.median(spent)) for key, spent in seconds.items()}
    return {"pictures": len(v), "captions": len(t), "seconds": medians}


def alignments(seen: Look) -> Figure:
    """Draw the regions that words take mass from, transported and attended to (Fig. 4)."""
    plan, share = seen.plan(), seen.rival.alignments(*seen.pair(seen.rival))[0, 0]
    chosen = seen.shown[:4]
    figure, axes = plots.panels(2, len(chosen), 2.1 * len(chosen), 4.6)
    for k, j in enumerate(chosen):
        name = f"{NAMES[seen.mover.matching]}: {seen.words[j]}"
        seen.boxes(axes[0, k], seen.shares(plan, j), plots.ACCENT, name)
        seen.boxes(axes[1, k], seen.shares(share, j, 0), plots.THIRD, f"CAM: {seen.words[j]}")
    return figure


def over_lambda(seen: Look, lams: Sequence[float] = (0.5, 0.1, 0.05, 0.02, 0.005)) -> Figure:
    """Draw the regions of one word for several weights of the entropy (Fig. 3)."""
    figure, (axes,) = plots.panels(1, len(lams), 8.6, 2.3)
    for axis, value in zip(axes, lams, strict=True):
        part = seen.shares(seen.plan(lam=value, iterations=200, sinkhorn="log"), seen.word)
        spread = np.exp(-(part * np.log(part + 1e-12)).sum())
        seen.boxes(axis, part, plots.ACCENT, f"λ = {value:g}\n{spread:.1f} regions")
    figure.suptitle(f"“{seen.words[seen.word]}”", x=0.01, ha="left", fontsize=10)
    return figure


def scoring_lambda(seen: Look, grid: Sequence[float] = (0.3, 0.1, 0.05, 0.02, 0.01)) -> Figure:
    """Draw validation rSum of one network scored with several weights of the entropy, by both loops."""
    val = seen.dataset.val
    figure, ((axis,),) = plots.panels(1, 1, 5.6, 3.0)
    for loop, name, colour, mark in (
        ("released", "official loop", plots.THIRD, "o"),
        ("log", "exact scaling", plots.ACCENT, "s"),
    ):
        networks = [view(seen.mover, lam=x, sinkhorn=loop) for x in grid]
        sums = [recall(similarity_matrix(net, val), val.captions_per_image)["rsum"] for net in networks]
        axis.plot(grid, sums, color=colour, marker=mark, label=name)
    axis.axvline(seen.mover.lam, color=plots.NEUTRAL, ls=":", lw=1.2)
    axis.set(xscale="log", xlabel="λ when scoring (dotted: λ of training)", ylabel="rSum on validation")
    axis.set_xticks(grid, [f"{x:g}" for x in grid])
    axis.minorticks_off()
    axis.legend()
    return figure


def plan_figure(seen: Look) -> Figure:
    """Draw the plan of the pair, two of its columns and two of its rows (Fig. 6)."""
    plan, lead = seen.plan(), seen.lead
    figure, (axes,) = plots.panels(1, 3, 9.0, 3.6, width_ratios=(1.3, 1, 1))
    labels = ["(dustbin)"] * lead + seen.words
    plots.heatmap(plan.sqrt(), axes[0], "plan (root scale)", xticklabels=labels, square=False)
    axes[0].tick_params(axis="x", rotation=60, labelsize=8)
    axes[0].set(ylabel="region" + ", 0: dustbin" * lead, xlabel="")
    pair = [j + lead for j in seen.shown[:2]]
    giving = [int(plan[lead:, j].argmax()) + lead for j in pair]
    for k, (j, i) in enumerate(zip(pair, giving, strict=True)):
        bar = {"width": 0.4, "color": (plots.ACCENT, plots.THIRD)[k], "hatch": ("", "//")[k]}
        for axis, part, label in ((axes[1], plan[:, j], labels[j]), (axes[2], plan[i], f"region {i}")):
            axis.bar(np.arange(len(part)) + 0.4 * k - 0.2, part / part.sum(), label=label, **bar)
    axes[1].set(xlabel="region" + ", 0: dustbin" * lead, title="columns (share of the word)", ylim=(0, None))
    axes[2].set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=8)
    axes[2].set(title="rows (share of the region)", ylim=(0, None))
    for axis in axes[1:]:
        axis.legend()
    return figure


def stages(seen: Look, passes: Sequence[int] = (1, 2, 3, 10)) -> Figure:
    """Draw the plan of the pair after some passes of the scaling loop (Fig. A1)."""
    similarity = seen.mover.transport_problem(*seen.pair(seen.mover))[0][0, 0]
    kernel = torch.exp((similarity - similarity.max()) / seen.mover.lam)
    drawn = [kernel / kernel.sum(), *(seen.plan(iterations=n) for n in passes)]
    figure, axes = plots.panels(2, len(drawn), 8.8, 3.9, height_ratios=(2, 1))
    for k, (stage, t) in enumerate(zip(drawn, (0, *passes), strict=True)):
        plots.heatmap(stage.sqrt(), axes[0, k], f"t = {t}", square=False)
        axes[0, k].set(xlabel="", ylabel="")
        column = stage[:, seen.word + seen.lead]
        axes[1, k].bar(range(len(stage)), column / column.sum(), color=plots.ACCENT)
        axes[1, k].set(xticks=[], yticks=(0, 0.5, 1), ylim=(0, 1))
        axes[1, k].tick_params(labelleft=k == 0)
        axes[1, k].set_title(f"shares of “{seen.words[seen.word]}”", fontsize=8)
    return figure


def _diagonal(plans: Tensor) -> Tensor:
    """Return what belongs to the matched pairs, (n, rows, columns)."""
    k = torch.arange(plans.shape[0])
    return plans[k, k]


def _plans(network: Any, v: Any, t: Any, **how: Any) -> Tensor:
    """Return the plans of the matched pairs, (n, rows, columns); ``how`` goes to ``alignments``.

    A network aligns every picture with every caption, so a few pairs at a time waste little.
    """
    parts = [
        _diagonal(network.alignments(v.select(rows), t.select(rows), **how))
        for rows in torch.arange(len(v)).split(5)
    ]
    width = max(part.shape[2] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[2])) for part in parts])


def convergence(seen: Look, passes: Sequence[int] = (1, 2, 3, 5, 10, 30, 100, 300)) -> Figure:
    """Draw, over the passes, how far plans are from their weights and limit, and how many cells they use."""
    v, t = seen.matched(seen.mover)
    plans = [_plans(seen.mover, v, t, iterations=n, sinkhorn="log") for n in passes]
    p = _diagonal(seen.mover.transport_problem(v, t)[1])
    lines = {
        "rows from their weights": [float((x.sum(2) - p).abs().sum(1).mean()) for x in plans[:-1]],
        "plan from its limit": [float((x - plans[-1]).abs().sum((1, 2)).mean()) for x in plans[:-1]],
    }
    cells = [float((-(x * (x + 1e-30).log()).sum((1, 2))).exp().mean()) for x in plans]
    figure, (axes,) = plots.panels(1, 2, 8.2, 2.9)
    looks = zip(lines.items(), (plots.THIRD, plots.IMAGES), "os", strict=True)
    for (name, values), colour, mark in looks:
        axes[0].loglog(passes[:-1], np.maximum(values, 1e-8), marker=mark, color=colour, label=name)
    axes[0].set(xlabel="passes T", ylabel="mean L1 distance")
    axes[0].legend()
    axes[1].semilogx(passes, cells, marker="o", color=plots.ACCENT)
    axes[1].set(xlabel="passes T", ylabel="cells in use, exp(H)", ylim=(0, 1.1 * max(cells)))
    for axis in axes:
        axis.axvline(seen.mover.iterations, color=plots.NEUTRAL, ls=":", lw=1.2)
    return figure


def on_object(dataset: Dataset, picture: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the position of each word that names one object of a scene, and which regions lie on it, (R,)."""
    split = dataset.test
    if "scenes" not in split.details or split.boxes is None:
        return
    scene, concepts = split.details["scenes"][picture], dataset.details["concepts"]
    text, box = words_of(split, picture * split.captions_per_image), split.boxes[picture]
    for k in range(scene["count"]):
        name = concepts[scene["concept"][k]].split()
        starts = [j for j in range(len(text)) if text[j : j + len(name)] == name]
        if len(starts) == 1:
            low = np.array([scene["x"][k], scene["y"][k]], float) / SIDE
            high = low + float(scene["size"][k]) / SIDE
            sides = np.minimum(box[:, 2:], high) - np.maximum(box[:, :2], low)
            common = np.prod(sides.clip(0), axis=1)
            both = np.prod(box[:, 2:] - box[:, :2], axis=1) + np.prod(high - low) - common
            yield starts[0] + len(name) - 1, common / both >= OVERLAP


def spread(shares: Tensor, used: Tensor) -> dict[str, Tensor]:
    """Describe how far the columns of shares (n, a, b) spread over their ``a`` entries; values of ``used``.

    ``in_use`` is the exponential of the entropy, ``top`` the share of the :data:`FEW` largest entries.
    """
    shares = shares / shares.sum(1, keepdim=True).clamp_min(1e-12)
    top = shares.topk(min(FEW, shares.shape[1]), dim=1)[0].sum(1)
    return {"in_use": torch.special.entr(shares).sum(1).exp()[used], "top": top[used]}


def _focus(seen: Look, network: Any, lead: int, **how: Any) -> dict[str, float]:
    """Return how far the shares of words are spread, and how much of them lies on their objects."""
    v, t = seen.matched(network)
    part = _plans(network, v, t, **how)[:, lead:, lead:]
    shares = part / part.sum(1, keepdim=True).clamp_min(1e-12)
    of_words = spread(part, torch.arange(shares.shape[2]) < torch.tensor(t.lengths)[:, None])
    row = {"regions in use": float(of_words["in_use"].mean()), "top three": float(of_words["top"].mean())}
    if named := [(i, j, on) for i in range(len(v)) for j, on in on_object(seen.dataset, i)]:
        row["on the object"] = float(np.mean([shares[i, :, j].numpy()[on].sum() for i, j, on in named]))
        row["any region"] = float(np.mean([on.mean() for *_, on in named]))
    return row


def focus(seen: Look, lams: Sequence[float] = (0.1, 0.05, 0.02, 0.01)) -> Styler:
    """Show over how many regions a word's share is spread, and how much of it lies on its object."""
    mover, name, lead = seen.mover, NAMES[seen.mover.matching], seen.lead
    exact = {"sinkhorn": "log", "iterations": 200}
    rows = {f"{name}, λ = {x:g}, exact, 200 passes": _focus(seen, mover, lead, lam=x, **exact) for x in lams}
    rows[f"{name}, λ = {mover.lam:g}, as trained"] = _focus(seen, mover, lead)
    rows["CAM, own run"] = _focus(seen, seen.rival, 0)
    rows[f"CAM on the fragments of {name}"] = _focus(seen, view(mover, matching="cam"), 0)
    caption = f"Measured: means over the words of {PAIRS} matched test pairs"
    return show(pd.DataFrame(rows).T, "focus", caption, digits=3, missing="")


def focus_said(seen: Look) -> Markdown:
    """Say whether the plan or cross attention is more focused, and which lies on the objects."""
    name, own = NAMES[seen.mover.matching], _focus(seen, seen.mover, seen.lead)
    rival = _focus(seen, view(seen.mover, matching="cam"), 0)
    said = (
        f"On the same fragments a word spreads over {own['regions in use']:.1f} regions in the plan of "
        f"{name} and over {rival['regions in use']:.1f} in cross attention."
    )
    if "on the object" not in own:
        return say(said)
    return say(
        said,
        f"A word that names an object has {own['on the object']:.0%} of its share on that object, against "
        f"{rival['on the object']:.0%} ({own['any region']:.0%} if all regions had the same share).",
    )


def masses(seen: Look) -> Styler | None:
    """Show the mass that moves locally and into the dustbins, by words in the caption."""
    if seen.mover.matching == "ot":
        return None
    v, t = seen.matched(seen.mover)
    with torch.no_grad():
        parts = {k: x.diagonal() for k, x in seen.mover.masses(v, t).items()}
    lengths = torch.tensor(t.lengths).float()
    expected = 1 - 1 / (v.regions.shape[1] + 1) - 1 / (lengths + 1) + parts["between"]
    names = {
        "local": "local",
        "to_words": "region dustbin to words",
        "to_regions": "regions to word dustbin",
        "between": "between the dustbins",
    }
    frame = pd.DataFrame({"words": t.lengths} | {names[k]: x.numpy() for k, x in parts.items()})
    frame["expected local"] = expected
    caption = f"Measured mass: {PAIRS} matched test pairs, by words in the caption"
    return show(frame.groupby("words").mean(), "mass", caption, digits=3)
