"""Tables and sentences of the page "Speed and costs": measured time of a step, and what follows from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import board, gpu, show
from ncbook.compare import mean_text
from ncbook.marks import explained, marks_of
from ncbook.measurements import made, measurement
from ncbook.notebook import NOT_RUN
from ncbook.papers import printed
from ncbook.runs import Runs, recorded

SIZES = (10_000, 100_000, 1_000_000)
HOUR = 3600
GIGABYTE = 1e9
# Numbers per picture of common features, and their bytes as float32; captions are a few hundred bytes each.
SHAPES = {
    "one vector of 512 (CLIP embedding)": (1, 512),
    "16 cells of 1,280": (16, 1280),
    "36 regions of 2,048 (the papers)": (36, 2048),
}
BYTES = 4
METHODS = ("plain", "crank", "l2rm")  # of the benchmark of many pairs
PRECISIONS = ("fp32", "tf32", "bf16")
PLACE = ["dataset", "preset", "model"]


def steps_of(pairs: int, batch: int, epochs: int) -> int:
    """Return the number of batches in a training: those of an epoch, the last one in part, times the epochs.

    Examples
    --------
    >>> steps_of(30_000, 128, 12)
    2820
    """
    return math.ceil(pairs / batch) * epochs


def step_times(runs: Runs) -> pd.DataFrame:
    """Return the measured time of a step, one row per run with the settings of its preset.

    Parameters
    ----------
    runs : Runs
        From :func:`ncbook.load_runs`.

    Returns
    -------
    DataFrame
        ``dataset``, ``preset``, ``model``, ``label``, ``batch_size``, ``all_epochs``, ``train_pairs``,
        ``device``, ``milliseconds`` and ``peak_memory_mb``. A step is one batch of the training pairs: the
        seconds of the run over :func:`steps_of`, so that warm-up, the passes that divide the pairs, and
        validation are spread over the steps. ``linear``, a closed form, has none.
    """
    table = runs.retrieval
    if table.empty:
        return pd.DataFrame(columns=[*PLACE, "label", "milliseconds"])
    names = board.scored(runs)
    label = names[names["networks"] != board.ALONE].set_index("path")["label"]
    known = table["path"].isin(label.index) & table["train_pairs"].notna() & (table["seconds"] > 0)
    known &= table["method"] != "linear"  # a closed form takes no steps
    part = table[known].copy()
    part["label"] = part["path"].map(label)
    part["all_epochs"] = part["warmup_epochs"] + part["epochs"]
    part["train_pairs"] = part["train_pairs"].astype(int)
    steps = [
        steps_of(*row) for row in part[["train_pairs", "batch_size", "all_epochs"]].itertuples(index=False)
    ]
    part["milliseconds"] = 1000 * part["seconds"] / steps
    kept = [*PLACE, "label", "batch_size", "all_epochs", "train_pairs", "device", "milliseconds"]
    return part[[*kept, "peak_memory_mb"]].reset_index(drop=True)


def hours(milliseconds: float, pairs: int, batch: int, epochs: int) -> float:
    """Return the hours of a training whose steps take a known time.

    Examples
    --------
    >>> round(hours(12.0, 1_000_000, 128, 12), 2)
    0.31
    """
    return milliseconds / 1000 * steps_of(pairs, batch, epochs) / HOUR


def hours_text(value: float) -> str:
    """Write hours with two digits that mean something, minutes below one hour."""
    if value < 1:
        return f"{60 * value:.0f} min" if value >= 1 / 60 else "< 1 min"
    return f"{value:.1f} h" if value < 10 else f"{value:.0f} h"


def hours_table(times: pd.DataFrame, dataset: str, model: str) -> Styler | None:
    """Show the measured step of every method of one place, and the hours for larger sets that follow.

    Parameters
    ----------
    times : DataFrame
        From :func:`step_times`.
    dataset, model : str
    """
    part = times[(times["dataset"] == dataset) & (times["model"] == model)]
    if part.empty:
        return None
    rows = {}
    for label, own in part.groupby("label"):
        step, one = own["milliseconds"].median(), own.iloc[0]
        ends = f"{own['milliseconds'].min():.0f} to {own['milliseconds'].max():.0f}"
        batch, epochs = int(one["batch_size"]), int(own["all_epochs"].median())
        rows[label] = {
            ("measured", "ms per step"): f"{step:.0f}",
            ("measured", "range"): ends,
            ("measured", "runs"): str(len(own)),
            ("measured", "peak memory"): f"{own['peak_memory_mb'].max() / 1000:.1f} GB",
            **{("extrapolated", f"{n:,} pairs"): hours_text(hours(step, n, batch, epochs)) for n in SIZES},
        }
    order = part.groupby("label")["milliseconds"].median().sort_values().index
    shown = pd.DataFrame(rows).T.loc[order]
    shown.columns = pd.MultiIndex.from_tuples(shown.columns)
    batches, lengths = (sorted({int(v) for v in part[c]}) for c in ("batch_size", "all_epochs"))
    caption = (
        f"Measured on {board.data_name(dataset)}, model {model}, batches of {_some(batches)}, "
        f"{_some(lengths)} epochs, {', '.join(sorted(set(part['device'])))}, one thread: median time of a "
        "step over runs, smallest and largest, and the largest memory of the process, libraries included. "
        "Extrapolated: this time, times the steps of as many epochs; one thread, same model and features"
    )
    return show(shown, f"hours-{dataset}-{model}", caption)


def _some(values: list[int]) -> str:
    return " or ".join(f"{v:,}" for v in values)


def said(times: pd.DataFrame) -> str:
    """Return the cheapest and the dearest method of each place in Markdown, with hours for a million."""
    lines = []
    for (dataset, _, model), part in times.groupby(PLACE):
        if part["label"].nunique() < 4:
            continue
        step = part.groupby("label")["milliseconds"].median().sort_values()
        ends = []
        for label in (step.index[0], step.index[-1]):
            one = part[part["label"] == label].iloc[0]
            batch, epochs = int(one["batch_size"]), int(one["all_epochs"])
            whole = hours_text(hours(step[label], SIZES[-1], batch, epochs))
            ends.append(
                f"`{label}` {step[label]:.0f} ms a step of {batch} pairs, so {whole} for {epochs} epochs"
            )
        lines.append(
            f"- **{board.data_name(dataset)}, model {model}**, a million pairs on one thread: from "
            f"{ends[0]} to {ends[1]}."
        )
    return "\n".join(lines) or "No records here."


def pairs_table() -> Styler:
    """Show the cost of a pair by method and number of pairs, from ``book/bench/many_pairs.py``."""
    about = measurement("bench_many_pairs")
    rows = pd.DataFrame(about["rows"])
    names = {
        "warmup_us": "warm-up, µs per pair",
        "training_us": "training, µs per pair",
        "peak_gb": "largest memory, GB",
    }
    table = rows.assign(peak_gb=rows["peak_mb"] / 1000)
    table = table.pivot(index="method", columns="pairs", values=list(names)).loc[list(METHODS)]
    texts = {c: table[c].map(("{:.2f}" if c[0] == "peak_gb" else "{:.0f}").format) for c in table}
    caption = (
        f"Measured {made(about)}: CPU time on one thread, {about['machine']['cpu']}, "
        "made pairs of which 40 % are wrong, "
        f"model {about['settings']['model']} with {about['settings']['model_options']['embed_dim']} "
        "dimensions, "
        f"batches of {about['settings']['batch_size']}, one epoch each; memory of the process, data and "
        "libraries included"
    )
    shown = pd.DataFrame({(names[c], f"{n:,}"): text for (c, n), text in texts.items()})
    return show(shown.rename_axis(None), "pairs", caption)


def pairs_said() -> str:
    """Say how the cost of a pair changes from the smallest to the largest measured set."""
    rows = pd.DataFrame(measurement("bench_many_pairs")["rows"])
    few, many = rows["pairs"].min(), rows["pairs"].max()
    by = rows.set_index(["pairs", "method"])
    times = [by.loc[(many, m), "training_us"] / by.loc[(few, m), "training_us"] for m in METHODS]
    grown = [
        1e6 * (by.loc[(many, m), "peak_mb"] - by.loc[(few, m), "peak_mb"]) / (many - few) for m in METHODS
    ]
    each = ", ".join(f"`{m}` {t:.2f}" for m, t in zip(METHODS, times, strict=True))
    return (
        f"Time of a pair in an epoch of training, among {many:,} pairs over that among {few:,}: {each}. "
        f"Below 1, a pair costs less in the large set. Memory grows by about {np.mean(grown):,.0f} bytes per "
        "training pair, data included."
    )


def printed_said() -> str:
    """Say how long REPAIR's authors trained on Flickr30K, as printed, and how many steps such a run has."""
    rows = printed("resources", paper="REPAIR", quantity="training time", backbone="SGR")
    hours = sorted(map(float, rows["value"]))
    steps = steps_of(145_000, 128, 40)
    return (
        f"Printed by REPAIR (Table VI): {hours[0]:.0f} to {hours[-1]:.0f} h per run with SGR on one RTX "
        f"4090. 40 epochs of the 145,000 training pairs of Flickr30K in batches of 128 are {steps:,} steps. "
        "[Hours from steps that were measured on a GPU](../book/howto/full_size.html#gpu-measured)."
    )


