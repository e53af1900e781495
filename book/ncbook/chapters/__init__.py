"""Tables and figures of the book's chapters: here what they share, beside it one module per chapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

import nclib
from ncbook import Difference, mean_text, means, recorded, recorded_run, show
from ncbook.compare import paired
from ncbook.demo import is_stored, kept_arrays, source_of
from ncbook.demo import opened as opened
from ncbook.demo import trained as trained
from ncbook.marks import WARMUP, in_warmup
from nclib import plots
from nclib.common.options import rules
from nclib.data import Dataset, Split
from nclib.noise import Mismatch
from nclib.runs import experiment_of, resolve
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.pair_trainer import PairTrainer
from nclib.runs.record import RECALLS, Record
from nclib.runs.variant import in_words

ONE = " (one network)"  # ends the label of what one network of an ensemble reaches alone
ONLY_PRINTED = "nothing here was measured."
VERDICTS = {"above": "ahead", "below": "behind", "open": "undecided"}  # what an interval says


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run with its weights, its data and what it kept of every epoch."""

    record: Record
    trainer: PairTrainer  # with the weights of the selected epoch; of a stored run where a figure needs them
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
    """Open a run on pairs, finished here or stored, for figures that look inside."""
    run = opened(record)
    return Finished(record, run.trainer, run.dataset, run.noise.matched, kept_arrays(record))


def kind_of_pair(matched: bool) -> tuple[str, str]:
    """Return the words for a pair that is really matched, or is not, and their colour."""
    return ("matched", plots.MATCHED) if matched else ("mismatched", plots.MISMATCHED)


def wide(rows: pd.DataFrame, index: Any, columns: Any, value: str = "value") -> pd.DataFrame:
    """Return printed values as numbers, in the order of print: ``columns`` beside each other."""
    rows = rows.assign(number=rows[value].astype(float))
    return rows.pivot_table(index=index, columns=columns, values="number", sort=False)


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
            found = trained(other, source_of(record), **same)
            compared[other], origin[other] = found, "stored" if is_stored(found) else "trained now"
    for other, found in compared.items():
        early = ", tested in its warm-up" if tested_early(found) else ""
        print(f"{other}, {origin[other]}: rSum {found.metrics['test']['rsum']:.1f}{early}")
    if "single" in record.metrics:
        single = record.metrics["single"]["rsum"]
        print(f"one network of {method} alone, mean of both: rSum {single:.1f}")
    return compared


def training_pairs(method: str, given: Mapping[str, Any]) -> NoisyPairs:
    """Return the training pairs of a run with their noise, before anything is trained."""
    settings = nclib.resolve(method, **given)
    run = settings.run
    train = nclib.data.load(run.dataset, **settings.data_options).train
    if run.noise_file:
        each = train.captions_per_image
        noise = Mismatch.from_file(run.noise_file, train.image_of, captions_per_image=each)
    else:
        noise = Mismatch.draw(train.image_of, run.mrate or 0.0, seed=run.seed, protocol=run.protocol)
    return NoisyPairs(train, noise)


def some_pairs(pairs: NoisyPairs, matched: bool, n: int, seed: int = 0) -> np.ndarray:
    """Return the rows of up to ``n`` random pairs that are really matched, or are not."""
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(pairs.noise.matched == matched))
    first = np.unique(pairs.image_of.numpy()[rows], return_index=True)[1]  # a picture once
    return rows[np.sort(first)[:n]]


def drawn_pairs(pairs: NoisyPairs, rows: Sequence[int], notes: Sequence[str] = ()) -> Figure | None:
    """Draw pairs as they are given, with a tick or a cross by the truth and a note under each."""
    split = pairs.split
    if not (split.has_pictures and len(rows)):
        return None
    lines = []
    for k, row in enumerate(rows):
        true = bool(pairs.noise.matched[row])
        mark, colour = ("✓ ", plots.MATCHED) if true else ("✗ ", plots.MISMATCHED)
        note = [(notes[k], "#444444")] if notes else []
        lines.append([(mark + split.captions.text(row), colour), *note])
    return plots.captioned_pictures(split, [int(pairs.image_of[row]) for row in rows], lines, columns=2)


def words_of(split: Split, caption: int) -> list[str]:
    """Return the words of a caption, start and end token included."""
    names = split.captions.vocabulary.words
    return [names[i].strip("<>") for i in split.captions.ids(caption)]


def say(*sentences: str) -> Markdown:
    """Return sentences computed from records as a paragraph of the page; empty ones are left out."""
    return Markdown(" ".join(s for s in sentences if s))


