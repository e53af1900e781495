"""Figures and tables of the chapter on losses that survive wrong pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import Runs, show
from ncbook.averaged import OF, PLACES, RATES
from ncbook.board import ALONE, CHOSEN, DATA_NAMES, scored
from ncbook.chapters.photographs import photograph_runs
from ncbook.compare import mean_text
from ncbook.notebook import means
from ncbook.runs import select
from ncbook.temperature import TEMPERATURES, WITH_SOFTMAX, chosen, temperatures
from nclib import losses, plots

LOSSES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "plain (infonce)": ("InfoNCE", lambda S: losses.info_nce(S, 1.0)),
    "plain (infonce_rce)": ("InfoNCE/2 + reverse cross entropy", lambda S: losses.infonce_rce(S, 1.0)),
    "rcl": ("RCL, complementary", lambda S: losses.complementary(S, "log", 1.0)),
    "plain (gce)": (
        "generalised cross entropy",
        lambda S: losses.generalised_cross_entropy(S, 1.0, 0.7),
    ),
}
"""Loss of a batch of similarities at temperature 1, by the label of its recorded runs."""
BATCH = 32


def pull(loss: Callable[[Tensor], Tensor], p: Tensor, batch: int = BATCH) -> Tensor:
    """Return how strongly a loss pulls a pair together that has a given probability among equal rivals.

    Parameters
    ----------
    loss : callable
        Values (B,) of similarities (B, B).
    p : Tensor, (P,)
        Probability of the given caption, in (0, 1).
    batch : int
        Size B of the batch.

    Returns
    -------
    Tensor, (P,)
        Minus the derivative by the similarity of the pair, over the temperature.
    """
    found = []
    for one in p:
        S = torch.zeros(batch, batch, dtype=torch.float64)
        S[0, 0] = (one * (batch - 1) / (1 - one)).log()
        S.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(S)[0], S)
        found.append(-gradient[0, 0])
    return torch.stack(found)


def gradient_figure() -> Figure:
    """Draw value and pull of the losses, as shares of the largest, over the pair's probability."""
    p = torch.linspace(0.005, 0.995, 100, dtype=torch.float64)
    figure, ((left, right),) = plots.panels(1, 2, height=3.4)
    for label, (name, loss) in LOSSES.items():
        style = plots.method_style(label)
        values = []
        for one in p:
            S = torch.zeros(BATCH, BATCH, dtype=torch.float64)
            S[0, 0] = (one * (BATCH - 1) / (1 - one)).log()
            values.append(float(loss(S)[0]))
        look = {"color": style["color"], "marker": style["marker"], "markevery": 12, "ms": 5, "label": name}
        left.plot(p, np.array(values) / max(values), **look)
        pulls = pull(loss, p)
        right.plot(p, pulls / pulls.max(), **look)
    left.set(xlabel="probability of the given pair", ylabel="loss, share of its largest", ylim=(0, 1.05))
    right.set(xlabel="probability of the given pair", ylabel="pull, share of its largest", ylim=(0, 1.05))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    return figure


def rates_table() -> Styler:
    """Show rSum of the losses on Flickr8K over the mismatch rate."""
    runs = photograph_runs()
    part = runs[(runs["protocol"] == "images") & runs["label"].isin(["plain (triplet)", *LOSSES])]
    table = means(part, "label", "mrate").reindex(["plain (triplet)", *LOSSES])
    table.index = ["triplet loss", *(name for name, _ in LOSSES.values())]
    caption = "Measured, Flickr8K, preset standard, model bow, images exchanged: rSum by mismatch rate"
    return show(table, "losses-rates", caption, best=False)


def temperature_figure(runs: Runs) -> Figure:
    """Draw validation rSum over the temperature for the rows of :data:`WITH_SOFTMAX`, one seed, rate 0.6."""
    figure, ((axis,),) = plots.panels(1, 1, height=3.6)
    for label, (method, loss) in WITH_SOFTMAX.items():
        found = temperatures(runs, method, loss)
        if len(found) > 1:
            axis.plot(found.index, found["validation"], **plots.method_style(label), label=label)
    if axis.lines:
        axis.set_xscale("log")
        axis.set_xticks(TEMPERATURES, [f"{t:g}" for t in TEMPERATURES])
        axis.minorticks_off()
        figure.legend(loc="outside right center", fontsize=8)
    else:
        axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color=plots.NEUTRAL)
    axis.set(xlabel="temperature", ylabel="rSum on validation, rate 0.6")
    return figure


