"""Figures and tables of the chapter on the two noise protocols."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from scipy.stats import binom, kendalltau

from ncbook import mean_text, recorded, show
from ncbook.papers import ONLY_PRINTED, printed, wide
from ncbook.runs import as_preset, labelled
from ncbook.training import say
from nclib import data, plots
from nclib.data import Split
from nclib.noise import Mismatch, auc

PROTOCOLS = ("images", "captions")
LOOK: dict[str, dict[str, Any]] = {
    "images": {"color": plots.IMAGES, "marker": "o", "ls": "-", "label": "images"},
    "captions": {"color": plots.CAPTIONS, "marker": "s", "ls": "--", "label": "captions"},
}
RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BATCHES = 4000  # random batches over which pairs of pairs are counted


def printed_in_two_papers() -> Styler:
    """Show the printed rSum of three methods in two papers that draw the noise differently."""
    tables = []
    for paper, number in (("L2RM", "6"), ("REPAIR", "I")):
        where = {"dataset": "Flickr30K", "metric": "rsum", "backbone": "SGR"}
        part = printed("retrieval", paper=paper, table=number, **where)
        part = part.assign(method=part["method"].str.removesuffix("-SGR"), source=f"{paper}, Table {number}")
        tables.append(part[part["method"].isin(["NCR", "BiCro", "DECL"])])
    cells = wide(pd.concat(tables), ["method", "source"], "noise_rate").sort_index()
    cells = cells.dropna(axis="columns").rename_axis(columns="mismatch rate")
    caption = f"Printed rSum on Flickr30K with SGR; {ONLY_PRINTED}"
    return show(cells, "printed", caption, digits=1)


@dataclass(frozen=True)
class Draws:
    """Draws of mismatched pairs over one training split, all with one seed."""

    train: Split
    seed: int

    def of(self, protocol: str, rate: float) -> Mismatch:
        """Return the mismatch of a protocol at a rate."""
        return Mismatch.draw(self.train.image_of, rate, seed=self.seed, protocol=protocol)

    def kept_captions(self, noise: Mismatch) -> np.ndarray:
        """Return the true captions left with each picture, int (n_images,)."""
        counts = np.bincount(noise.image_of, noise.matched, minlength=self.train.n_images)
        return counts.astype(int)


def draws(settings: Any, seed: int, rate: float) -> Draws:
    """Load the training split of resolved settings, draw both protocols at a rate and describe them."""
    found = Draws(data.load(settings.run.dataset, **settings.data_options).train, seed)
    for protocol in PROTOCOLS:
        print(found.of(protocol, rate).describe())
    return found


def true_captions(found: Draws, rate: float) -> Figure:
    """Draw how many true captions a picture keeps, at one rate and over the rates, with the formulas."""
    per_image, n = found.train.captions_per_image, found.train.n_images
    half = per_image // 2 + 1  # captions that make a majority
    line = np.linspace(0, 1, 101)
    figure, (axes,) = plots.panels(1, 3, 8.8, 3.0)
    for k, protocol in enumerate(PROTOCOLS):
        look = LOOK[protocol]
        share = 100 * np.bincount(found.kept_captions(found.of(protocol, rate)), minlength=per_image + 1) / n
        x = np.arange(per_image + 1) + 0.4 * (k - 0.5)
        bar = {"color": look["color"], "hatch": ("", "///")[k], "edgecolor": "white", "lw": 0}
        axes[0].bar(x, share, 0.38, label=protocol, **bar)
        counts = [found.kept_captions(found.of(protocol, r)) for r in RATES]
        for axis, least in ((axes[1], 1), (axes[2], half)):
            measured = [100 * (c >= least).mean() for c in counts]
            axis.plot(RATES, measured, look["marker"], ms=5, color=look["color"])
            formula = 1 - line if protocol == "images" else binom.sf(least - 1, per_image, 1 - line)
            axis.plot(line, 100 * formula, look["ls"], lw=1.5, color=look["color"], label=protocol)
    axes[0].set(xlabel="true captions of a picture", ylabel="pictures in %", title=f"rate {rate:g}")
    axes[1].set(xlabel="mismatch rate", title="at least one true", ylim=(0, 103))
    axes[2].set(xlabel="mismatch rate", title=f"at least {half} of {per_image} true", ylim=(0, 103))
    axes[0].legend()
    axes[1].legend(loc="lower left")
    return figure


def _company(found: Draws, noise: Mismatch) -> tuple[float, float]:
    """Return the mean number of witnesses and of allies of a wrong pair."""
    wrong = ~noise.matched
    witnesses = found.kept_captions(noise)[noise.image_of[wrong]]
    pair = noise.image_of * found.train.n_images + found.train.image_of  # shown and source picture
    _, group, size = np.unique(pair, return_inverse=True, return_counts=True)
    return witnesses.mean(), (size[group][wrong] - 1).mean()


def company(found: Draws) -> Figure:
    """Draw the true captions beside a wrong one, and the wrong ones from the same picture, over the rates."""
    figure, (axes,) = plots.panels(1, 2, height=2.9, sharey=True)
    for protocol in PROTOCOLS:
        means = np.array([_company(found, found.of(protocol, r)) for r in RATES])
        for axis, column in zip(axes, means.T, strict=True):
            axis.plot(RATES, column, ms=5, **LOOK[protocol])
    axes[0].set(xlabel="mismatch rate", ylabel="captions per wrong pair", title="witnesses: true captions")
    axes[0].set_ylim(-0.1, found.train.captions_per_image)
    axes[1].set(xlabel="mismatch rate", title="allies: from the same wrong picture")
    axes[0].legend()
    return figure


def _agreement(found: Draws, noise: Mismatch, n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return how far captions agree with the others of their picture, and whether their pairs are true."""
    per_image, rng = found.train.captions_per_image, np.random.default_rng(found.seed)
    order = np.argsort(noise.image_of, kind="stable").reshape(-1, per_image)  # captions by shown picture
    rows = order[rng.permutation(len(order))[:n]]  # (pictures, per_image)
    k = np.arange(len(rows))
    # facts[j, i]: the share of caption i that is true of the picture of caption j
    facts = found.train.relevance(found.train.image_of[rows.ravel()], rows.ravel())
    blocks = facts.reshape(len(k), per_image, len(k), per_image)[k, :, k]  # (k, per_image, per_image)
    blocks = blocks * ~np.eye(per_image, dtype=bool)
    return blocks.sum(1).ravel() / (per_image - 1), noise.matched[rows.ravel()]


