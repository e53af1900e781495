"""Write the README's table and figure from the recorded runs: ``python book/_ext/readme.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- recorded: written by book/_ext/readme.py -->", "<!-- end of recorded -->"


def recorded_runs() -> Any:
    """Return the recorded quick runs on the bundled data, with a column ``label`` per method and loss."""
    from ncbook import recorded

    runs = recorded(preset="quick", model="saf", dataset="emoji", protocol="images", epochs=3)
    runs = runs[runs["method"].isin(("plain", "l2rm"))].copy()  # the others have few runs on this model
    runs["label"] = [
        f"plain ({row.method_loss})" if row.method == "plain" else row.method for row in runs.itertuples()
    ]
    return runs


def every_method() -> Any:
    """Return the recorded quick runs of all methods on the VSE model with usual settings, likewise."""
    from ncbook import load_runs

    runs = load_runs(dataset="emoji", preset="quick").retrieval
    runs = runs[(runs["model"] == "vse") & (runs["variant"] == "")].copy()
    runs["label"] = ["plain (triplet)" if name == "plain" else name for name in runs["method"]]
    return runs


def method_table(runs: Any) -> str:
    """Return the Markdown table of all methods, one column per protocol and rate."""
    columns = sorted(
        set(zip(runs["protocol"], runs["mrate"], strict=True)), key=lambda c: (c[0] != "images", c)
    )
    lines = ["| method | " + " | ".join(f"{p} {r:g}" for p, r in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for label, part in runs.groupby("label"):
        cells = []
        for protocol, rate in columns:
            values = part.loc[(part["mrate"] == rate) & (part["protocol"] == protocol), "rsum"]
            spread = f" ± {values.std():.1f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.1f}{spread} ({len(values)})" if len(values) else "no record")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    note = (
        "The same with the small VSE model, image-level and caption-level noise. NCR, BiCro, MSCN and REPAIR "
        "are tested as ensembles of their two networks; MSCN trains with 2 % known matches besides."
    )
    return "\n".join(["", *lines, "", note, ""])


def table(runs: Any) -> str:
    """Return the Markdown table: test rSum, mean ± standard deviation (number of seeds)."""
    rates = sorted(runs["mrate"].unique())
    lines = ["| mismatch rate | " + " | ".join(f"{r:g}" for r in rates) + " |"]
    lines.append("|---" * (len(rates) + 1) + "|")
    for label, part in runs.groupby("label"):
        cells = []
        for rate in rates:
            values = part.loc[part["mrate"] == rate, "rsum"]
            spread = f" ± {values.std():.1f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.1f}{spread} ({len(values)})" if len(values) else "no record")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    hardware = ", ".join(sorted(set(runs["device"])))
    note = (
        "rSum (six recalls, at most 600) on 500 test pictures, mean ± standard deviation (seeds). Measured: "
        "bundled data `emoji`, preset `quick`, model SAF, image-level noise, one model, best epoch on 200 "
        f"validation pictures; {hardware}, one thread."
    )
    return "\n".join(["", *lines, "", note, ""])


def text(readme: str, content: str) -> str:
    """Return the README with ``content`` between its two marks."""
    marked = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    return re.sub(marked, lambda _: f"{BEGIN}\n{content}\n{END}", readme, flags=re.S)


def main() -> None:
    """Write both."""
    import matplotlib

    matplotlib.use("Agg")
    from nclib import plots

    plots.use()
    runs = recorded_runs()
    path = ROOT / "README.md"
    content = table(runs) + method_table(every_method())
    path.write_text(text(path.read_text("utf8"), content), "utf8")
    figure = plots.rates(runs)
    figure.savefig(ROOT / "book" / "_static" / "recorded.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
