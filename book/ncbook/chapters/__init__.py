"""Tables and figures of the book's chapters: here what they share, beside it one module per chapter."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

import nclib
from ncbook import RECORDED, means, printed, recorded, recorded_run, show
from ncbook.notebook import in_warmup
from nclib import plots
from nclib.data import Dataset
from nclib.data.registry import datasets
from nclib.models.registry import MODELS, parameters_of
from nclib.runs import epoch_arrays, experiment_of
from nclib.runs.pair_trainer import PairTrainer
from nclib.runs.record import RECALLS, Record

ONE = " (one network)"  # ends the label of what one network of an ensemble reaches alone
ONLY_PRINTED = "nothing here was measured."


@dataclass(frozen=True)
class Finished:
    """A finished run with its weights, its data and what it kept of every epoch."""

    record: Record
    trainer: PairTrainer  # with the weights of the selected epoch
    dataset: Dataset
    matched: np.ndarray  # whether a training pair is really matched, (N,)
    kept: dict[int, dict[str, np.ndarray]]  # arrays of every training epoch, by its number

    @property
    def last(self) -> dict[str, np.ndarray]:
        """Arrays of the last training epoch."""
        return self.kept[max(self.kept)]

    @property
    def options(self) -> dict[str, Any]:
        """Options of the run's method."""
        return dict(self.record.settings["method_options"])

    @property
    def image_of(self) -> np.ndarray:
        """Picture of each training pair, int, (N,)."""
        return self.trainer.pairs.image_of.numpy()


def finished(record: Record) -> Finished:
    """Open a finished run on pairs, whose folder holds the checkpoint, for figures that look inside."""
    run = nclib.open_run(record)
    return Finished(record, run.trainer, run.dataset, run.noise.matched, epoch_arrays(record.folder))


def kind_of_pair(matched: bool) -> tuple[str, str]:
    """Return the words for a pair that is really matched, or is not, and their colour."""
    return ("matched", plots.MATCHED) if matched else ("mismatched", plots.MISMATCHED)


def wide(rows: pd.DataFrame, index: Any, columns: Any, value: str = "value") -> pd.DataFrame:
    """Return printed values as numbers, in the order of print: ``columns`` beside each other."""
    rows = rows.assign(number=rows[value].astype(float))
    return rows.pivot_table(index=index, columns=columns, values="number", sort=False)


def printed_rates(methods: Sequence[str] = (), *, paper: str = "L2RM", table: str = "6") -> Styler:
    """Show the printed rSum on Flickr30K over the mismatch rate; the largest of a rate is bold.

    Parameters
    ----------
    methods : sequence of str
        Methods as the paper names them; all by default.
    paper, table : str
        Where they are printed; an empty ``table`` takes the first table of the paper that has the cell.
    """
    where = {"table": table} if table else {}
    rows = printed("retrieval", paper=paper, dataset="Flickr30K", metric="rsum", **where)
    if methods:
        rows = rows[rows["method"].isin(methods)]
    rows = rows.drop_duplicates(["method", "noise_rate"])
    cells = wide(rows, "method", "noise_rate").rename_axis(columns="mismatch rate")
    caption = f"Printed in the paper of {paper}; {ONLY_PRINTED}"
    return show(cells, "printed", caption, digits=1, missing="", best=True)


def beside(
    record: Record, given: Mapping[str, Any], mode: str, others: Sequence[str] = ("plain", "l2rm"), **own: Any
) -> dict[str, Record]:
    """Return this run and others with the same data, noise, model, seed and schedule, and print their rSum.

    Parameters
    ----------
    record, given : Record, mapping
        This run, and the parameters that were given for it.
    mode : {"auto", "train", "none"}
        ``auto`` takes recorded runs and trains the first of ``others`` where none is recorded; ``train``
        trains all; ``none`` takes no others.
    others : sequence of str
        Methods beside it.
    **own
        Parameters of the others that differ, such as a schedule of their own.

    Returns
    -------
    dict
        Method name to its record, this run first.
    """
    method = record.settings["method"]
    same = {**experiment_of(method).shared(given), **own}
    compared, origin = {method: record}, {method: "this run"}
    for other in others if mode != "none" else ():
        found = recorded_run(other, **same) if mode == "auto" else None
        if found is not None:
            compared[other], origin[other] = found, f"recorded on {found.environment['device']}"
        elif other == others[0] or mode == "train":
            compared[other], origin[other] = nclib.run(other, **same), "trained now"
    for other, found in compared.items():
        print(f"{other}, {origin[other]}: rSum {found.metrics['test']['rsum']:.1f}")
    if "single" in record.metrics:
        single = record.metrics["single"]["rsum"]
        print(f"one network of {method} alone, mean of both: rSum {single:.1f}")
    return compared


