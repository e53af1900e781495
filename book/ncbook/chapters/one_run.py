"""Figures and tables of the page that shows any run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from sklearn.metrics import confusion_matrix

from ncbook import show
from ncbook.training import kind_of_pair
from nclib import Record, Rule, plots
from nclib.plots import labels
from nclib.runs import LoadedRun
from nclib.runs.experiment import IN_EVERY_ROW
from nclib.runs.record import RECALLS

MAPS = {"map_i2t": "image → text", "map_t2i": "text → image", "map_avg": "mean"}


def noise(record: Record, run: LoadedRun) -> Figure | None:
    """Draw how many training pairs are wrong, or true against given classes; None for over 50 classes."""
    return class_maps(record, run) if record.task == "labels" else _wrong_pairs(run)


def _wrong_pairs(run: LoadedRun, shown: int = 60) -> Figure:
    """Draw how many pairs are wrong, and with which picture the captions of the first ones now stand."""
    train, added = run.dataset.train, run.noise
    true, matched = np.asarray(train.image_of), added.matched
    figure, ((left, right),) = plots.panels(1, 2, width_ratios=(1.4, 1))
    first = slice(shown * train.captions_per_image)
    start = 0
    for flag, hatch, mark in ((True, "", "o"), (False, "///", "x")):
        kind, (name, colour) = matched == flag, kind_of_pair(flag)
        left.barh("training\npairs", kind.sum(), left=start, color=colour, hatch=hatch, label=name)
        start += kind.sum()
        right.plot(true[first][kind[first]], added.image_of[first][kind[first]], mark, ms=4, color=colour)
    left.set(xlabel=f"pairs, {100 * added.true_rate:.1f} % wrong", xlim=(0, len(true)), ylim=(-0.8, 1.1))
    left.grid(axis="y", visible=False)
    left.legend(ncols=2, loc="upper left")
    right.set(xlabel="picture that the caption describes", ylabel="picture it stands with")
    return figure


def class_maps(record: Record, run: LoadedRun) -> Figure | None:
    """Draw true classes against given and, where the method has them, corrected classes."""
    noise, names = run.noise, run.dataset.label_names
    if len(names) > 50:
        return None
    shares = {
        name: confusion_matrix(noise.truth, given, labels=range(len(names)), normalize="true")
        for name, given in (("pictures", noise.image_labels), ("texts", noise.text_labels))
    }
    if "confusion" in record.diagnostics:
        shares["corrected by the method"] = np.array(record.diagnostics["confusion"])
    return labels.confusions(shares, names)


def curves(record: Record) -> Figure:
    """Draw the results on validation by epoch, for pairs also the loss terms."""
    method = record.settings["method"]
    if record.task == "labels":
        return labels.validation_curves({"validation": {method: record.curves}})
    return plots.learning_curves({method: record})


def results(record: Record) -> Styler:
    """Show the results on the test set."""
    table, settings, of_pairs = pd.DataFrame(record.metrics), record.settings, record.task == "pairs"
    caption = (
        f"Measured: {settings['method']}{' on ' + settings['model'] if of_pairs else ''}, "
        f"{record.data['name']}, preset {settings['preset']}, seed {settings['seed']}, "
        f"epoch {record.best_epoch} of {len(record.curves)}. {record.noise['description']}"
    )
    table = table.loc[[*RECALLS, "rsum"] if of_pairs else list(MAPS)]
    return show(table, "results", caption, digits=1 if of_pairs else 3, missing="")


def bars(record: Record) -> Figure:
    """Draw the six recalls, or the mAP of both directions at the selected and at the last epoch."""
    if record.task == "pairs":
        return plots.recall_bars({record.settings["method"]: record})
    figure, ((axis,),) = plots.panels(1, 1, 6.0, 2.6)
    epochs = {"selected epoch": record.metrics["test"], "last epoch": record.metrics["last"]}
    table = pd.DataFrame(epochs).loc[["map_i2t", "map_t2i"]].rename(index=MAPS)
    plots.bars(axis, table, (plots.ACCENT, plots.NEUTRAL), digits=3)
    axis.set(ylabel="mAP on test", ylim=(0, 1.25 * max(record.metrics["test"].values())))
    axis.legend(ncols=2, loc="upper right")
    return figure


def believed(record: Record) -> pd.DataFrame:
    """Return the method's own numbers of each epoch that need the truth, by epoch."""
    rows = pd.DataFrame(record.curves).set_index("epoch").drop(columns=list(IN_EVERY_ROW), errors="ignore")
    rows = rows.loc[:, ~rows.columns.str.startswith(("loss_", "val_"))]
    return rows.select_dtypes("number").dropna(axis="columns", how="all")


def believed_figure(record: Record) -> Figure | None:
    """Draw up to seven of the method's own numbers that are shares and change, by epoch."""
    from matplotlib.ticker import MaxNLocator

    rows = believed(record)
    shares = [c for c in rows if rows[c].dropna().between(0, 1).all() and rows[c].nunique() > 1][:7]
    if not shares:
        return None
    figure, ((axis,),) = plots.panels(1, 1)
    for name, mark, colour in zip(shares, plots.MARKS, plots.CYCLE, strict=False):
        part = rows[name].dropna()
        axis.plot(part.index, part, marker=mark, ms=4, color=colour, label=name)
    axis.set(xlabel="epoch", ylim=(0, 1.02), xlim=(0.5, len(rows) + 0.5))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def believed_table(record: Record) -> Styler | None:
    """Show the method's own numbers in the first and in the last epoch that has them."""
    rows = believed(record)
    if rows.empty:
        return None
    first, last = rows.bfill().iloc[0], rows.ffill().iloc[-1]
    table = pd.DataFrame({"first epoch": first, "last epoch": last})
    return show(table.map(lambda v: f"{v:.0f}" if float(v).is_integer() else f"{v:.4g}"), "diagnostics")


def choices(rules: Mapping[str, Rule]) -> Styler:
    """Show the parameters of a method with their meaning and the allowed values."""
    rows = {name: {"meaning": rule.help, "allowed": rule.describe()} for name, rule in rules.items()}
    return show(pd.DataFrame(rows).T, "choices")