def consensus(found: Draws) -> Figure | None:
    """Draw how well the agreement of a caption with its companions tells true pairs, over the rates."""
    if not found.train.has_relevance or found.train.captions_per_image < 2:
        return None
    figure, ((axis,),) = plots.panels(1, 1, height=2.9)
    for protocol in PROTOCOLS:
        values = [auc(*_agreement(found, found.of(protocol, r))) for r in RATES]
        axis.plot(RATES, values, ms=5, **LOOK[protocol])
    axis.axhline(0.5, color="#444444", ls=":", lw=1.5)
    axis.text(0.1, 0.51, "chance", color="#444444", fontsize=9)
    axis.set(xlabel="mismatch rate", ylabel="AUC of agreement", ylim=(0, 1.02))
    axis.legend(loc="lower left")
    return figure


def in_batches(found: Draws, rate: float, batch_size: int) -> Styler:
    """Show how often the pairs of a random batch share a picture, agree, or hide a partner."""
    true, rows = found.train.image_of, {}
    size = min(batch_size, len(true))
    for protocol in PROTOCOLS:
        noise, rng = found.of(protocol, rate), np.random.default_rng(found.seed)
        counts = np.zeros(4)
        for _ in range(BATCHES):
            index = rng.choice(len(true), size, replace=False)
            shown, source, ok = noise.image_of[index], true[index], noise.matched[index]
            same = np.triu(shown[:, None] == shown, 1)
            both = same & ok[:, None] & ok
            error = same & ~ok[:, None] & ~ok & (source[:, None] == source)
            hidden = (shown[:, None] == source) & ~np.eye(size, dtype=bool) & (shown[:, None] != shown)
            counts += both.sum(), (same & ~both & ~error).sum(), error.sum(), hidden.sum()
        rows[protocol] = 100 * counts / BATCHES
    names = ("both captions true", "captions disagree", "agree in the error")
    kinds = [*(f"same picture, {name}" for name in names), "hidden partners"]
    caption = f"Per hundred batches of {size} pairs out of {len(true):,}, rate {rate:g}"
    return show(pd.DataFrame(rows, index=kinds), "batch", caption, digits=1)