def recorded_or_run(method: str, **values: Any) -> Record:
    """Return the recorded run with exactly these parameters of :func:`nclib.run`, or make it now."""
    return recorded_run(method, **values) or nclib.run(method, **values, progress=False)


def stored_benchmark(name: str) -> dict[str, Any] | None:
    """Return a stored result of ``book/bench``, such as ``bench/map.json``; None where there is none."""
    path = RECORDED / name
    return json.loads(path.read_text("utf8")) if path.is_file() else None


def training(record: Record) -> pd.DataFrame:
    """Return what a run logged of its training epochs, warm-up left out, by epoch."""
    return pd.DataFrame([row for row in record.curves if row["phase"] == "training"]).set_index("epoch")


def by_epoch(record: Record, names: Mapping[str, str] | Sequence[str], name: str, caption: str) -> Styler:
    """Show diagnostics of the training epochs, one column per epoch; those that are missing are left out.

    ``names`` may be a mapping from diagnostics to what the table calls them.
    """
    curve = training(record)
    curve = curve[[c for c in names if c in curve]].astype(float)
    curve = curve.rename(columns=dict(names) if isinstance(names, Mapping) else {})
    return show(curve.T, name, caption, digits=3, missing="–")


def recall_bars(compared: Mapping[str, Record]) -> Figure:
    """Draw the six recalls of the compared runs; of an ensemble, one network alone comes first."""
    first, record = next(iter(compared.items()))
    alone = {first + ONE: record.metrics["single"]} if "single" in record.metrics else {}
    return plots.recall_bars({**alone, **compared})


def recall_table(compared: Mapping[str, Record], run: Finished) -> Styler:
    """Show recalls, selected epoch and cost of the compared runs; the caption describes ``run``."""
    ensemble = any("single" in r.metrics for r in compared.values())
    rows = {}
    for name, r in compared.items():
        test = r.metrics["test"]
        rows[name] = {k: test[k] for k in RECALLS} | {"rSum": test["rsum"]}
        if ensemble:
            rows[name]["rSum, one network"] = r.metrics.get("single", test)["rsum"]
            rows[name]["networks"] = 1 + ("single" in r.metrics)
        rows[name] |= {"best epoch": r.best_epoch, "epochs in all": len(r.curves)} | cost_of(r)
    record, s = run.record, run.record.settings
    caption = (
        f"Measured: {record.data['name']}, preset {s['preset']}, model {s['model']}, seed {s['seed']}, "
        f"{'' if ensemble else 'one model, '}best epoch on {record.data['val_images']} validation pictures, "
        f"{record.data['test_images']} test pictures. Noise: {run.trainer.pairs.noise.describe()}"
    )
    return show(pd.DataFrame(rows), "recalls", caption, digits=1)