def you_ran(record: Record) -> Markdown:
    """Say what was run, what came out, and what the book has recorded at the same place."""
    s, own = record.settings, record.metrics["test"]["rsum"]
    where = {k: s[k] for k in ("method", "model", "dataset", "preset", "protocol", "mrate")}
    stored = recorded(**where)
    stored = as_preset(stored) if len(stored) else stored
    place = f"{s['dataset']}, model `{s['model']}`, mismatch rate {s['mrate']:g}"
    ran = (
        f"You ran `{s['method']}` on {place}, seed {s['seed']}: rSum **{own:.1f}** of 600 on the "
        "test pictures."
    )
    if stored.empty:
        return say(ran, "The book has no recorded runs at this place.")
    values = list(stored["rsum"])
    usual = "The book's runs there, with the preset's own settings and different seeds, have"
    return say(ran, f"{usual} {mean_text(values)}.")


def settings_table(record: Record) -> Styler:
    """Show schedule and options of a run beside those of the preset ``paper``, with their meaning."""
    given = {**record.settings, **record.settings["method_options"]}
    paper = resolve(
        given["method"], dataset=given["dataset"], preset="paper", data_options=given["data_options"]
    )
    rows = {}
    for group in (paper.schedule, paper.method_options):
        values = asdict(group)
        for name, rule in rules(type(group)).items():
            rows[name] = {"here": given[name], "paper": values[name], "meaning": rule.help}
    table = pd.DataFrame(rows).T.map(lambda value: f"{value:g}" if isinstance(value, float) else str(value))
    caption = f"Settings of this run (preset {given['preset']}) and of the preset paper"
    return show(table, "settings", caption)


def over_rates(
    runs: pd.DataFrame, ours: str, theirs: str, by: str = "mrate", value: str = "rsum", digits: int = 1
) -> dict[float, Difference]:
    """Return a metric of one label minus that of another by noise rate, where both have runs of one seed."""
    a, b = (runs[runs["label"] == label] for label in (ours, theirs))
    shared = sorted(set(a[by]) & set(b[by]))
    each = {r: paired(a[a[by] == r], b[b[by] == r], value, digits=digits) for r in shared}
    return {rate: difference for rate, difference in each.items() if difference.n}


def verdicts(differences: Mapping[float, Difference]) -> str:
    """Return at which noise rates a difference is ahead, behind or undecided; of one seed only its sign."""
    found: dict[str, list[str]] = {}
    for rate, difference in differences.items():
        word = VERDICTS[difference.sign]
        if difference.n == 1:
            gain = round(difference.mean, difference.digits)
            word = f"{'above' if gain > 0 else 'below' if gain < 0 else 'level'}, one seed"
        found.setdefault(word, []).append(f"{rate:g}")
    return "; ".join(f"{word} at {', '.join(rates)}" for word, rates in found.items())


def against(runs: pd.DataFrame, method: str) -> Markdown:
    """Say at which mismatch rates ``method`` is ahead of each other row of :func:`recorded_rates`."""
    others = sorted(set(runs["label"]) - {method})
    said = {other: verdicts(over_rates(runs, method, other)) for other in others}
    model = runs["model"].iloc[0]
    lines = [f"- against {other}, model `{model}`: {words}" for other, words in said.items() if words]
    head = (
        f"**{method}, seed by seed.** *Ahead* and *behind*: the 95 % interval of the mean "
        "difference excludes zero."
    )
    return Markdown("\n".join([head, "", *lines]))


def recorded_or_run(method: str, beside: Record, **values: Any) -> Record:
    """Return the recorded run with exactly these parameters of :func:`nclib.run`, or make it now.

    Beside a stored run it is taken from the store, and nothing is trained.
    """
    return recorded_run(method, **values) or trained(method, source_of(beside), progress=False, **values)


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
    shown = show(curve.T, name, caption, digits=3, missing="–")
    # counts, or means of two
    whole = [c for c in curve if (curve[c].dropna() % 0.5 == 0).all() and curve[c].max() > 1]
    return shown.format("{:,.0f}", na_rep="–", subset=pd.IndexSlice[whole, :])


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
        rows[name] = {"rSum": test["rsum"]}
        if ensemble:
            rows[name]["rSum, one network"] = r.metrics.get("single", test)["rsum"]
            rows[name]["networks"] = 1 + ("single" in r.metrics)
        rows[name] |= {k: test[k] for k in RECALLS}
        best = f"{r.best_epoch} {WARMUP}" if tested_early(r) else r.best_epoch
        rows[name] |= {"best epoch": best, "epochs in all": len(r.curves)} | cost_of(r)
    record, s = run.record, run.record.settings
    caption = (
        f"Measured: {record.data['name']}, preset {s['preset']}, model {s['model']}, seed {s['seed']}, "
        f"{'' if ensemble else 'one model, '}best epoch on {record.data['val_images']} validation pictures, "
        f"{record.data['test_images']} test pictures. Noise: {run.trainer.pairs.noise.describe()}"
    )
    return show(pd.DataFrame(rows), "recalls", caption, digits=1)