def chosen_table(runs: Runs, dataset: str = "f8k") -> Styler | None:
    """Show rSum at the published temperature and at the one that validation chose; None without a choice.

    The choice is the best of :data:`TEMPERATURES`, all recorded, on the validation photographs of Flickr8K at
    rate 0.6 and seed 0. It holds for all rates, and for other data sets.
    """
    table = select(scored(runs, temperatures=True), **PLACES[dataset])
    table = table[table["networks"] != ALONE]
    rows = {}
    for label, tau in chosen(runs).items():
        own, tuned = (table[table["label"] == name] for name in (label, label + CHOSEN))
        before = f"{own['option.tau'].iloc[0]:g}" if len(own) else "–"
        same = before == f"{tau:g}"
        cells = {("temperature", "published"): before, ("temperature", "chosen"): f"{tau:g}"}
        for rate in RATES:
            for name, part in (("published", own), ("chosen", tuned)):
                sums = list(part.loc[part["rate"] == rate, "value"])
                text = mean_text(sums) if sums else "not run"
                cells[f"rate {rate:g}", name] = "the same" if same and name == "chosen" else text
        rows[label] = cells
    if not rows:
        return None
    shown = pd.DataFrame.from_dict(rows, orient="index")
    shown.columns = pd.MultiIndex.from_tuples(shown.columns)
    caption = (
        f"Measured, {DATA_NAMES[dataset]}, preset standard, model bow, images exchanged: rSum (seeds) as "
        f"published, and at the temperature of {', '.join(f'{t:g}' for t in TEMPERATURES)} with the best "
        "validation on Flickr8K, rate 0.6, seed 0"
    )
    return show(shown, f"losses-chosen-{dataset}", caption)


NAMES = {"": "triplet", "infonce": "InfoNCE", "infonce_rce": "InfoNCE + RCE", "gce": "GCE"}
APART = {1: "", 2: ", two averaged", 4: ", four averaged"}
WIDTH, WORDS = "embed_dim=1024", "word_dim=1024"
CONTROLS = {  # of GCE: more weights in one network, and smoother ones
    f"{WIDTH}, loss=gce": "GCE, one network, output of 1,024 (256)",
    f"loss=gce, {WORDS}": "GCE, one network, word vectors of 1,024 (300)",
    f"loss=gce, networks=2, {WORDS}": "GCE, word vectors of 1,024, two averaged",
    f"{WIDTH}, loss=gce, {WORDS}": "GCE, one network, both of 1,024",
    "ema=0.996, loss=gce": "GCE, moving average of the weights",
}


def averaged_table(runs: Runs, dataset: str = "f8k") -> Styler | None:
    """Show networks alone, averaged, and of methods that train two, by rate; None without records."""
    table = select(runs.retrieval, **PLACES[dataset])
    if table.empty:
        return None
    of_plain = {}
    for loss, name in NAMES.items():
        for tau in ("", "0.1") if loss == "gce" else ("",):
            for n, words in APART.items():
                given = {"loss": loss, "networks": "" if n == 1 else str(n), "tau": tau}
                variant = ", ".join(f"{k}={v}" for k, v in given.items() if v)
                of_plain[variant] = name + (f", temperature {tau}" if tau else "") + words
    kinds = {"plain": of_plain | CONTROLS}
    for method in ("rcl", "l2rm", "decl", "gsc", "crcl", "crank"):
        kinds[method] = {"": method, "networks=2": f"{method}, two averaged"}
    rows = {}
    for method, variants in (kinds | {method: {"": method} for method in OF}).items():
        for variant, name in variants.items():
            sums = select(table, method=method, variant=variant).groupby("mrate")["rsum"]
            rows[name] = {f"{rate:g}": mean_text(list(part)) for rate, part in sums}
    shown = pd.DataFrame({name: row for name, row in rows.items() if row}).T
    shown = shown.reindex(columns=["0", "0.4", "0.6"]).astype(object).fillna("not run")
    name = DATA_NAMES[dataset]
    caption = f"Measured, {name}, preset standard, model bow, images exchanged: rSum by mismatch rate (seeds)"
    return show(shown, f"losses-averaged-{dataset}", caption)


def gain_of_two(sizes: tuple[int, ...] = (1, 2, 4, 8), noise: float = 1.0, seed: int = 0) -> pd.Series:
    """Return the share of queries that rank right when similarities with independent errors are averaged.

    A made example: 1,000 queries with 100 candidates, the right one 2 above the others, normal errors.
    """
    rng = np.random.default_rng(seed)
    truth = np.zeros((1000, 100))
    truth[:, 0] = 2.0
    errors = noise * rng.standard_normal((max(sizes), *truth.shape))
    found = {n: float(((truth + errors[:n].mean(0)).argmax(1) == 0).mean()) for n in sizes}
    return pd.Series(found, name="share ranked right")