def gpu_said() -> str:
    """Say in Markdown on which card the stored figures were measured, and what changed since."""
    return " ".join(gpu.measured_on(measurement("bench_gpu")))


def gpu_table() -> Styler | None:
    """Show what was measured on a GPU beside the figures of the former code; None without both."""
    rows = [row for row in gpu.beside(measurement("bench_gpu")) if row[-1] != "–"]
    if not rows:
        return None
    table = pd.DataFrame(rows, columns=["", "unit", *gpu.HEADS]).set_index("").rename_axis(None)
    return show(table, "costs-gpu", "Measured; cards and commits stand above", best=False)


def precision_table() -> Styler:
    """Show test rSum by method and precision, mean ± deviation over seeds."""
    found = measurement("probe_precision")
    names = {"gce": "plain training, GCE", "l2rm": "L2RM"}
    cells = {
        label: {
            precision: mean_text([row[f"{key}.{precision}"] for row in found["rows"]])
            for precision in PRECISIONS
        }
        for key, label in names.items()
    }
    case = found["rows"][0]
    caption = (
        f"Measured, {board.DATA_NAMES[case['dataset']]}, preset {case['preset']}, model {case['model']}, "
        f"{case['protocol']}, rate {case['mrate']:g}: rSum (seeds), operands of all products rounded to the "
        f"bits of the number type, on {found['environment']['device']}"
    )
    return show(pd.DataFrame.from_dict(cells, orient="index"), "costs-precision", caption, best=False)


