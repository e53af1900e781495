"""Write the README's table and figure from the recorded runs: ``python book/_ext/readme.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- recorded: written by book/_ext/readme.py -->", "<!-- end of recorded -->"
ROWS = {  # label on the leaderboard -> name for people
    "linear": "linear, a closed form",
    "plain (infonce)": "InfoNCE",
    "l2rm": "L2RM",
    "plain (gce)": "generalised cross entropy (GCE)",
    "crank": "CRANK (of this book)",
    "plain (gce), averaged": "GCE, two averaged",
    "ncr": "NCR",
    "repair": "REPAIR",
    "sps": "SPS",
    "gsc_plus": "GSC+",
    "crank_plus": "CRANK+ (of this book)",
}
RATES = (0.0, 0.4, 0.6)
SETS = {"f8k": "Flickr8K", "fashion44k": "products"}  # name in the head of a column
GCE = "plain (gce)"
SHORT = {GCE: "GCE"}  # names in a sentence
PLAIN = {"fewer than three seeds": "with fewer than three seeds"}
NOTE = (
    "rSum, the sum of six recalls, at most 600: one small model (`bow`, preset `standard`), captions of "
    "whole images exchanged at random, epoch selected on validation; mean of {f8k} on Flickr8K (1,000 test "
    "photographs; CRANK was developed on its validation photographs) and {fashion44k} on 42,072 product "
    "photographs with titles, **on which nothing was tuned**; standard deviations up to {spread:.0f}; CPU, "
    "one thread. Time: CPU seconds of training on the product photographs, against one network of GCE. "
    "*Italic*: a run was tested at an epoch of its warm-up. Dash: not run."
)
SAID = """\
- **The floor is a closed form** (`nclib.run("linear")`): regularised CCA of mean regions and TF-IDF, \
fitted again to the pairs that its own scores keep, in {seconds:.0f} CPU seconds. With {rate:.0%} wrong \
pairs it has rSum {linear:.0f} on Flickr8K{over}, and {linear_there:.0f} on product photographs. A small \
set and a small network measure in part how much the network overfits.
- **Two networks of generalised cross entropy (GCE), trained apart and averaged** \
(`nclib.run("plain", loss="gce", networks=2)`) have rSum {pair:.0f} on \
Flickr8K and {there:.0f} on product photographs, where one network of InfoNCE keeps {infonce:.0f} of \
{clean:.0f} and {infonce_there:.0f} of {clean_there:.0f}. Methods whose two networks teach each other, \
beside that pair, at {rate:.0%} (paired by seed, pooled deviation, Holm): on Flickr8K {f8k}; on product \
photographs {fashion44k}.
- **The loss matters**: GCE, one line in place of InfoNCE, keeps {gce:.0f} on Flickr8K with one \
network; L2RM, with mixture, transport and rematching, {l2rm:.0f}{early}. With cross \
attention (`saf`) the order is another: GCE {gce_saf:.0f}, L2RM \
{l2rm_saf:.0f}.
- **The temperature matters too**: at the value that validation on Flickr8K chooses for each method, not \
the published one, Flickr8K at {rate:.0%} gives {warm} ({seeds}){elsewhere}.
- **CRANK, of this book, leads the trained rows on Flickr8K{leads}.** It was changed after both test sets \
had been seen. *What holds* (`_build/html/notebooks/photographs.html`) \
has all methods on both sets."""


def scores(model: str = "bow") -> pd.DataFrame:
    """Return the rows of the leaderboard of a model: both real sets, images exchanged."""
    from ncbook import load_runs
    from ncbook.board import ALONE, scored

    table = scored(load_runs(preset="standard"), temperatures=True)
    table = table[(table["model"] == model) & (table["protocol"] == "images") & (table["networks"] != ALONE)]
    return table[table["dataset"].isin(SETS) & table["rate"].isin(RATES)]


def content() -> str:
    """Return what was measured: a few sentences and the table."""
    from ncbook import load_runs
    from ncbook.averaged import standing
    from ncbook.board import AVERAGED, CHOSEN, TWO
    from ncbook.compare import paired, seeds_text

    every = scores()
    warm = every["label"].str.contains(CHOSEN)
    table = every[~warm]
    cells = table.groupby(["dataset", "label", "rate"])
    mean, early, n = cells["value"].mean(), cells["early"].any(), cells.size()
    best = mean[mean.index.isin(ROWS, level=1)].groupby(level=["dataset", "rate"]).max()
    networks = table.groupby("label")["networks"].first()
    timed = table[table["dataset"] == "fashion44k"].groupby(["rate", "label"])["seconds"].mean().unstack()
    times = timed.div(timed[GCE], axis=0).mean()

    head = [f"{short}, {f'{rate:.0%}' if rate else 'clean'}" for short in SETS.values() for rate in RATES]
    lines = [["trained with", "networks", *head, "time"], ["---", *["---:"] * (len(head) + 2)]]
    for label, name in ROWS.items():
        line = [name, "2" if networks[label] == TWO else "1"]
        for key in ((dataset, label, rate) for dataset in SETS for rate in RATES):
            text = _shown(mean[key], early[key]) if key in mean else "–"
            line.append(f"**{text}**" if mean.get(key) == best[key[0], key[2]] else text)
        lines.append([*line, f"{times[label]:.1f}"])
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines)

    at = max(RATES)
    here, there = mean["f8k"].xs(at, level="rate"), mean["fashion44k"].xs(at, level="rate")
    chosen = every[warm & (every["rate"] == at) & (every["dataset"] == "f8k")].groupby("label")
    tuned = {
        label.removesuffix(CHOSEN): _shown(part["value"].mean(), part["early"].any())
        for label, part in chosen
    }
    apart = every[(every["dataset"] == "fashion44k") & (every["rate"] == at)].groupby("label")
    parts = {str(k): part for k, part in apart}
    moved = [paired(parts[k], parts[k.removesuffix(CHOSEN)], "value") for k in parts if CHOSEN in k]
    lower = sum(d.mean < 0 for d in moved)
    kept = f"; on product photographs the same values lower the mean of {lower} of {len(moved)} methods"
    kept = f"{kept} ({seeds_text([d.n for d in moved])})" if lower else ""
    l2rm = table[(table["dataset"] == "f8k") & (table["label"] == "l2rm") & (table["rate"] == at)]["early"]
    early = f" ({l2rm.sum()} of {len(l2rm)} runs were tested in their warm-up)" if l2rm.any() else ""
    beside = {d: standing(load_runs(preset="standard"), d, at) for d in SETS}
    ones = there[networks.reindex(there.index) != TWO]
    cross = scores("saf")
    cross = cross[cross["rate"] == at].groupby("label")["value"].mean()
    said = SAID.format(
        rate=at,
        linear=here["linear"],
        linear_there=there["linear"],
        over=", above every other row" if here.idxmax() == "linear" else "",
        seconds=table[(table["label"] == "linear") & (table["dataset"] == "f8k")]["seconds"].max(),
        gce_saf=cross[GCE],
        l2rm_saf=cross["l2rm"],
        infonce=here["plain (infonce)"],
        clean=mean["f8k", "plain (infonce)", 0.0],
        infonce_there=there["plain (infonce)"],
        clean_there=mean["fashion44k", "plain (infonce)", 0.0],
        gce=here[GCE],
        l2rm=here["l2rm"],
        early=early,
        pair=here[GCE + AVERAGED],
        there=there[GCE + AVERAGED],
        **{
            dataset: ", ".join(f"{len(them)} {PLAIN.get(k, k)}" for k, them in groups.items() if them)
            for dataset, groups in beside.items()
        },
        warm=", ".join(
            f"{SHORT.get(label, name.split(' (')[0])} {tuned[label]}"
            for label, name in ROWS.items()
            if label in tuned
        ),
        seeds=seeds_text(chosen.size()),
        elsewhere=kept,
        leads=" and on product photographs" if ones.idxmax() == "crank" else ", not on product photographs",
    )
    spans = {d: seeds_text(n[n.index.isin(ROWS, level=1)][d]) for d in SETS}
    return f"{said}\n\n{shown}\n\n{NOTE.format(**spans, spread=cells['value'].std().max())}"


def _shown(value: float, early: bool) -> str:
    """Write a mean, in italics if one of its runs was tested in its warm-up."""
    return f"*{value:.0f}*" if early else f"{value:.0f}"


def text(readme: str, content: str) -> str:
    """Return the README with ``content`` between its two marks."""
    marked = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    return re.sub(marked, lambda _: f"{BEGIN}\n\n{content}\n\n{END}", readme, flags=re.S)


def main() -> None:
    """Write the table and the figure."""
    import matplotlib

    matplotlib.use("Agg")
    from ncbook.chapters.photographs import two_sets

    from nclib import plots

    plots.use()
    path = ROOT / "README.md"
    path.write_text(text(path.read_text("utf8"), content()), "utf8")
    figure = two_sets(scores())
    assert figure is not None  # the repository holds the records
    figure.savefig(ROOT / "book" / "_static" / "recorded.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