def tested_early(record: Record) -> bool:
    """Tell whether a run was tested at an epoch of its warm-up, see :func:`ncbook.marks.in_warmup`."""
    return bool(in_warmup(pd.DataFrame([{**record.settings, "best_epoch": record.best_epoch}])).iloc[0])


def cost_of(record: Record) -> dict[str, Any]:
    """Return seconds and device of a run, as rows or columns of a table."""
    return {"seconds": record.cost["seconds"], "on": record.environment["device"]}


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with a column ``label``: the method, of plain training also its loss."""
    plain = "plain (" + runs["option.loss"].astype(str) + ")"
    return runs.assign(label=runs["method"].where(runs["method"] != "plain", plain))


def rows_of(runs: pd.DataFrame, rows: Mapping[str, tuple[str, dict[str, Any]]]) -> pd.DataFrame:
    """Return the runs of an ablation's rows, with the row's name as ``label``.

    Parameters
    ----------
    runs : DataFrame
        From :func:`ncbook.recorded`.
    rows : mapping
        Name of a row to its method and the options in which it differs from the preset.
    """
    parts = []
    for name, (method, options) in rows.items():
        own = runs[runs["method"] == method]
        if method == "plain":  # its loss names a row of its own
            own = own[own["option.loss"] == options["loss"]]
            options = {option: value for option, value in options.items() if option != "loss"}
        parts.append(as_preset(own, **options).assign(label=name))
    return pd.concat(parts, ignore_index=True)


def as_preset(runs: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Return the runs that differ from their preset in these options alone; plain training has any loss."""
    free = runs["variant"].str.replace(r"(^|, )loss=\w+", "", regex=True).str.removeprefix(", ")
    variant = runs["variant"].where(runs["method"] != "plain", free)
    return runs[variant == in_words(options)]


def recorded_rates(method: str, models: Iterable[str], others: Sequence[str]) -> pd.DataFrame:
    """Return recorded quick runs of a method and others under image-level noise, with a column ``label``.

    Parameters
    ----------
    method : str
    models : iterable of str
        The first of these in which ``method`` was recorded is taken.
    others : sequence of str
        Labels of other methods to take along; plain training is named with its loss.

    Returns
    -------
    DataFrame
        As :func:`ncbook.recorded`; of an ensemble also its networks alone.
    """
    runs = recorded(preset="quick", dataset="emoji", protocol="images")
    have = set(runs.loc[runs["method"] == method, "model"])
    runs = labelled(as_preset(runs[runs["model"] == next(m for m in models if m in have)]))
    alone = runs[runs["method"] == method]
    if alone["single.rsum"].notna().any():
        alone = alone.assign(label=method + ONE, rsum=alone["single.rsum"])
        runs = pd.concat([runs, alone], ignore_index=True)
    return runs[runs["label"].isin([method, method + ONE, *others])]


def recorded_labels(protocol: str = "symmetric") -> pd.DataFrame:
    """Return the recorded quick runs of category retrieval on the bundled data, one row per run.

    ``protocol``, ``symmetric`` or ``asymmetric``, is that of label noise drawn for images and texts apart.
    """
    where = {"preset": "quick", "dataset": "emoji_category", "scope": "modality", "protocol": protocol}
    return recorded("labels", **where)


def rates(runs: pd.DataFrame) -> Figure:
    """Draw runs of :func:`recorded_rates` over the mismatch rate."""
    figure = plots.rates(runs)
    figure.axes[0].set_title(f"model {runs['model'].iloc[0]}")
    return figure


def devices(runs: pd.DataFrame) -> str:
    """Return the devices on which runs were recorded."""
    return ", ".join(sorted(set(runs["device"])))


def rate_table(runs: pd.DataFrame) -> Styler:
    """Show mean ± standard deviation (seeds) of rSum, runs of :func:`recorded_rates`, by mismatch rate."""
    table = means(runs, ("model", "label"), "mrate").rename_axis(columns="mismatch rate")
    caption = (
        "Measured, preset quick: rSum on 500 test pictures, mean ± standard deviation (seeds); best epoch on "
        f"the validation pictures; image-level noise drawn with the run's seed; {devices(runs)}"
    )
    return show(table, "recorded", caption)


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