def precision_runs_table() -> Styler:
    """Show test rSum of recorded runs of SAF on Flickr8K by method and precision, with their hardware."""
    place = {"dataset": "f8k", "model": "saf", "preset": "standard", "mrate": 0.6, "protocol": "images"}
    place |= {"networks": 1}
    methods: dict[str, dict[str, Any]] = {
        "plain training, GCE": {"method": "plain", "option.loss": "gce"},
        "L2RM": {"method": "l2rm", "option.rematch_weight": 1.0},
    }
    cells = pd.DataFrame(NOT_RUN, index=list(methods), columns=list(PRECISIONS))
    seen: set[str] = set()
    for label, which in methods.items():
        for precision, runs in recorded(**place, **which).groupby("precision"):
            where = " and ".join(sorted({name.split(",")[0] for name in runs["device"]}))
            marks = marks_of(runs)
            seen.update(marks)
            cells.loc[label, precision] = f"{mean_text(runs['rsum'].tolist())}{''.join(marks)}, {where}"
    data, noise = board.data_name("f8k"), board.noise_name("images")
    caption = (
        f"Measured, {data}, preset standard, model saf, {noise}, rate 0.6: rSum on test (seeds), hardware"
    )
    caption += f". {explained(seen)}" if seen else ""
    return show(cells, "costs-precision-runs", caption, best=False)


def memory_table() -> Styler:
    """Show the size of the features file for the sizes of this page; arithmetic, not a measurement."""
    rows = {
        name: {f"{n:,} pictures": _gigabytes(n * places * width * BYTES) for n in SIZES}
        for name, (places, width) in SHAPES.items()
    }
    caption = "Calculated: pictures x places x numbers x 4 bytes (float32); a float16 copy takes half"
    return show(pd.DataFrame(rows).T, "memory", caption)


def _gigabytes(size: float) -> str:
    return f"{size / GIGABYTE:.0f} GB" if size >= 10 * GIGABYTE else f"{size / GIGABYTE:.2g} GB"


def steps_table(batch: int = 128, epochs: int = 12) -> Styler:
    """Show how many steps a training has at a batch size and number of epochs."""
    row = {f"{n:,} pairs": f"{steps_of(n, batch, epochs):,}" for n in SIZES}
    caption = f"Calculated: steps of {epochs} epochs in batches of {batch}"
    return show(pd.DataFrame({"steps": row}).T, "steps", caption)