@dataclass(frozen=True)
class BothProtocols:
    """Recorded runs with the preset's own settings, under both protocols."""

    runs: pd.DataFrame  # with a column ``label``: the method, plain training with its loss
    rates: list[float]  # mismatch rates that were recorded under both
    rate: float  # that the tables show
    words: str  # preset and model, for captions

    @property
    def here(self) -> pd.DataFrame:
        """The runs at the shown rate; empty where it was not recorded under both protocols."""
        return self.runs[self.runs["mrate"] == self.rate] if self.rate in self.rates else self.runs.iloc[:0]


def recorded_runs(settings: Any, rate: float) -> BothProtocols:
    """Collect the recorded runs with the data, model and preset of resolved settings under both protocols."""
    where = settings.run
    runs = recorded(preset=where.preset, model=where.model, dataset=where.dataset)
    if not runs.empty:
        runs = runs[runs["protocol"].isin(PROTOCOLS) & (runs["mrate"] > 0)]
        runs = labelled(as_preset(runs))
    by = [set(runs.loc[runs["protocol"] == p, "mrate"]) for p in PROTOCOLS] if not runs.empty else [set()]
    found = BothProtocols(
        runs, sorted(set.intersection(*by)), rate, f"preset {where.preset}, model {where.model}"
    )
    if found.here.empty:
        print(f"no recorded runs of model {where.model!r} at rate {rate:g} under both protocols here")
        print(f"rates recorded under both: {found.rates}")
    for protocol, part in found.here.groupby("protocol") if not found.here.empty else ():
        print(f"{protocol}: {part['label'].nunique()} methods, {len(part)} runs")
    return found


