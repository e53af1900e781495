"""Figures, tables and sentences of the page on Wikipedia: real data of category retrieval, wrong labels."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from ncbook import board, means, recorded, show
from ncbook.chapters.category_baselines import FAMILIES, UNLABELLED, printed_map
from ncbook.compare import Difference, over_rates, verdicts
from ncbook.notebook import NOT_RUN
from ncbook.runs import devices
from nclib.plots import labels

MAIN = ("uot_rcl", "mrl", "elrcmr", "deep_sm", "sdml", "dscmr")  # drawn, the lead method first
PER_PAIR = ["nirnl", "mrl", "deep_sm"]  # run with noise per pair, too
ORDER = [*MAIN, *(m for f in reversed(FAMILIES.values()) for m in f if m not in MAIN), "contrastive_heads"]
CORRECTION = "cross entropy of corrected labels"
CONTRAST = "cross entropy + pair contrast"
BOTH = "cross entropy of corrected labels + pair contrast"
BOUNDED = "MRL's losses on given labels"
BOUNDED_BOTH = "MRL's losses on corrected labels"
VARIANTS = {  # options of uot_rcl -> row of the table of parts; the first five are also compared below
    "lam=0": CORRECTION,
    "plc=ce, relation=instance": CONTRAST,
    "relation=instance": BOTH,
    "label_loss=bounded, plc=ce, relation=mrl": BOUNDED,
    "label_loss=bounded, relation=mrl": BOUNDED_BOTH,
    "plc=off": "uot_rcl w/o label correction",
    "confident=random": "uot_rcl w/o confident set",
}
# A loss with a correction of labels, and the same loss without it.
CORRECTED = {
    "cross entropy": (CORRECTION, "deep_sm"),
    CONTRAST: (BOTH, CONTRAST),
    "MRL's bounded loss + its contrast (UOT-RCL's correction)": (BOUNDED_BOTH, BOUNDED),
    "MRL's bounded loss + its contrast (ELRCMR's correction)": ("elrcmr", "mrl"),
}
NOISE = {"modality": "for images and texts apart", "pair": "once for both halves of a pair"}
PARTS = ["uot_rcl", *VARIANTS.values(), "deep_sm", "mrl", "elrcmr"]


def wikipedia_runs(
    preset: str = "standard", dataset: str = "wikipedia", scope: str = "modality"
) -> pd.DataFrame:
    """Return the recorded runs of a preset on Wikipedia or another data set, with a column ``label``."""
    where = {"preset": preset, "dataset": dataset, "scope": scope, "protocol": "symmetric"}
    runs = recorded("labels", **where)
    if runs.empty:
        return pd.DataFrame(columns=["label", "method", "variant", "noise_rate", "seed", "map_avg", "device"])
    if "option.warmup_epochs" in runs:  # marks runs that were tested at an epoch of their warm-up
        runs = runs.assign(warmup_epochs=runs["option.warmup_epochs"])
    usual = runs[runs["variant"] == ("" if scope == "modality" else f"scope={scope}")]
    parts = runs[(runs["method"] == "uot_rcl") & runs["variant"].isin(VARIANTS)]
    named = [usual.assign(label=usual["method"]), parts.assign(label=parts["variant"].map(VARIANTS))]
    return pd.concat(named, ignore_index=True)


def summary(runs: pd.DataFrame) -> str:
    """Return how many runs there are, of how many rows, which rates and how many seeds."""
    if runs.empty:
        return "no recorded runs here: this needs a checkout of the book"
    seeds = runs.groupby("noise_rate")["seed"].nunique()
    rates = ", ".join(f"{rate:g} ({n})" for rate, n in seeds.items())
    return f"{len(runs)} recorded runs: {runs['label'].nunique()} rows; label noise (seeds): {rates}"


def _table(runs: pd.DataFrame, order: list[str], name: str) -> Styler | None:
    """Show mAP of both directions over label noise, a row for each of ``order``; None without a run."""
    runs = runs[runs["label"].isin(order)]
    if runs.empty:
        return None
    table = means(runs, "label", "noise_rate", "map_avg", digits=3).rename_axis(columns="label noise")
    one = runs.iloc[0]
    caption = (
        f"Measured on {board.data_name(one['dataset'])}, preset {one['preset']}: mAP on "
        f"{one['test_pairs']:,.0f} test pairs, mean of both directions, epoch selected on "
        f"{one['val_pairs']:,.0f} validation pairs; mean ± standard deviation (number of seeds); "
        f"labels redrawn {NOISE[one['scope']]}; {devices(runs)}"
    )
    return show(table.reindex(order).fillna(NOT_RUN), name, caption)


def rate_table(runs: pd.DataFrame, name: str = "rates") -> Styler | None:
    """Show the mAP of every method over label noise; of the methods declared for it with noise per pair."""
    return _table(runs, PER_PAIR if "pair" in set(runs.get("scope", ())) else ORDER, name)


def part_table(runs: pd.DataFrame) -> Styler | None:
    """Show the mAP of UOT-RCL's parts, and of the losses that they change, at the rates of the parts."""
    rates = set(runs.loc[runs["label"].isin(VARIANTS.values()), "noise_rate"])
    return _table(runs[runs["noise_rate"].isin(rates)], PARTS, "parts")


