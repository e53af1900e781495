"""Write the README's tables and figure from the recorded runs: ``python book/_ext/readme.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- recorded: written by book/_ext/readme.py -->", "<!-- end of recorded -->"
NOTE = (
    "rSum (six recalls, at most 600) on 500 test pictures, mean ± standard deviation (seeds). Measured: "
    "bundled data `emoji`, preset `quick`, model SAF, image-level noise, one model, best epoch on 200 "
    "validation pictures; {device}, one thread."
)
NOTE_ON_METHODS = (
    "The same with the small VSE model, image-level and caption-level noise. NCR, BiCro, MSCN and REPAIR are "
    "tested as ensembles of their two networks; MSCN also trains with 2 % known matches. † some runs were "
    "tested at an epoch of warm-up; for NCR, BiCro, DECL and REPAIR the present version leaves these out."
)


def saf_runs() -> Any:
    """Return the recorded quick runs of L2RM and plain training on the model SAF."""
    from ncbook import recorded
    from ncbook.chapters import labelled

    runs = recorded(preset="quick", model="saf", dataset="emoji", protocol="images", epochs=3)
    return labelled(runs[runs["method"].isin(("plain", "l2rm"))])  # the others have few runs on this model


def vse_runs() -> Any:
    """Return the recorded quick runs of all methods on the model VSE with usual settings."""
    from ncbook import load_runs

    runs = load_runs(dataset="emoji", preset="quick").retrieval
    runs = runs[(runs["model"] == "vse") & (runs["variant"] == "")]
    return runs.assign(
        label=runs["method"].replace("plain", "plain (triplet)"),
        noise=[f"{kind} {rate:g}" for kind, rate in zip(runs["protocol"], runs["mrate"], strict=True)],
    )


def markdown(table: Any, corner: str) -> str:
    """Return a table of texts as Markdown."""
    rows = [[corner, *table.columns], ["---"] * (len(table.columns) + 1), *table.reset_index().to_numpy()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def content() -> str:
    """Return both tables with what was measured."""
    from ncbook import means

    saf, vse = saf_runs(), vse_runs()
    columns = sorted(set(vse["noise"]), key=lambda name: (name.startswith("captions"), name))
    tables = (
        markdown(means(saf, "label", "mrate"), "mismatch rate"),
        markdown(means(vse, "label", "noise")[columns], "method"),
    )
    note = NOTE.format(device=", ".join(sorted(set(saf["device"]))))
    return "\n\n".join(["", tables[0], note, tables[1], NOTE_ON_METHODS, ""]).strip("\n")


def text(readme: str, content: str) -> str:
    """Return the README with ``content`` between its two marks."""
    marked = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    return re.sub(marked, lambda _: f"{BEGIN}\n\n{content}\n\n{END}", readme, flags=re.S)


def main() -> None:
    """Write the tables and the figure."""
    import matplotlib

    matplotlib.use("Agg")
    from nclib import plots

    plots.use()
    path = ROOT / "README.md"
    path.write_text(text(path.read_text("utf8"), content()), "utf8")
    plots.rates(saf_runs()).savefig(ROOT / "book" / "_static" / "recorded.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