def _two_marks(axis: Axes, table: pd.DataFrame, value: str, order: Sequence[str]) -> None:
    """Draw mean and single seeds of every method under both protocols, one method per line."""
    for y, label in enumerate(order):
        means = {}
        for k, protocol in enumerate(PROTOCOLS):
            rows = table[(table["label"] == label) & (table["protocol"] == protocol)][value].dropna()
            if len(rows):
                look, at = LOOK[protocol], y + 0.14 * (2 * k - 1)
                means[at] = rows.mean()
                axis.plot(rows, [at] * len(rows), look["marker"], ms=3.5, color="#222222", zorder=3)
                name = protocol if y == 0 else None
                axis.plot(means[at], at, look["marker"], ms=9, alpha=0.75, color=look["color"], label=name)
        if len(means) == 2:
            axis.plot(list(means.values()), list(means), color=plots.NEUTRAL, lw=1, zorder=0)
    axis.set_yticks(range(len(order)), order)
    axis.set_ylim(len(order) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def _order(table: pd.DataFrame, value: str) -> list[str]:
    """Return the methods by their mean under images, those without such runs last."""
    means = table.pivot_table(index="label", columns="protocol", values=value)
    means = means.reindex(columns=list(PROTOCOLS))
    return list(means.sort_values(list(PROTOCOLS), ascending=False).index)


def ranking(found: BothProtocols) -> Figure | None:
    """Draw test rSum of every method under both protocols at three rates, with both ranks."""
    if found.here.empty:
        return None
    order = _order(found.here, "rsum")
    shown = found.rates[-3:] if found.rate in found.rates[-3:] else [found.rate]
    figure, (axes,) = plots.panels(1, len(shown), 8.8, 1.2 + 0.36 * len(order), sharey=True)
    for axis, rate in zip(axes, shown, strict=True):
        part = found.runs[found.runs["mrate"] == rate]
        _two_marks(axis, part, "rsum", order)
        places = part.pivot_table(index="label", columns="protocol", values="rsum").dropna()
        for label, place in places.rank(ascending=False).astype(int).iterrows():
            if label in order:
                ranks = f"{place['images']} → {place['captions']}"
                where = axis.get_yaxis_transform()
                axis.text(1.02, order.index(label), ranks, transform=where, va="center", fontsize=9)
        axis.set(xlabel="rSum on test (max 600)", title=f"rate {rate:g}")
    axes[0].legend(loc="best")
    return figure


def ranking_table(found: BothProtocols) -> Styler | None:
    """Show rSum of every method under both protocols, their difference by seed, and of one network alone."""
    here = found.here
    if here.empty:
        return None
    wide = here.pivot_table(index=["label", "seed"], columns="protocol", values="rsum")
    wide = wide.reindex(columns=list(PROTOCOLS))
    wide["captions − images, same seed"] = wide["captions"] - wide["images"]

    def text(values: pd.Series) -> str:
        return mean_text(list(values.dropna())) if values.notna().any() else "not run"

    rows = {}
    for label in _order(here, "rsum"):
        own = here[here["label"] == label]
        rows[label] = {name: text(wide.loc[label, name]) for name in wide.columns}
        if "single.rsum" in own and own["single.rsum"].notna().any():
            for protocol in PROTOCOLS:
                alone = own.loc[own["protocol"] == protocol, "single.rsum"]
                rows[label][f"one network, {protocol}"] = text(alone)
    caption = (
        f"Measured, {found.words}, rate {found.rate:g}: rSum on test, mean ± standard deviation (seeds); "
        "best epoch on validation; noise drawn with the run's seed. Methods with two networks are tested as "
        "their mean; beside it the mean of the single networks."
    )
    return show(pd.DataFrame(rows).T.fillna(""), "ranking", caption)


def stability(found: BothProtocols) -> Styler | None:
    """Show how far the order of the methods agrees between protocols and between seeds (Kendall's tau)."""
    rows = {
        name: {"mean": np.mean(v), "lowest": min(v), "highest": max(v), "comparisons": f"{len(v)}"}
        for name, v in agreements(found).items()
    }
    if not rows:
        return None
    caption = f"Measured: Kendall's tau at rate {found.rate:g}"
    return show(pd.DataFrame(rows).T.infer_objects(), "stability", caption, digits=2)


def agreements(found: BothProtocols) -> dict[str, list[float]]:
    """Return Kendall's tau between two rankings: of the two protocols first, then of two seeds of each."""
    if found.here.empty:
        return {}
    taus: dict[str, list[float]] = {"between protocols, same seed": []}
    taus |= {f"between seeds, {protocol}": [] for protocol in PROTOCOLS}
    score = found.here.pivot_table(index="label", columns=["protocol", "seed"], values="rsum")
    for one, two in itertools.combinations(score.columns, 2):
        common = score[[one, two]].dropna()
        same = "between protocols, same seed" if one[1] == two[1] else None
        kind = f"between seeds, {one[0]}" if one[0] == two[0] else same
        if kind and len(common) > 2:
            taus[kind].append(kendalltau(common[one], common[two]).statistic)
    return {name: v for name, v in taus.items() if v}


def stability_said(found: BothProtocols) -> Markdown:
    """Say whether the rankings of the two protocols differ more than those of two seeds."""
    means = {name: float(np.mean(v)) for name, v in agreements(found).items()}
    between = means.pop("between protocols, same seed", None)
    if between is None or not means:
        return say("")
    cause = "It is the protocol, not chance" if between < min(means.values()) else "It may be chance"
    within = " and ".join(f"{tau:.2f}" for tau in means.values())
    return say(
        f"{cause}: rankings under the two protocols agree by {between:.2f}, those of two seeds of one "
        f"protocol by {within}."
    )


def detection(found: BothProtocols) -> Figure | None:
    """Draw the AUC of P(clean) of every method that has one, under both protocols."""
    if found.here.empty or "auc" not in found.here or found.here["auc"].isna().all():
        return None
    judged = found.here[found.here["auc"].notna()]
    order = _order(judged, "auc")
    figure, ((axis,),) = plots.panels(1, 1, height=1.2 + 0.34 * len(order))
    _two_marks(axis, judged, "auc", order)
    axis.set(xlabel="AUC of P(clean)", xlim=(0.5, 1.0))
    axis.legend(loc="best")
    return figure