def rate_curves(runs: pd.DataFrame) -> Figure | None:
    """Draw the mAP of the methods of :data:`MAIN` over label noise."""
    runs = runs[runs["label"].isin(MAIN)]
    if runs.empty:
        return None
    return labels.sweep(runs, "noise_rate", xlabel="label noise", group="label")


def _differences(runs: pd.DataFrame, ours: str, theirs: str) -> dict[float, Difference]:
    """Return mAP of one row minus that of another by label noise, where both have runs of one seed."""
    return over_rates(runs, ours, theirs, "noise_rate", "map_avg", digits=3)


def _row(differences: Mapping[float, Difference]) -> dict[str, str]:
    return {f"{rate:g}": difference.short for rate, difference in differences.items()}


def correction_table(runs: pd.DataFrame) -> Styler | None:
    """Show what a correction of the labels brings to each loss, with the same seed."""
    rows = {loss: _row(_differences(runs, *pair)) for loss, pair in CORRECTED.items()}
    return _difference_table(runs, rows, "correction", "with the correction minus without")


def lead_table(runs: pd.DataFrame) -> Styler | None:
    """Show mAP of UOT-RCL minus that of the other methods of :data:`MAIN` with the same seed."""
    rows = {other: _row(_differences(runs, "uot_rcl", other)) for other in MAIN[1:]}
    return _difference_table(runs, rows, "lead", "uot_rcl minus the method of the row")


def _difference_table(
    runs: pd.DataFrame, rows: Mapping[str, dict[str, str]], name: str, what: str
) -> Styler | None:
    table = pd.DataFrame({k: row for k, row in rows.items() if row}).T
    if table.empty:
        return None
    table = table.sort_index(axis=1).rename_axis(columns="label noise").fillna(NOT_RUN)
    preset, dataset = runs[["preset", "dataset"]].iloc[0]
    caption = (
        f"Measured on {board.data_name(dataset)}, preset {preset}: mAP, {what}; mean [95 % interval of the "
        "paired t-test] (seeds)"
    )
    return show(table, name if dataset == "wikipedia" else f"{name}-{dataset}", caption)


def _places(runs: pd.DataFrame) -> dict[str, str]:
    """Return the places of UOT-RCL, printed and measured, and of the best method without labels, by rate."""
    printed = printed_map("II", "Wikipedia").T.groupby(level="noise").mean().T
    said: dict[str, list[str]] = {"lead": [], "unlabelled": []}
    for rate, part in runs[runs["label"].isin(ORDER)].groupby("noise_rate"):
        mean = part.groupby("label")["map_avg"].mean().sort_values(ascending=False)
        place = {label: f"place {k} of {len(mean)}" for k, label in enumerate(mean.index, 1)}
        if "uot_rcl" not in place:  # so far only some rows of this rate
            continue
        theirs = printed[rate].rank(ascending=False)["UOT-RCL"] if rate in printed else None
        beside = f", printed {theirs:.0f} of {len(printed)}" if theirs else ""
        said["lead"].append(f"at {rate:g} {place['uot_rcl']} (best: `{mean.index[0]}`){beside}")
        if best := next((label for label in mean.index if label in UNLABELLED), ""):
            said["unlabelled"].append(f"at {rate:g} `{best}`, {place[best]}")
    return {key: "; ".join(parts) for key, parts in said.items()}


def _correction_accuracy(runs: pd.DataFrame) -> str:
    """Return how many given, corrected and predicted labels are right by label noise, in words."""
    own = runs[runs["label"] == "uot_rcl"]
    columns = ["given_accuracy", "corrected_accuracy", "predicted_accuracy_image", "predicted_accuracy_text"]
    if own.empty:
        return ""
    mean = own.groupby("noise_rate")[columns].mean()
    return "; ".join(
        f"at {rate:g} {given:.0%} of the given labels are right and {corrected:.0%} of the corrected ones"
        f" (image alone {image:.0%}, text alone {text:.0%})"
        for rate, (given, corrected, image, text) in zip(mean.index, mean.to_numpy(), strict=True)
    )


def sentences(runs: pd.DataFrame) -> Markdown:
    """Say what the records say, each sentence computed from them."""
    lead = {other: verdicts(_differences(runs, "uot_rcl", other)) for other in ("mrl", "elrcmr", "deep_sm")}
    gains = {loss: verdicts(_differences(runs, *pair)) for loss, pair in CORRECTED.items()}
    places = _places(runs)
    lines = {
        "Place of UOT-RCL** by mean mAP": places["lead"],
        "Best method that uses no labels**": places["unlabelled"],
        **{f"UOT-RCL against `{other}`**, same seeds": said for other, said in lead.items()},
        "Labels that UOT-RCL corrects**, last epoch": _correction_accuracy(runs),
        **{f"Correction of labels added to {loss}**": said for loss, said in gains.items()},
    }
    text = "\n".join(f"- **{head}: {said}." for head, said in lines.items() if said)
    return Markdown(text or "No records here.")