def cost_of(record: Record) -> dict[str, Any]:
    """Return seconds and device of a run, as rows or columns of a table."""
    return {"seconds": record.cost["seconds"], "on": record.environment["device"]}


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with a column ``label``: the method, of plain training also its loss."""
    plain = "plain (" + runs["method_loss"].astype(str) + ")"
    return runs.assign(label=runs["method"].where(runs["method"] != "plain", plain))


def as_preset(runs: pd.DataFrame, **given: Any) -> pd.DataFrame:
    """Return the runs with their preset's own schedule and options; the loss of plain training is free.

    ``given`` are settings that differ from the preset, as for :func:`nclib.resolve`.
    """
    own = pd.Series(False, index=runs.index)
    for (method, model, data, preset), part in runs.groupby(["method", "model", "dataset", "preset"]):
        if method not in nclib.methods.available():
            continue
        settings = nclib.resolve(method, model=model, dataset=data, preset=preset, **given)
        options = settings.flat()
        taken = {
            "data": inspect.signature(datasets[data].factory).parameters,
            "model": parameters_of(MODELS[model].factory),
        }
        expected = asdict(settings.schedule)
        for kind in ("method", "data", "model"):
            usual = {k: p.default for k, p in taken.get(kind, {}).items() if p.default is not p.empty}
            usual |= options.get(f"{kind}_options") or {}
            expected |= {f"{kind}_{k}": v for k, v in usual.items()}
        if method == "plain":
            del expected["method_loss"]
        known = {k: v for k, v in expected.items() if k in part}
        # An option that a record does not have was at its default.
        equal = [(part[column] == value) | part[column].isna() for column, value in known.items()]
        own[part.index] = np.logical_and.reduce(equal)
    return runs[own]


def recorded_rates(
    method: str,
    models: Iterable[str] = (),
    others: Sequence[str] = ("plain (triplet)", "plain (infonce)", "l2rm"),
) -> pd.DataFrame:
    """Return recorded quick runs of a method and others under image-level noise; prints when there are none.

    Parameters
    ----------
    method : str
    models : iterable of str
        The first of these in which ``method`` was recorded is taken; every such model by default.
    others : sequence of str
        Labels of other methods to take along; plain training is named with its loss.

    Returns
    -------
    DataFrame
        As :func:`ncbook.recorded`, with a column ``label``; of an ensemble also its networks alone.
    """
    runs = recorded(preset="quick", dataset="emoji", protocol="images")
    have = set(runs.loc[runs["method"] == method, "model"]) if not runs.empty else set()
    taken = [m for m in models if m in have][:1] if models else sorted(have)
    if not taken:
        print(f"no recorded runs of {method} here: this needs a checkout of the book")
        return runs.iloc[:0]
    runs = labelled(as_preset(runs[runs["model"].isin(taken)]))
    alone = runs[runs["method"] == method]
    if "single_rsum" in runs and alone["single_rsum"].notna().any():
        alone = alone.assign(label=method + ONE, rsum=alone["single_rsum"])
        runs = pd.concat([runs, alone], ignore_index=True)
    return runs[runs["label"].isin([method, method + ONE, *others])]


def recorded_labels(protocol: str = "symmetric") -> pd.DataFrame:
    """Return the recorded quick runs of category retrieval on the bundled data, one row per run.

    ``protocol``, ``symmetric`` or ``asymmetric``, is that of label noise drawn for images and texts apart.
    Where nothing is recorded, no rows but the usual columns.
    """
    where = {"preset": "quick", "dataset": "emoji_category", "scope": "modality", "protocol": protocol}
    runs = recorded("labels", **where)
    usual = ("method", "variant", "noise_rate", "seed", "map_avg", "device", "path")
    return runs if len(runs) else pd.DataFrame(columns=list(usual))


def rates(runs: pd.DataFrame) -> Figure | None:
    """Draw recorded runs over the mismatch rate: of several models, VSE, or the first by name."""
    if runs.empty:
        return None
    models = sorted(set(runs["model"]))
    model = "vse" if "vse" in models else models[0]
    figure = plots.rates(runs[runs["model"] == model])
    figure.axes[0].set_title(f"model {model}")
    return figure


def devices(runs: pd.DataFrame) -> str:
    """Return the devices on which runs were recorded."""
    return ", ".join(sorted(set(runs["device"])))


def rate_table(
    runs: pd.DataFrame, name: str = "recorded", by: Sequence[str] = ("model", "label"), caption: str = ""
) -> Styler | None:
    """Show mean ± standard deviation (seeds) of rSum, one column per mismatch rate.

    Parameters
    ----------
    runs : DataFrame
        From :func:`recorded_rates` or :func:`ncbook.recorded`.
    name, caption : str
        Of the table; the caption names the protocol of :func:`recorded_rates` by default.
    by : sequence of str
        Columns whose values name a row.
    """
    if runs.empty:
        return None
    table = means(runs, by, "mrate").rename_axis(columns="mismatch rate")
    usual = (
        "Measured, preset quick: rSum on 500 test pictures, mean ± standard deviation (seeds); best epoch on "
        f"the validation pictures; image-level noise drawn with the run's seed; {devices(runs)}"
    )
    return show(table, name, caption or usual)


def gains(
    runs: pd.DataFrame, method: str, by: Sequence[str], among: str = "label", value: str = "rsum"
) -> pd.DataFrame:
    """Return what a method gains over the others with the same seed.

    Parameters
    ----------
    runs : DataFrame
        One row per run, with a column ``seed``.
    method, among : str
        Column that tells the methods apart, and its value whose gains are taken.
    by : sequence of str
        Columns that the compared runs share.
    value : str
        The metric.

    Returns
    -------
    DataFrame
        One row per setting and other method: mean, standard deviation, smallest and largest gain, and seeds.
    """
    table = runs.pivot_table(index=[*by, "seed"], columns=among, values=value)
    gain = table.drop(columns=method).rsub(table[method], axis=0).stack().dropna()
    found = gain.groupby([*by, among]).agg(["mean", "std", "min", "max", "count"])
    found.columns = ["mean gain", "standard deviation", "smallest gain", "largest gain", "seeds"]
    return found


def paired(runs: pd.DataFrame, method: str) -> Styler | None:
    """Show what ``method`` gains over the others with the same model, rate and seed."""
    table = gains(runs, method, ["model", "mrate"]).drop(columns="largest gain") if len(runs) else runs
    if table.empty:
        return None
    table.index.names = ["model", "mismatch rate", "against"]
    caption = f"Measured: rSum of {method} minus that of the other method with the same seed"
    shown = show(table, "paired", caption, digits=1, missing="one seed")
    return shown.format_index("{:g}", level="mismatch rate")


def tested_in_warmup(runs: pd.DataFrame, method: str) -> None:
    """Print how many recorded runs of a method were best on validation before it began to act."""
    own = runs[runs["label"] == method] if not runs.empty else runs
    if len(own):
        early = int(in_warmup(own).sum())
        print(f"{early} of {len(own)} recorded runs of {method} were best on validation within warm-up")
