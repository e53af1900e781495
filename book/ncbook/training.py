"""A run that a notebook trains, or takes from the store: its pairs, its epochs, its results beside others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

import nclib
from ncbook import plots
from ncbook.compare import mean_text
from ncbook.demo import is_stored, kept_arrays, opened, source_of, trained
from ncbook.marks import WARMUP, explained, in_warmup, marks_of
from ncbook.notebook import show
from ncbook.pairs import captioned_pictures
from ncbook.runs import as_preset, recorded, recorded_run
from nclib.common.options import rules
from nclib.data import Dataset, Split
from nclib.runs import experiment_of, resolve
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.pair_trainer import PairTrainer
from nclib.runs.pairs import noise_of
from nclib.runs.record import Record

METRICS = {"pairs": ("rsum", "rSum", 1), "labels": ("map_avg", "mAP", 3)}  # of a task: key, name, decimals
RULES = {  # of parameters that notebooks with a run beside others have on top of those of the run
    "baseline": nclib.Rule(str, choices=("auto", "train", "none")),
    "epochs": nclib.Rule(int, low=1),
    "source": nclib.Rule(str, choices=("train", "recorded")),
}
OF_CLOSED = ("dataset", "preset", "mrate", "protocol", "seed", "noise_file", "data_options", "device", "out")
ONE = " (one network)"  # ends the label of what one network of an ensemble reaches alone
RECALLS = {
    "i2t_r1": "image → text\nR@1", "i2t_r5": "R@5", "i2t_r10": "R@10",
    "t2i_r1": "text → image\nR@1", "t2i_r5": "R@5", "t2i_r10": "R@10",
}  # fmt: skip


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


def training_pairs(method: str, given: Mapping[str, Any]) -> NoisyPairs:
    """Return the training pairs of a run with their noise, before anything is trained."""
    settings: Any = nclib.resolve(method, **given)
    train = nclib.data.load(settings.run.dataset, **settings.data_options).train
    return NoisyPairs(train, noise_of(settings.run, train))


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
    return captioned_pictures(split, [int(pairs.image_of[row]) for row in rows], lines, columns=2)


def words_of(split: Split, caption: int) -> list[str]:
    """Return the words of a caption, start and end token included."""
    names = split.captions.vocabulary.words
    return [names[i].strip("<>") for i in split.captions.ids(caption)]


def shared_parameters(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters among ``given`` with which another method can be run likewise."""
    of: Any = experiment_of(method)
    names = {*rules(of.options), *rules(of.schedule), *of.mappings, *of.synonyms}
    return {name: value for name, value in given.items() if name in names}


def beside(
    record: Record,
    given: Mapping[str, Any],
    mode: str,
    others: Sequence[str] = ("InfoNCE", "linear"),
    **own: Any,
) -> dict[str, Record]:
    """Return this run and others with the same data, noise, model, seed and schedule, and print results.

    Parameters
    ----------
    record, given : Record, mapping
        This run, and the parameters that were given for it.
    mode : {"auto", "train", "none"}
        ``auto`` takes recorded runs and trains what is not recorded; beside a stored run it leaves that out,
        except for the first of ``others``. ``train`` trains all; ``none`` takes no others.
    others : sequence of str
        Methods and plain losses, by their names in :data:`ncbook.plots.NAMES` or as in :func:`nclib.run`. The
        closed form ``linear`` has no model and no schedule.
    **own
        Parameters of the others that differ, such as a schedule of their own.

    Returns
    -------
    dict
        Name to record, this run first.
    """
    method, store = record.settings["method"], source_of(record)
    same = {**shared_parameters(method, given), **own}
    ours = plots.reader(method)
    compared, origin = {ours: record}, {ours: "this run"}
    for name in others if mode != "none" else ():
        other, _, loss = plots.NAMES.get(name, name).removesuffix(")").partition(" (")
        values = {k: v for k, v in same.items() if other != "linear" or k in OF_CLOSED}
        values |= {"loss": loss} if loss else {}
        run = recorded_run(other, **values) if mode == "auto" else None
        if run is not None:
            compared[name], origin[name] = run, f"recorded on {run.environment['device']}"
        elif name == others[0] or mode == "train" or store == "train":
            run = trained(other, store, **values)
            compared[name], origin[name] = run, "stored" if is_stored(run) else "trained now"
    key, metric, digits = METRICS[record.task]
    for name, run in compared.items():
        early = f" {WARMUP} tested in its warm-up" if tested_early(run) else ""
        print(f"{name}, {origin[name]}: {metric} {run.metrics['test'][key]:.{digits}f}{early}")
    if "single" in record.metrics:
        single = record.metrics["single"]["rsum"]
        print(f"one network of {ours} alone, mean of both: rSum {single:.1f}")
    return compared


def training_epochs(record: Record) -> pd.DataFrame:
    """Return what a run logged of its training epochs, warm-up left out, by epoch."""
    return pd.DataFrame([row for row in record.curves if row["phase"] == "training"]).set_index("epoch")


