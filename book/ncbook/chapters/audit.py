"""Tables of the chapter on the audit: the benchmark, people's judgements, posteriors of methods, cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import mean_text, recorded, show
from ncbook.measurements import measurement
from ncbook.notebook import measures
from ncbook.runs import as_preset

MEASURES = {
    "auroc": "AUROC", "ap": "average precision", "p100": "precision at 100", "recall": "recall, 20 % checked",
    "fpr95": "FPR at 95 % recall", "ece": "calibration error", "share_error": "error of the share",
    "partner": "partner accuracy", "partner_stated": "partner accuracy, stated",
    "partner_recall": "partners found",
}  # fmt: skip
COMPARED = tuple(name for name in MEASURES if not name.startswith("partner"))
ORDER = ("auroc", "ap", "p100", "recall", "fpr95")  # of the order of suspicion; the others of what is stated
LOWER = {"fpr95", "ece", "share_error"}
NOISES = {
    "random": "random exchange", "near": "near neighbours", "swap": "swapped", "shift": "shifted runs",
    "orphan": "other half",
}  # fmt: skip
RATE = 0.2  # share of wrong pairs unless a table says another
OUTSIDE = ("LEMoN", "cleanlab, outliers", "cleanlab, labels")


# ---------------------------------------------------------------------------------------------- the benchmark


def stored(part: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the rows of a stored part of the benchmark, and what is known about the run.

    ``share_error`` becomes its absolute value.
    """
    found = measurement(f"audit_{part}")
    rows = pd.DataFrame(found.pop("rows"))
    if "share_error" in rows:
        rows["share_error"] = rows["share_error"].abs()
    return rows, found


def provenance(about: dict[str, Any]) -> str:
    """Return machine, commit and day of a stored part."""
    made = about["environment"]
    return f"{made['device']}, commit {str(made['commit'])[:7]}, {about['when'][:10]}"


def benchmark(rows: pd.DataFrame, about: dict[str, Any], data: str, measure: str) -> Styler:
    """Show a measure of one data set by score and kind of noise; the best of a column is bold.

    Parameters
    ----------
    rows : DataFrame
        From :func:`stored`.
    about : dict
        From :func:`stored`.
    data : str
        Name of the data.
    measure : str
        One of ``MEASURES``.
    """
    name = f"{data.replace(', ', '-')}-{measure}"
    return _compared(
        cells(rows[rows["rate"] == RATE], data, measure), rows, about, data, measure, "20 % wrong", name
    )


def rates(rows: pd.DataFrame, about: dict[str, Any], data: str, measure: str) -> Styler:
    """Show a measure of one data set by score and share of wrong pairs, exchanged at random."""
    exchanged = rows[(rows["noise"] == "random") & (rows["data"] == data)].sort_values("rate", kind="stable")
    part = cells(exchanged, data, measure)
    part.columns = [f"{100 * rate:g} %" for rate in exchanged["rate"].unique()]
    words, name = "by the share of pairs that random exchange made wrong", f"{measure}-by-rate"
    return _compared(part, rows, about, data, measure, words, name)


def _compared(
    part: pd.DataFrame,
    rows: pd.DataFrame,
    about: dict[str, Any],
    data: str,
    measure: str,
    words: str,
    name: str,
) -> Styler:
    table = part.map(lambda values: mean_text(values, 3) if isinstance(values, list) else "–")
    best = part.map(lambda values: np.mean(values) if isinstance(values, list) else np.nan)
    best = best.idxmin() if measure in LOWER else best.idxmax()
    caption = (
        f"Measured: {MEASURES[measure]} on {data}, {rows[rows['data'] == data]['pairs'].max():,} pairs, "
        f"{words}; mean ± standard deviation (seeds); {provenance(about)}"
    )
    styled = show(table, name, caption)
    bold = pd.DataFrame("", table.index, table.columns)
    for column, row in best.items():
        bold.loc[row, column] = "font-weight: bold"
    return styled.apply(lambda _: bold, axis=None)


