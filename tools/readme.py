"""Write the README's figure, sentences and table from the recorded runs: ``python tools/readme.py``.

Figure and rows are those of the chapter on losses: its cells are executed here, so that both show the same.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

sys.path.append(str(Path(__file__).resolve().parents[1] / "book" / "_ext"))

from dark_figures import dark

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- recorded: written by tools/readme.py -->", "<!-- end of recorded -->"
CELLS = ("setup", "runs", "two-data", "two-by-two")  # of notebooks/losses.ipynb
RATES, AT = (0.0, 0.4, 0.6), 0.6
SETS = {"Flickr8K": "Flickr8K", "product photographs": "products"}  # data of the chapter -> head of a column
ROWS = {  # name in the README -> label of a run of one network
    "linear, a closed form of seconds": "linear",
    "InfoNCE, undefended": "InfoNCE",
    "L2RM": "L2RM",
    "generalised cross entropy (GCE)": "GCE",
}
KEPT = "InfoNCE, two averaged, on the pairs that the closed form keeps"
PAIR, TAUGHT = "GCE, two networks averaged", "GCE inside SPS: two networks that teach each other"
SAID = """\
**With {rate:.0%} wrong pairs on Flickr8K, InfoNCE keeps an rSum of {infonce:.0f} of {clean:.0f}; another \
loss, one line, has {gce:.0f}, a second network of it, averaged, {pair:.0f}, and the teaching of SPS with \
that loss inside {taught:.0f} ({draws}; two averaged at its temperature: {same:.0f}).** A closed form that \
is fitted in seconds has {linear:.0f} there and {linear_there:.0f} on product photographs, where the \
averaged pair has {pair_there:.0f}: a small set \
measures in part how much a network overfits."""
NOTE = """\
rSum, the sum of six recalls, at most 600: one small model (`bow`, preset `standard`), captions of whole \
images exchanged at random, epoch selected on clean validation pairs, mean of three to five draws or as \
written; on the products nothing was tuned. GCE inside SPS at temperature 0.07, the other GCE rows at 0.05. \
**Bold**: the best of all recorded rows, decided. *Italic*: a run was tested in its warm-up. Dash: not run."""


def chapter() -> dict[str, Any]:
    """Execute the cells :data:`CELLS` and return their names: the runs, the two-by-two and its figure."""
    page = nbformat.read(ROOT / "notebooks" / "losses.ipynb", 4)
    source = {cell.id: cell.source for cell in page.cells}
    names: dict[str, Any] = {"folder": ""}
    for cell in CELLS:
        exec(compile(source[cell], f"losses.ipynb, {cell}", "exec"), names)
    return names


def content(names: dict[str, Any]) -> str:
    """Return what was measured: the sentences and the table."""
    import pandas as pd
    from ncbook.marks import in_warmup
    from ncbook.statistics import not_told_apart

    alone, runs, grid = names["alone"], names["runs"], names["grid"]
    pair = runs[(runs["method"] == "plain") & (runs["variant"] == "loss=gce, networks=2")]
    kept = runs[runs["variant"] == "filter=linear, loss=infonce, networks=2"].assign(label=KEPT)
    taught = grid[(grid["how"] == "SPS") & (grid["loss"] == "GCE")]
    same = grid[(grid["how"] == "two, averaged") & (grid["loss"] == "GCE") & (grid["mrate"] == AT)]
    parts = [alone, kept, pair.assign(label=PAIR), taught.assign(label=TAUGHT)]
    every = pd.concat(parts, ignore_index=True)
    every["early"] = in_warmup(every)
    cells = every.groupby(["label", "data", "mrate"])
    mean, early, seeds = cells["rsum"].mean(), cells["early"].any(), cells["seed"].nunique()

    best = {}
    for place, part in every.groupby(["data", "mrate"]):
        of = {label: one.set_index("seed")["rsum"].to_dict() for label, one in part.groupby("label")}
        first, *level = not_told_apart(of) or [""]
        best[place] = "" if level else first
    head = [f"{short}, {f'{rate:.0%}' if rate else 'clean'}" for short in SETS.values() for rate in RATES]
    lines = [["", *head], ["---", *["---:"] * len(head)]]
    for name, label in {**ROWS, KEPT: KEPT, PAIR: PAIR, TAUGHT: TAUGHT}.items():
        line = [name]
        for at in ((label, data, rate) for data in SETS for rate in RATES):
            text = f"{mean[at]:.0f}" if at in mean else "–"
            text = f"*{text}*" if early.get(at) else text
            text = f"**{text}**" if best.get(at[1:]) == label else text
            line.append(text + (f" ({seeds[at]})" if seeds.get(at, 3) < 3 else ""))
        lines.append(line)
    n = int(seeds[TAUGHT, "Flickr8K", AT])
    said = SAID.format(
        rate=AT, draws=f"{n} draw{'s' * (n > 1)}", clean=mean["InfoNCE", "Flickr8K", 0.0],
        infonce=mean["InfoNCE", "Flickr8K", AT], gce=mean["GCE", "Flickr8K", AT],
        pair=mean[PAIR, "Flickr8K", AT], taught=mean[TAUGHT, "Flickr8K", AT],
        linear=mean["linear", "Flickr8K", AT], linear_there=mean["linear", "product photographs", AT],
        pair_there=mean[PAIR, "product photographs", AT],
        same=same[same["data"] == "Flickr8K"]["rsum"].mean(),
    )  # fmt: skip
    return "\n\n".join([said, "\n".join(f"| {' | '.join(line)} |" for line in lines), NOTE])


def text(readme: str, content: str) -> str:
    """Return the README with ``content`` between its two marks."""
    marked = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    return re.sub(marked, lambda _: f"{BEGIN}\n\n{content}\n\n{END}", readme, flags=re.S)


def main() -> None:
    """Write the table, and the figure for light and for dark pages."""
    import matplotlib

    matplotlib.use("Agg")
    names = chapter()
    path = ROOT / "README.md"
    path.write_text(text(path.read_text("utf8"), content(names)), "utf8")
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "readme"}):  # text stays text
        names["figure"].savefig(drawn, format="svg", metadata={"Date": None}, facecolor="white")
    light = drawn.getvalue().replace("*{", "text{fill: #000000} *{", 1)  # matplotlib leaves out black
    for name, svg in (("two_by_two", light), ("two_by_two_dark", dark(light))):
        (ROOT / "book" / "_static" / f"{name}.svg").write_text(svg, "utf8")


if __name__ == "__main__":
    main()