def settings_table(record: Record) -> Styler:
    """Show the settings in which a run differs from the preset ``paper``, with their meaning."""
    given = {**record.settings, **record.settings["method_options"]}
    paper = resolve(
        given["method"], dataset=given["dataset"], preset="paper", data_options=given["data_options"]
    )
    rows = {}
    for group in (paper.schedule, paper.method_options):
        values, kinds = asdict(group), rules(type(group))
        for name in [name for name in kinds if values[name] != given[name]]:
            rows[name] = {"here": given[name], "paper": values[name], "meaning": kinds[name].help}
    columns = ["here", "paper", "meaning"]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    table = table.map(lambda value: f"{value:g}" if isinstance(value, float) else str(value))
    caption = f"Settings that differ between this run (preset {given['preset']}) and the preset paper"
    return show(table, "settings", caption)


def you_ran(record: Record) -> Markdown:
    """Say what was run, what came out, and what the book has recorded at the same place, with its marks."""
    s, own = record.settings, record.metrics["test"]["rsum"]
    where = {k: s[k] for k in ("method", "model", "dataset", "preset", "protocol", "mrate")}
    stored = recorded(**where)
    stored = as_preset(stored) if len(stored) else stored
    place = f"{s['dataset']}, model `{s['model']}`, mismatch rate {s['mrate']:g}"
    ran = (
        f"You ran `{s['method']}` on {place}, seed {s['seed']}: rSum **{own:.1f}** of 600 on the "
        f"test pictures{', tested at an epoch of its warm-up' if tested_early(record) else ''}."
    )
    if stored.empty:
        return say(ran, "The book has no recorded runs at this place.")
    marks = marks_of(stored)
    usual = "The book's runs there, with the preset's own settings and different seeds, have"
    means = " ".join([mean_text(list(stored["rsum"])), *marks])
    return say(ran, f"{usual} {means}.", f"{explained(marks)}." if marks else "")


def recalls(compared: Mapping[str, Record]) -> pd.DataFrame:
    """Return the six recalls in percent of the compared runs but those that were tested in their warm-up.

    A column is a run; before an ensemble that comes first stands one network alone.
    """
    first, record = next(iter(compared.items()))
    late = {name: run.metrics["test"] for name, run in compared.items() if not tested_early(run)}
    alone = {first + ONE: record.metrics["single"]} if first in late and "single" in record.metrics else {}
    return pd.DataFrame(alone | late).reindex(list(RECALLS)).set_axis([*RECALLS.values()])


def tested_early(record: Record) -> bool:
    """Tell whether a run was tested at an epoch of its warm-up, see :func:`ncbook.marks.in_warmup`."""
    row = {**record.settings["method_options"], **record.settings, "best_epoch": record.best_epoch}
    return bool(in_warmup(pd.DataFrame([row])).iloc[0])


def say(*sentences: str) -> Markdown:
    """Return sentences computed from records as a paragraph of the page; empty ones are left out."""
    return Markdown(" ".join(s for s in sentences if s))


def changed(
    method: str,
    record: Record,
    given: Mapping[str, Any],
    *,
    of: str = "",
    same: Mapping[str, Any] | None = None,
    also: Sequence[str] = (),
    **own: Any,
) -> Styler | None:
    """Train a changed method as a run was trained, and show both.

    Parameters
    ----------
    method : str
        The changed method, which a cell has registered; a stored run of it is shown beside a stored one.
    record, given : Record, mapping
        The run of the chapter, and the parameters that were given for it.
    of : str
        Method that is changed; where ``record`` is of another one, nothing is trained.
    same : mapping, optional
        Parameters of both runs that differ from ``given``: a recorded run takes the place of the chapter's.
    also : sequence of str
        Diagnostics to show.
    **own
        Parameters of the changed run that differ.
    """
    made = record.settings["method"]
    if of and made != of:
        print(f"this cell changes {of}: it trains beside a run of {of} (-p method {of})")
        return None
    given = {**given, **(same or {})}
    source = source_of(record)
    published = record
    if same:
        published = recorded_run(made, **given) or trained(made, source, progress=False, **given)
    other = trained(method, source, progress=False, **{**given, **own})
    key, name, digits = METRICS[record.task]
    rows = {
        label: {
            f"{name}, selected epoch": one.metrics["test"][key],
            f"{name}, last epoch": one.metrics.get("last", {}).get(key),
            **{what: one.diagnostics.get(what) for what in also},
            "selected epoch": str(one.best_epoch),
        }
        for label, one in (("unchanged", published), ("changed", other))
    }
    rate, s = other.noise_rate, published.settings
    noise = f"{rate:.0%} of the {record.task} wrong" if rate else f"no wrong {record.task}"
    where = ", ".join(filter(None, (s["dataset"], s.get("model"), noise, f"seed {s['seed']}")))
    caption = f"Measured: one run each, {where}"
    return show(pd.DataFrame(rows).T, "changed", caption, digits=digits, missing="–")
