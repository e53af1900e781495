"""Write the README's table and figure from the recorded runs: ``python book/_ext/readme.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- recorded: written by book/_ext/readme.py -->", "<!-- end of recorded -->"
NOTE = (
    "rSum (six recalls, at most 600) on the 1,000 test photographs of Flickr8K, mean ± standard deviation "
    "(seeds). Measured: preset `standard`, a small dual encoder (`bow`), images or captions exchanged at "
    "random, epoch selected on the validation photographs; {device}, one thread. Two networks are "
    "tested together by {two}; MSCN also trains with 2 % known matches."
)


def markdown(table: Any, corner: str) -> str:
    """Return a table of texts as Markdown."""
    rows = [[corner, *table.columns], ["---"] * (len(table.columns) + 1), *table.reset_index().to_numpy()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def content() -> str:
    """Return the table with what was measured."""
    from ncbook import means
    from ncbook.chapters.photographs import ORDER, photograph_runs
    from ncbook.notebook import MARKS, count_once

    runs = photograph_runs()
    noise = [f"{kind} {rate:g}" for kind, rate in zip(runs["protocol"], runs["mrate"], strict=True)]
    table = means(runs.assign(noise=noise), "label", "noise")
    columns = sorted(table.columns, key=lambda name: (name.startswith("captions"), name))
    rows = [label for label in ORDER if label in table.index]
    two = runs.loc[runs["single.rsum"].notna(), "label"]
    note = NOTE.format(
        device=", ".join(sorted(set(runs["device"]))), two=", ".join(row for row in rows if row in set(two))
    )
    cells, note = count_once(table.loc[rows, columns], note)
    shown = markdown(cells, "trained with")
    marks = [f"{mark} {words}." for mark, words in MARKS.items() if f" {mark} " in shown.replace("|", " ")]
    return f"{shown}\n\n{' '.join([note, *marks])}"


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
