"""Figures and tables of the chapter on losses that survive wrong pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

from ncbook import Runs, show
from ncbook.averaged import OF, PLACES, RATES, standing
from ncbook.board import ALONE, CHOSEN, DATA_NAMES, REAL, scored
from ncbook.chapters.photographs import photograph_runs
from ncbook.compare import mean_text, paired
from ncbook.marks import marks_of
from ncbook.notebook import NOT_RUN, means
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
        axis.text(0.5, 0.5, NOT_RUN, transform=axis.transAxes, ha="center", color=plots.NEUTRAL)
    axis.set(xlabel="temperature", ylabel="rSum on validation, rate 0.6")
    return figure


def chosen_table(runs: Runs, dataset: str = "f8k") -> Styler | None:
    """Show rSum at the published temperature and at the one that validation chose; None without a choice.

    The choice is the best of :data:`TEMPERATURES`, all recorded, on the validation photographs of Flickr8K at
    rate 0.6 and seed 0. It holds for all rates, and for other data sets.
    """
    table, taus = at_both(runs, dataset), chosen(runs)
    if not taus:
        return None
    rows = {}
    for label in WITH_SOFTMAX:
        own, tuned = (table[table["label"] == name] for name in (label, label + CHOSEN))
        before = f"{own['option.tau'].iloc[0]:g}" if len(own) else "–"
        after = f"{taus[label]:g}" if label in taus else NOT_RUN
        cells = {("temperature", "published"): before, ("temperature", "chosen"): after}
        for rate in RATES:
            for name, part in (("published", own), ("chosen", tuned)):
                at = part[part["rate"] == rate]
                text = " ".join([mean_text(list(at["value"])) or NOT_RUN, *marks_of(at, "value")])
                cells[f"rate {rate:g}", name] = "the same" if before == after and name == "chosen" else text
        rows[label] = cells
    shown = pd.DataFrame.from_dict(rows, orient="index")
    shown.columns = pd.MultiIndex.from_tuples(shown.columns)
    caption = (
        f"Measured, {DATA_NAMES[dataset]}, preset standard, model bow, images exchanged: rSum as "
        f"published, and at the temperature of {', '.join(f'{t:g}' for t in TEMPERATURES)} with the best "
        "validation on Flickr8K, rate 0.6, seed 0, once all were run; mean ± standard deviation (seeds)"
    )
    return show(shown, f"losses-chosen-{dataset}", caption)


def at_both(runs: Runs, dataset: str) -> pd.DataFrame:
    """Return rows of :func:`ncbook.board.scored`, of methods as published and at the chosen temperature."""
    table = select(scored(runs, temperatures=True), **PLACES[dataset])
    return table[table["networks"] != ALONE]


def carried(runs: Runs, dataset: str = "fashion44k", rate: float = 0.6) -> Markdown:
    """Say for how many methods the temperature chosen on Flickr8K is better or worse on another set."""
    at = dict(tuple(select(at_both(runs, dataset), rate=rate).groupby("label")))
    gaps = [paired(at[k + CHOSEN], at[k], "value") for k in WITH_SOFTMAX if {k, k + CHOSEN} <= set(at)]
    said = f"{sum(d.mean > 0 for d in gaps)} of {len(gaps)} methods"
    if single := sum(d.n == 1 for d in gaps):
        said += f" ({single} of these comparisons {'has' if single == 1 else 'have'} one seed)"
    return Markdown(
        f"On {DATA_NAMES[dataset]}, rate {rate:g}, the temperature chosen on Flickr8K is better than the "
        f"published one for {said}. A temperature, too, belongs to the data that it was chosen on."
    )


NAMES = {"": "triplet", "infonce": "InfoNCE", "infonce_rce": "InfoNCE + RCE", "gce": "GCE"}
APART = {1: "", 2: ", two averaged", 4: ", four averaged"}  # four: of GCE
WIDTH, WORDS = "embed_dim=1024", "word_dim=1024"
CONTROLS = {  # of GCE: more weights in one network, and smoother ones
    f"{WIDTH}, loss=gce": "GCE, one network, output of 1,024 (256)",
    f"loss=gce, {WORDS}": "GCE, one network, word vectors of 1,024 (256)",
    f"loss=gce, networks=2, {WORDS}": "GCE, word vectors of 1,024, two averaged",
    f"{WIDTH}, loss=gce, {WORDS}": "GCE, one network, both of 1,024",
    "ema=0.996, loss=gce": "GCE, moving average of the weights",
}


def averaged_rows(dataset: str = "f8k") -> dict[tuple[str, str], str]:
    """Return method and variant of the rows of :func:`averaged_table`, with their names."""
    plain = {}
    for loss, name in NAMES.items():
        for n, words in APART.items():
            if n < 4 or loss == "gce":
                variant = [f"loss={loss}"] * bool(loss) + [f"networks={n}"] * (n > 1)
                plain[", ".join(variant)] = name + words
    photographs = dataset in REAL["pairs"]
    for tau in ("0.1", "0.14")[: 1 + photographs]:  # the second is chosen on validation
        warm = f"GCE, temperature {tau}"
        plain |= {f"loss=gce, tau={tau}": warm, f"loss=gce, networks=2, tau={tau}": warm + APART[2]}
    plain |= CONTROLS if photographs else {}
    rows = {("plain", variant): name for variant, name in plain.items()}
    for method in ("rcl", "l2rm", "decl", "gsc", "crcl", "crank"):
        rows |= {(method, ""): method, (method, "networks=2"): method + APART[2]}
    if photographs:
        warm = "crank, temperature 0.14"
        rows |= {("crank", "tau=0.14"): warm, ("crank", "networks=2, tau=0.14"): warm + APART[2]}
    return rows | {(method, ""): method for method in OF}


def averaged_table(runs: Runs, dataset: str = "f8k") -> Styler | None:
    """Show networks alone, averaged, and of methods that train two, by rate; None without records."""
    table = select(runs.retrieval, **PLACES[dataset], mrate=list(RATES))
    if table.empty:
        return None
    rows = averaged_rows(dataset)
    names = [rows.get(key) for key in zip(table["method"], table["variant"], strict=True)]
    shown = means(table.assign(label=names), "label", "mrate")
    shown = shown.reindex(index=list(rows.values()), columns=[f"{rate:g}" for rate in RATES])
    where = "preset {preset}, model {model}, {protocol} exchanged".format(**PLACES[dataset])
    caption = f"Measured, {DATA_NAMES[dataset]}, {where}: rSum by mismatch rate (seeds)"
    return show(
        shown.astype(object).fillna(NOT_RUN),
        f"losses-averaged-{dataset}",
        caption,
    )


def headline(runs: Runs, rate: float = 0.6) -> Markdown:
    """Say what two averaged networks of GCE reach on each real set, and who is above them."""
    lines = [f"**In short**, with {rate:.0%} wrong pairs:", ""]
    for dataset in REAL["pairs"]:
        at = select(runs.retrieval, **PLACES[dataset], method="plain", mrate=rate)
        one, two = (
            mean_text(list(select(at, variant=variant)["rsum"])) or NOT_RUN
            for variant in ("loss=gce", "loss=gce, networks=2")
        )
        groups = standing(runs, dataset, rate)
        names = {sign: ", ".join(f"`{name}`" for name in found) or "none" for sign, found in groups.items()}
        lines.append(
            f"* {DATA_NAMES[dataset]}: generalised cross entropy has rSum {one} with one network, {two} with "
            "two, trained apart and averaged. Of the methods whose networks teach each other "
            f"{len(groups['below'])} of {len(OF)} are below this pair; above: {names['above']}; level: "
            f"{names['level']}; fewer than three seeds: {names['fewer than three seeds']}."
        )
    return Markdown("\n".join(lines))


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