def cells(rows: pd.DataFrame, data: str, measure: str) -> pd.DataFrame:
    """Return the values of all seeds by score and noise, as lists; NaN where there is none."""
    if measure not in rows:
        return pd.DataFrame()
    part = rows[(rows["data"] == data) & rows[measure].notna()]
    if part.empty:
        return pd.DataFrame()
    kinds = [NOISES[noise] + ("" if rate == RATE else f", {rate:g}")
             for noise, rate in zip(part["noise"], part["rate"], strict=True)]  # fmt: skip
    found = part.assign(kind=kinds).groupby(["score", "kind"], sort=False)[measure].agg(list).unstack("kind")
    own = [score for score in part["score"].unique() if score not in (*OUTSIDE, "auto")]
    order = ["auto", *own, *OUTSIDE]
    return found.loc[[score for score in order if score in found.index], list(dict.fromkeys(kinds))]


def standing(rows: pd.DataFrame, measures: Iterable[str] = COMPARED) -> pd.DataFrame:
    """Compare ``auto`` with the best row of every column of the benchmark.

    Calibration error and error of the share are known of ``auto`` and ``cosine`` only.

    Returns
    -------
    DataFrame
        ``data``, ``noise``, ``measure``, ``auto`` and ``best`` (means), ``by`` (the best row), ``gap`` (how
        much worse auto is, at least 0) and ``within``: whether the gap is at most the larger of both
        standard deviations.
    """
    found = []
    for data in dict.fromkeys(rows["data"]):
        for measure in measures:
            part = cells(rows, data, measure)
            for kind in part:
                column = part[kind].dropna()
                if "auto" not in column or len(column) < 2:
                    continue
                means, sign = column.map(np.mean), -1 if measure in LOWER else 1
                by = (sign * means).idxmax()
                gap = float(sign * (means[by] - means["auto"]))
                spread = max(float(np.std(column[name], ddof=1)) if len(column[name]) > 1 else 0.0
                             for name in ("auto", by))  # fmt: skip
                found.append({"data": data, "noise": kind, "measure": measure, "auto": means["auto"],
                              "best": means[by], "by": by, "gap": gap, "within": gap <= spread})  # fmt: skip
    return pd.DataFrame(found)


def standing_sentence(rows: pd.DataFrame) -> str:
    """Return in how many columns ``auto`` is the best or within the spread of the best, by measure."""
    found = standing(rows)
    parts = [
        f"{MEASURES[measure]} {int(part['within'].sum())} of {len(part)}"
        for measure, part in found.groupby("measure", sort=False)
    ]
    worst = found[(found["measure"] == "auroc")].nlargest(1, "gap").iloc[0]
    return (
        f"`auto` is the best row or within the spread of the best in {int(found['within'].sum())} of "
        f"{len(found)} columns ({'; '.join(parts)}). Its largest distance in AUROC is {worst['gap']:.3f}, to "
        f"{worst['by']} on {worst['data']}, {worst['noise']}."
    )


def behind(rows: pd.DataFrame, measure: str = "auroc", n: int = 12) -> Styler:
    """Show the columns in which ``auto`` is not within the spread of the best, largest distance first."""
    found = standing(rows, [measure])
    found = found[~found["within"]].nlargest(n, "gap").drop(columns=["within", "measure"])
    caption = f"Columns in which auto is behind the best by more than the spread: {MEASURES[measure]}"
    return show(found, f"behind-{measure}", caption, digits=3, index=False)


def calibration_sentence(rows: pd.DataFrame, aim: float = 0.02) -> str:
    """Return where the calibration error of ``auto`` on random exchanges is within the aim."""
    part = rows[(rows["score"] == "auto") & (rows["noise"] == "random")]
    means = part.groupby(["data", "rate"])["ece"].mean()
    said = ", ".join(f"{data} at {rate:g}: {value:.3f}" for (data, rate), value in means.items())
    reached = int((means <= aim).sum())
    return (
        f"Calibration error of `auto` on random exchanges: {said}. The aim, at most {aim:g}, is reached in "
        f"{reached} of {len(means)}."
    )


