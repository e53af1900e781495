"""Write the README's table and figure from the recorded runs: ``python book/_ext/readme.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- recorded: written by book/_ext/readme.py -->", "<!-- end of recorded -->"
ROWS = {  # label of the runs -> name for people
    "plain (triplet)": "triplet loss, hardest negative",
    "plain (infonce)": "InfoNCE",
    "l2rm": "L2RM",
    "rcl": "RCL",
    "plain (gce)": "generalised cross entropy",
    "crank": "CRANK (of this book)",
    "ncr": "NCR",
    "repair": "REPAIR",
    "sps": "SPS",
    "crank_plus": "CRANK+ (of this book)",
}
RATES = (0.0, 0.2, 0.4, 0.6)
NOTE = (
    "rSum, the sum of six recalls, at most 600, on the 1,000 test photographs of Flickr8K: one small model "
    "(`bow`, preset `standard`), captions of whole images exchanged at random, epoch selected on validation; "
    "mean of {least} to {most} seeds, standard deviations up to {spread:.0f}; CPU, one thread. "
    "*Italic*: a run was tested in its warm-up. CRANK was developed on this set's validation photographs."
)
SAID = (
    "**Wrong pairs ruin training**: with {rate:.0%} of them InfoNCE keeps {infonce:.0f} of {clean:.0f}. "
    "**The loss matters most**: generalised cross entropy, one line in place of InfoNCE, keeps {gce:.0f}; "
    "L2RM, with mixture, transport and rematching, {l2rm:.0f}."
)

JUDGED = (
    "**On a set that nothing was tuned on**, 42,072 product photographs with titles and the same model, "
    "CRANK {leads}: with {rate:.0%} wrong pairs it has {crank:.0f}, generalised cross entropy {gce:.0f}, "
    "L2RM {l2rm:.0f}, InfoNCE {infonce:.0f}. **Two networks averaged** are a cheap gain that a method with "
    "two has to beat: generalised cross entropy, `networks=2`, has {pair:.0f} there{taught}, and {own:.0f} "
    "on Flickr8K. (Both from {seeds} so far.)"
)


def runs() -> pd.DataFrame:
    """Return the runs behind the table: on Flickr8K, images exchanged, at the table's rates."""
    from ncbook.chapters.photographs import photograph_runs

    found = photograph_runs()
    return found[(found["protocol"] == "images") & found["mrate"].isin(RATES) & found["label"].isin(ROWS)]


def content() -> str:
    """Return what was measured: two sentences and the table."""
    from ncbook.notebook import in_warmup

    table = runs().assign(early=lambda t: in_warmup(t))
    cells = table.groupby(["label", "mrate"])
    mean, early, n = cells["rsum"].mean(), cells["early"].any(), cells.size()
    networks = table.assign(two=table["single.rsum"].notna()).groupby("label")["two"].any()
    heads = ["clean", *(f"{rate:.0%} wrong" for rate in RATES[1:]), "networks"]
    lines = [["trained with", *heads], ["---", *["---:"] * len(heads)]]
    best = mean.groupby("mrate").max()
    for label, name in ROWS.items():
        line = [name]
        for rate in RATES:
            text = f"{mean[label, rate]:.0f}"
            text = f"*{text}*" if early[label, rate] else text
            line.append(f"**{text}**" if mean[label, rate] == best[rate] else text)
        lines.append([*line, "2" if networks[label] else "1"])
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    at = max(RATES)
    said = SAID.format(
        rate=at,
        infonce=mean["plain (infonce)", at],
        clean=mean["plain (infonce)", 0.0],
        gce=mean["plain (gce)", at],
        l2rm=mean["l2rm", at],
    )
    said += f"\n\n{judged(at)}"
    note = NOTE.format(least=n.min(), most=n.max(), spread=cells["rsum"].std().max())
    return f"{said}\n\n{shown}\n\n{note}"


def judged(rate: float) -> str:
    """Return what the set for judging says, and what two averaged networks are worth, in sentences."""
    from ncbook import load_runs
    from ncbook.board import AVERAGED, ONE, TWO, scored

    table = scored(load_runs(preset="standard"))
    table = table[(table["model"] == "bow") & (table["protocol"] == "images") & (table["rate"] == rate)]
    there = table[table["dataset"] == "fashion44k"]
    mean = there[there["networks"] == ONE].groupby("label")["value"].mean()
    pairs = table[table["label"] == f"plain (gce){AVERAGED}"].groupby("dataset")["value"]
    seeds = max(there["seed"].nunique(), int(pairs.size().max()))
    two = there[(there["networks"] == TWO) & ~there["label"].str.endswith(AVERAGED)]
    best = two.groupby("label")["value"].mean().sort_values()
    taught = f", where {len(best)} methods with two have {best.iloc[0]:.0f} to {best.iloc[-1]:.0f}"
    return JUDGED.format(
        rate=rate,
        leads="leads too" if mean.idxmax() == "crank" else "does not lead",
        crank=mean["crank"],
        gce=mean["plain (gce)"],
        l2rm=mean["l2rm"],
        infonce=mean["plain (infonce)"],
        pair=pairs.mean()["fashion44k"],
        own=pairs.mean()["f8k"],
        taught=taught if len(best) else "",
        seeds="one seed" if seeds == 1 else f"{seeds} seeds",
    )


def text(readme: str, content: str) -> str:
    """Return the README with ``content`` between its two marks."""
    marked = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    return re.sub(marked, lambda _: f"{BEGIN}\n\n{content}\n\n{END}", readme, flags=re.S)


def main() -> None:
    """Write the table and the figure."""
    import matplotlib

    matplotlib.use("Agg")
    from ncbook.chapters.photographs import photograph_runs, rate_curves

    from nclib import plots

    plots.use()
    path = ROOT / "README.md"
    path.write_text(text(path.read_text("utf8"), content()), "utf8")
    figure = rate_curves(photograph_runs())
    assert figure is not None  # the repository holds the records
    figure.savefig(ROOT / "book" / "_static" / "recorded.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
