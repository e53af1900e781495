"""What the pages of families of methods share: parameters, stored runs, and rates side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown, display
from matplotlib.figure import Figure

import nclib
from ncbook import training
from ncbook.chapters import photographs
from ncbook.compare import paired
from ncbook.demo import is_stored, stored_runs
from ncbook.training import Finished, say, some_pairs, training_epochs, training_pairs
from nclib import plots
from nclib.common.options import check
from nclib.runs import Record

PLAIN = ("plain (triplet)", "plain (infonce)", "plain (gce)")
# By method: what its page shows of a run, each as a figure, table or sentence.
Views = Mapping[str, Sequence[Callable[[Finished], Any]]]


def checked(parameters: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Any]:
    """Check the parameters of a family's page, and return those of :func:`nclib.run` but ``method``.

    Parameters
    ----------
    parameters : mapping
        ``globals()`` of the page. ``options`` in it is a mapping of the method's own options; the model is
        that of the method's stored run where it is None.
    methods : sequence of str
        The family.

    Raises
    ------
    ValueError
        As :func:`nclib.check_parameters`, also for a method of another family.
    """
    method, options = parameters["method"], parameters["options"] or {}
    check({"method": nclib.Rule(str, choices=tuple(methods))}, method=method)
    if not isinstance(options, dict):
        raise ValueError(f"options={options!r}: must be a mapping of option names to values")
    plain = {name: value for name, value in parameters.items() if name not in ("method", "options")}
    if twice := sorted(set(options) & set(plain)):
        raise ValueError(f"options: {twice[0]} is a parameter of its own")
    given = nclib.check_parameters(
        {**plain, **options},
        method,
        baseline=nclib.Rule(str, choices=("auto", "train", "none")),
        epochs=nclib.Rule(int, low=1),
        source=nclib.Rule(str, choices=("train", "recorded")),
    )
    record = _stored_record(method)
    return {"model": record.settings["model"] if record else "vse", **given}


def problem(method: str, given: Mapping[str, Any], notes: Sequence[str] = ()) -> Figure | None:
    """Draw two right and two wrong training pairs of a run, with a note under each."""
    pairs = training_pairs(method, given)
    rows = np.concatenate([some_pairs(pairs, flag, 2, given["seed"]) for flag in (True, False)])
    return training.drawn_pairs(pairs, rows.tolist(), notes)


def _stored_record(method: str) -> Record | None:
    """Return the stored run of a method that lies in the folder of its name."""
    named = (r for r in stored_runs() if Path(r.folder).parent.name == r.settings["method"] == method)
    return next(named, None)


@functools.cache
def stored(method: str) -> Finished | None:
    """Return the stored run of a method, opened; None where the store does not have it."""
    record = _stored_record(method)
    return training.finished(record) if record else None


def inside(method: str, view: Callable[[Finished], Any]) -> Any:
    """Return what ``view`` shows of the stored run of a method; print what to do where there is none."""
    run = stored(method)
    return view(run) if run else print(f"no stored run of {method}: make demo makes it")


def said(method: str, *sentences: str) -> Markdown:
    """Say what a method's stored run knows at its end; ``{name}`` in a sentence is a diagnostic."""
    run = stored(method)
    last = training_epochs(run.record).iloc[-1] if run else {}
    return say(*(sentence.format(**last) for sentence in sentences if run))


def own(run: Finished, views: Views) -> None:
    """Display what the page shows of a method for a run that was made now; a stored one is shown already."""
    method = run.record.settings["method"]
    if is_stored(run.record):
        print(f"the section on {method} shows this run")
        return
    for view in views[method]:
        shown = view(run)
        print("nothing to draw") if shown is None else display(shown)


def beside(record: Record, given: Mapping[str, Any], mode: str) -> dict[str, Record]:
    """Return this run with plain training and L2RM, of as many epochs in all where it has no warm-up."""
    shorter: dict[str, Any] = {}
    if not record.settings["warmup_epochs"]:
        warm = nclib.resolve("plain").schedule.warmup_epochs
        shorter = {k: max(1, given[k] - warm) for k in ("epochs", "decay_every") if k in given}
    return training.beside(record, given, mode, ("plain", "l2rm"), **shorter)


def rates(methods: Sequence[str]) -> pd.DataFrame:
    """Return the recorded runs of a family and of plain losses on Flickr8K, images exchanged."""
    runs = photographs.photograph_runs()
    return runs[(runs["protocol"] == "images") & runs["label"].isin([*methods, *PLAIN])]


def rate_curves(runs: pd.DataFrame) -> Figure:
    """Draw the sum of recalls over the mismatch rate, runs of :func:`rates`."""
    figure = plots.rates(runs)
    figure.axes[0].set_title("Flickr8K, images exchanged")
    return figure


def ahead(runs: pd.DataFrame, methods: Sequence[str]) -> Markdown:
    """Say at each mismatch rate which method is ahead of which other one, and of the best plain loss."""
    lines = []
    for rate, part in runs.groupby("mrate"):
        means = part.groupby("label")["rsum"].mean().sort_values(ascending=False)
        plain = [label for label in means.index if label in PLAIN][:1]
        shown = [label for label in means.index if label in {*methods, *plain}]
        beaten = []
        for k, label in enumerate(shown):
            a = part[part["label"] == label]
            behind = [o for o in shown[k + 1 :] if paired(a, part[part["label"] == o]).sign == "above"]
            if behind:
                others = ", ".join(f"`{other}`" for other in behind)
                beaten.append(f"`{label}` ({means[label]:.0f}) ahead of {others}")
        lines.append(f"- rate {rate:g}: " + ("; ".join(beaten) or "none"))
    head = (
        "**Who is ahead of whom**, among the family and the best plain loss. *Ahead*: the 95 % interval of "
        "the mean difference, seed by seed, lies above zero."
    )
    return Markdown("\n".join([head, "", *lines]))