def by_measure(
    rows: pd.DataFrame, about: dict[str, Any], data: str, noise: str, *, stated: bool = False
) -> Styler:
    """Show measures of one data set and one kind of noise by score, at 20 %.

    ``stated``: of what the audit states (probabilities, share, partners), by measure; else of its order.
    """
    part = rows[(rows["data"] == data) & (rows["noise"] == noise) & (rows["rate"] == RATE)]
    caption = (
        f"Measured: {data}, {NOISES[noise]}, 20 % wrong; mean ± standard deviation (seeds); "
        f"{provenance(about)}"
    )
    return _measures(part.assign(label=part["score"]), f"measures-{noise}", caption, stated)


def _measures(part: pd.DataFrame, name: str, caption: str, stated: bool) -> Styler:
    """Show measures by ``label``: of the order of suspicion, or those stated, one row each."""
    names = [measure for measure in MEASURES if measure in part and (measure in ORDER) != stated]
    if stated:
        part = part[part["ece"].notna()]
    own = [label for label in part["label"].unique() if label not in (*OUTSIDE, "auto")]
    order = [label for label in ("auto", *own, *OUTSIDE) if label in set(part["label"])]
    table = measures(part, {name: MEASURES[name] for name in names}).loc[order].rename_axis("score")
    return show(table.T if stated else table, f"{name}-stated" if stated else name, caption)


def patterns(rows: pd.DataFrame) -> Styler:
    """Show by data and noise how many wrong and right pairs the recognised patterns hold."""
    found = []
    for row in rows[rows["patterns"].notna()].to_dict("records"):
        for kind in ("swap", "shift", "orphan"):
            count = row["patterns"].get(kind, {"found": 0, "wrong": 0, "right": 0})
            about = {"data": row["data"], "noise": NOISES[row["noise"]], "rate": row["rate"], "pattern": kind}
            share = count["wrong"] / (row["rate"] * row["pairs"])
            found.append({**about, "share": share, "right": count["right"]})
    table = pd.DataFrame(found)
    table = (
        table[table["rate"] == RATE]
        .groupby(["data", "noise", "pattern"], sort=False)[["share", "right"]]
        .mean()
    )
    table.columns = ["wrong pairs in it, of all wrong", "right pairs in it"]
    caption = "Measured: patterns that auto recognised; mean over the seeds"
    return show(table.unstack("pattern"), "patterns", caption, format="{:.3g}")


# ---------------------------------------------------------------------------------------- people's judgements


def people(rows: pd.DataFrame, about: dict[str, Any], of: str) -> Styler:
    """Show how well scores agree with people, by score and by what the encoders were trained on.

    ``of`` is "crowd" or "experts".
    """
    part = rows[rows["of"] == of]
    columns = part["trained_at"].map(
        lambda rate: "right pairs" if rate == 0 else f"{100 * rate:g} % exchanged"
    )
    names = {"auroc": "AUROC", "ap": "average precision"}
    table = measures(part.assign(trained=columns), names, ["score", "trained"]).unstack(1)
    caption = (
        f"Measured: {part['pairs'].max():,} judged pairs of Flickr8K's test photographs ({of}); encoders "
        f"trained on the training photographs; mean ± standard deviation (seeds); {provenance(about)}"
    )
    return show(table, f"people-{of}", caption)


def mixed(rows: pd.DataFrame, about: dict[str, Any], *, stated: bool = False) -> Styler:
    """Show the audit of pairs that the crowd judged; ``stated`` as in :func:`by_measure`."""
    part = rows[rows["of"] == "mixed"].filter(regex="^(?!partner)")
    part = part[(part["trained_at"] == 0) | (part["score"] == "auto")]
    labels = part["score"] + part["trained_at"].map(
        lambda rate: "" if rate == 0 else f", at {100 * rate:g} %"
    )
    caption = (
        f"Measured: {part['pairs'].max():,} pairs, 40 % rejected by the crowd; at 40 %, 60 %: encoders "
        "trained with that share of the pictures exchanged; mean ± standard deviation (seeds); "
        f"{provenance(about)}"
    )
    return _measures(part.assign(label=labels), "mixed", caption, stated)


def published(rows: pd.DataFrame) -> str:
    """Return what the audit and the crowd say of the published pairs, in sentences."""
    part = rows[rows["of"] == "published"]
    first = part.iloc[0]
    base = first["rejected"] / first["judged"]
    lines = [
        f"Of the {first['pairs']:,.0f} published pairs with caption #2 the crowd judged "
        f"{first['judged']:.0f} and rejected {first['rejected']:.0f} ({base:.1%})."
    ]
    for row in part.to_dict("records"):
        rate = row["first_rejected"] / row["first_judged"] if row["first_judged"] else np.nan
        lines.append(
            f"Seed {row['seed']}: estimated share wrong {row['share']:.1%} ({row['share_low']:.1%} to "
            f"{row['share_high']:.1%}), {row['called_wrong']:.0f} pairs with P(wrong) ≥ 0.5; of the first "
            f"100, {row['first_judged']:.0f} were judged, and of these {row['first_rejected']:.0f} rejected "
            f"({rate:.1%})."
        )
    found = part["first_rejected"].sum() / max(1, part["first_judged"].sum())
    lines.append(f"Rejected among the first 100, over the seeds: {found:.1%}; among all judged: {base:.1%}.")
    return "\n".join(lines)


def found_ids(rows: pd.DataFrame) -> list[str]:
    """Return the ids of rejected published pairs that are among the first 100 with every seed."""
    return sorted(set.intersection(*map(set, rows.loc[rows["of"] == "published", "found_ids"])))


# ---------------------------------------------------------------------------------- posteriors of the methods


def posteriors(rows: pd.DataFrame, about: dict[str, Any]) -> Styler:
    """Show P(matched) of recorded runs beside the audit of the very pairs, by mismatch rate."""
    runs = recorded(preset="standard", dataset="f8k", model="bow")
    runs = as_preset(runs)
    runs = runs[
        (runs["protocol"] == "images")
        & runs["auc"].notna()
        & runs["mrate"].isin(rows["rate"])
        & (runs["seed"] == 0)
    ]
    ours = rows.assign(label="audit, " + rows["score"]).rename(columns={"auroc": "auc", "rate": "mrate"})
    both = pd.concat([ours[["label", "mrate", "auc", "ece"]],
                      runs.assign(label=runs["method"])[["label", "mrate", "auc", "ece"]]])  # fmt: skip
    table = both.groupby(["label", "mrate"], sort=False)[["auc", "ece"]].first()
    table = table.map(lambda v: f"{v:.3f}" if pd.notna(v) else "–")
    table = (
        table.rename(columns={"auc": "AUROC", "ece": "calibration error"}).unstack("mrate").fillna("not run")
    )
    caption = (
        "Measured on the 30,000 training pairs of Flickr8K, pictures exchanged, seed 0: P(matched) of each "
        "method's last epoch (recorded runs at its own settings) and the audit; –: no probability; "
        f"{provenance(about)}"
    )
    return show(table, "posteriors", caption)


def scale(rows: pd.DataFrame, about: dict[str, Any]) -> Styler:
    """Show what an audit costs by the number of pairs, beside the bare product of all cosines."""
    seconds = pd.DataFrame(rows["seconds"].tolist())
    table = pd.DataFrame(
        {
            "pairs": rows["pairs"].map("{:,}".format),
            "minutes": (seconds["total"] / 60).map("{:.1f}".format),
            "of these neighbours": (seconds["find_neighbours"] / seconds["total"]).map("{:.0%}".format),
            "bare product": (rows["product"] / 60).map("{:.1f}".format),
            "ratio": rows["ratio"].map("{:.2f}".format),
            "memory": (rows["peak_mb"] / 1e3).map("{:.1f} GB".format),
            "files": (rows["pairs"] * 2 * 512 * 4 / 1e9).map("{:.1f} GB".format),
            "neighbours found": rows["recall"].map("{:.3f}".format),
            "AUROC": rows["auroc"].map("{:.3f}".format),
        }
    ).set_index("pairs")
    caption = (
        "Measured CPU minutes of one core: made pairs of 512 numbers, a tenth of them wrong, in files that "
        "are mapped into memory: their pages do not count, as the system takes them back when memory is "
        "short. The bare product is all cosines between and within the two modalities, "
        f"extrapolated from tiles that are timed beside; {provenance(about)}"
    )
    return show(table, "scale", caption)
