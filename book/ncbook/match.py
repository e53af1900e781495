"""Runs behind printed rows, by the names that the papers print, and the commands that make them."""

from __future__ import annotations

import functools
import inspect
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from baselines import omit, weights
from baselines.joined import parts_of

from ncbook.layouts import Layout, layout_of
from ncbook.papers import Value, rows_of
from ncbook.runs import RECALLS, Runs, select
from ncbook.variant import in_words, published_name, published_warmup
from nclib import label_noise, methods, models
from nclib.common.options import rules
from nclib.data.registry import datasets
from nclib.runs.identity import JOINED
from nclib.runs.words import words_of

MODELS = {  # printed name -> model; others are spelt alike
    "VSE∞": "vse_inf",
    "VSE++": "vse",
}
WHOLE = {"zero-shot CLIP": "clip", "fine-tuned CLIP": "clip"}  # models that need their weights
APART = {"sgraf": "saf+sgr"}  # models whose parts the papers train apart, and average when testing
TWICE = ("vsrn", "teran")  # models that the papers train twice, and average when testing
SCAN_BOTH = {"direction": "t2i+i2t"}  # SCAN where it counts as two models
DATASETS = {
    "Flickr30K": "f30k",
    "MS-COCO": "coco",
    "CC152K": "cc152k",
    "Wikipedia": "wikipedia",
    "NUS-WIDE": "nuswide",
    "XMediaNet": "xmedianet",
}
STAND_INS = {"GSS-SL": "gss_regression", "FGCrossNet": "fgcrossnet_losses"}
BANK, BANK_RATE = 4096, 0.4  # REPAIR's usual bank; rate of its other ablations, for memory is printed without
UNITS = {"GB": 1e3, "MB": 1.0}  # in MB
TESTED = {"test-1k": ("", 1000), "full-5k": ("", 5000), "5fold-1k": ("folds.", 5000)}
"""Printed test protocol -> group of metrics in a record, number of test images."""
_READ: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("encoders.yml").read_text("utf8"))
WHY_NOT: dict[str, str] = _READ["why_not"]
"""Printed methods that are not rerun, and why."""
ENCODED: dict[str, dict[str, dict[str, Any]]] = _READ["encoders"]
"""Printed encoders -> printed name -> what its run on them has."""


@dataclass(frozen=True)
class RunSpec:
    """The run behind a printed row: ``options`` are what differs from the method's usual settings."""

    method: str
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The options as text, as :func:`ncbook.variant.variant` writes them."""
        usual = {"word_vectors"} | ({"warmup_epochs"} if self.method == "decl" else set())  # of its paper
        own = {k: v for k, v in self.options.items() if k not in usual}
        return in_words({k: published_name(v) or v for k, v in own.items()})

    @property
    def label(self) -> str:
        """Method and options, as text."""
        return f"{self.method} ({self.variant})" if self.options else self.method


def run_of(layout: Layout, row: Mapping[str, str]) -> RunSpec | None:
    """Return the run behind a line of a table's CSV file; None where this package has none (CLIP, CAAN, ...).

    In ablations the layout gives the options of each row. Elsewhere the printed name leads to the run:
    ``L2RM-SGR`` is l2rm on sgr, ``NCR`` is ncr on its backbone, ``SGR`` alone is plain training.
    """
    if layout.method:
        name = row["setting"].removeprefix("warm-up=") if layout.rows == ("warm-up",) else row["method"]
        known = name in layout.options
        return RunSpec(layout.method, layout.model, layout.options[name]) if known else None
    if layout.runs == "none" or (layout.runs == "models" and "DSL" in row["setting"]):
        return None
    if layout.runs == "categories":
        method = category_method(row["method"])
        return RunSpec(method) if method else None
    if layout.runs == "models":
        model = _model(row["method"])
        return RunSpec("plain", model) if model else None
    run = _by_name(row["method"], row["backbone"])
    if not layout.options:
        return run
    options = dict(layout.options[row["setting"].removeprefix("batch=")])
    if run.method != "l2rm":
        options.pop("rho", None)
    return RunSpec(run.method, run.model, options)


@functools.cache
def printed_sums(paper: str, table: str) -> pd.DataFrame:
    """Return what a table prints at its noise rates for rows with a run here.

    Columns ``dataset``, ``method``, ``variant``, ``model``, ``rate`` and ``value``: rSum, or the mean of both
    mAPs.
    """
    layout, names = layout_of(paper, table), ["dataset", "method", "variant", "model", "rate"]
    by_row: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows_of(paper, table):
        if row.get("noise_rate") and (run := run_of(layout, row)):
            key = (row["dataset"], run.method, run.variant, run.model, float(row["noise_rate"]))
            part = row["direction"] if layout.of_labels else row["metric"]
            by_row.setdefault((*key, row["method"]), {})[part] = float(row.get("value") or row["map"])
    mean = statistics.fmean if layout.of_labels else None
    rows = [(*key[:-1], mean(v.values()) if mean else sum_of(v)) for key, v in by_row.items()]
    return pd.DataFrame(rows, columns=[*names, "value"]).groupby(names, sort=False).mean().reset_index()


def sum_of(values: Mapping[str, float]) -> float:
    """Return the printed rSum of a row, or the sum of the recalls that it prints."""
    return values["rsum"] if "rsum" in values else sum(values[k] for k in RECALLS if k in values)


def printed_run(layout: Layout, row: Mapping[str, str]) -> RunSpec | str:
    """Return the run that fills a printed cell, or in words why none does.

    Unlike :func:`run_of`, which names the nearest run of the package: encoders must be those of the row, no
    stand-in counts, and settings that a paper has at certain rates are taken.

    Parameters
    ----------
    layout : Layout
    row : mapping
        Line of the table's CSV file.
    """
    if layout.file == "resources" and "memory" in row["quantity"]:
        size = int(row["bank_size"])
        return RunSpec("repair", _model(row["backbone"]), {"bank_size": size} if size != BANK else {})
    if layout.file == "resources" or row.get("metric") == "time_s":
        return "hours and seconds on one GPU model; another machine says nothing about them"
    run = run_of(layout, row)
    encoded = ENCODED.get(row.get("features", ""))
    name = "OMIT" if layout.method else row["method"]
    if encoded is not None and name in encoded:
        own = run.options if run is not None else {}
        run = RunSpec("plain", WHOLE.get(name) or _model(name), {**own, **encoded[name]})
    elif row["method"] in WHY_NOT and (run is None or encoded is not None or row["method"] in STAND_INS):
        return f"{row['method']}: {WHY_NOT[row['method']]}"
    elif encoded is not None and run is not None and run.model:
        return f"{row['method']} has no run here on {row['features'].replace('+', ' and ')}"
    if layout.of_labels and layout.runs == "none":
        return f"{row['method']}: {_READ['xmedianet_pictures']}"
    if run is None or (run.method == "plain" and not run.model):
        return f"{row['method']} is not in this package"
    if row["dataset"] not in DATASETS:
        return f"{row['dataset']} has no loader here"
    if layout.of_labels:
        return run
    rate, dataset, options = _mrate(row), DATASETS[row["dataset"]], dict(run.options)
    if run.method == "l2rm" and not rate and dataset != "cc152k":
        options["mask"] = False  # App. D.1, and the official code
    if run.method == "decl" and (warmup := published_warmup(dataset, rate)) != published_warmup(dataset, 0):
        options["warmup_epochs"] = warmup
    if run.model == "scan" and row["ensemble"] == "true":
        options |= SCAN_BOTH
    if run.model in weights.GLOVE and row["features"].endswith("BiGRU"):
        options["word_vectors"] = f"weights/glove_{dataset}.npy"
    if run.model in TWICE and row["ensemble"] == "true":
        return RunSpec(run.method, JOINED.join([run.model] * 2), options)
    return RunSpec(run.method, APART.get(run.model, run.model), options)


def category_method(name: str) -> str:
    """Return the method of category retrieval, or the stand-in, behind a printed name; empty for none."""
    method = name.lower().replace("-", "_")
    return method if method in label_noise.available() else STAND_INS.get(name, "")


def _model(name: str) -> str:
    model = MODELS.get(name, name.lower())
    return model if model in models.available() and name != "CLIP" else ""  # CLIP's rows are zero-shot


def _by_name(name: str, backbone: str) -> RunSpec:
    head, _, tail = name.partition("-")
    if head.lower() in methods.available():
        return RunSpec(head.lower(), _model(tail or backbone))
    return RunSpec("plain", _model(name))


def models_named(layout: Layout) -> bool:
    """Return whether the rows of a table are models, so that no other model can stand in for them."""
    return layout.paper == "OMIT"


def measured(layout: Layout, value: Value, runs: Runs) -> tuple[float, ...]:
    """Return what was measured on the paper's own data for one printed value, one number per seed.

    Only runs of the preset ``paper`` on that data, with the paper's row, rate and test protocol count.
    """
    row = value.source
    run = printed_run(layout, row)
    dataset = DATASETS.get(row["dataset"])
    if isinstance(run, str) or dataset not in runs.datasets:
        return ()
    sized = runs.paper_sized.get((dataset, run.method, run.variant))
    if sized is None:
        return ()
    if layout.of_labels:
        return numbers(select(sized, noise_rate=float(row["noise_rate"])), f"map_{row['direction']}")
    rate = _mrate(row)
    kind = {"protocol": layout.noise} if rate > 0 and layout.noise else {}
    table = select(sized, model=run.model, mrate=rate, **kind)
    if layout.file == "resources":
        return tuple(value / UNITS[row["unit"]] for value in numbers(table, "bank_mb"))
    group, size = TESTED[row["protocol"]]
    group = "test_dsl." if "DSL" in row.get("setting", "") else group
    return numbers(select(table, test_images=size), group + row["metric"])


def numbers(table: pd.DataFrame, column: str) -> tuple[float, ...]:
    """Return the values of a column of runs without the missing ones; none for a missing column."""
    return tuple(float(v) for v in table[column].dropna()) if column in table else ()


@dataclass(frozen=True)
class Rerun:
    """One run of the preset ``paper``, and the printed cells that it fills.

    Parameters
    ----------
    row, data, rate : str
        Of the table, as printed; ``rate`` is empty where no noise is added.
    arguments : mapping
        What :func:`nclib.run` is called with, besides the place of the data.
    """

    row: str
    data: str
    rate: str
    arguments: Mapping[str, Any]

    def parts(self, root: str, seed: int = 0) -> list[dict[str, Any]]:
        """Return what :func:`nclib.run` is called with; several where :func:`nclib.combine` follows."""
        given = {**self.arguments, "seed": seed}
        given["data_options"] = {**given.get("data_options", {}), "root": root}
        for part in {"data_options", "model_options"} & given.keys():
            given[part] = {k: weights.below(root, v) for k, v in given[part].items()}
        return parts_of(given)

    def command(self, root: str, seed: int = 0) -> str:
        """Return the run as lines for a shell, with the folder of the data; one for each part."""
        lines = []
        for given in self.parts(root, seed):
            code = ["--import", omit.PLACE] if omit.needed(given) else []
            lines.append(" ".join(["nclib run", given.pop("method"), *code, *words_of(given)]))
        if len(lines) > 1:
            lines.append("# then nclib.combine(...) in Python, with the folders of these runs")
        return "\n".join(lines)


def reruns(
    paper: str, table: str, *, row: str = "", data: str = "", rate: str = ""
) -> tuple[list[Rerun], list[str]]:
    """Return the runs behind a printed table, and the rows without a run here.

    Parameters
    ----------
    paper, table : str
        As in :func:`ncbook.paper_table`.
    row, data, rate : str
        Only this row, data set (as printed) or rate; all where empty.

    Returns
    -------
    runs : list of Rerun
        Each once, though it fills several cells.
    without : list of str
        Rows that no run fills, and why.

    Raises
    ------
    ValueError
        For an unknown table, row, data set or rate; the message lists those of the table.
    """
    layout = layout_of(paper, table)
    lines = rows_of(paper, table)
    for name, value, key in (("row", row, _label), ("data", data, _data), ("rate", rate, _rate)):
        known = list(dict.fromkeys(key(line) for line in lines))
        if value and value not in known:
            raise ValueError(f"{name}={value!r}: {layout.name} has {', '.join(map(repr, known))}")
    runs: dict[tuple[Any, ...], Rerun] = {}
    without: dict[str, None] = {}
    for line in lines:
        place = _label(line), _data(line), _rate(line)
        if any(value and value != own for value, own in zip((row, data, rate), place, strict=True)):
            continue
        run = printed_run(layout, line)
        if isinstance(run, str):
            without.setdefault(f"{place[0]}: {run}")
        else:
            runs.setdefault((*place, run.model, run.variant), Rerun(*place, arguments_of(layout, line)))
    return list(runs.values()), list(without)


def arguments_of(layout: Layout, line: Mapping[str, str]) -> dict[str, Any]:
    """Return what :func:`nclib.run` is called with for a printed cell, besides seed and place of the data.

    Parameters
    ----------
    layout : Layout
    line : mapping
        Line of the table's CSV file, which a run of this package fills.
    """
    run = printed_run(layout, line)
    assert not isinstance(run, str), run
    return dict(_arguments(run, DATASETS[line["dataset"]], line, layout.noise))


def _label(line: Mapping[str, str]) -> str:
    """Name of a row: its method, and what is printed about its setting."""
    setting = line.get("setting", "")
    return f"{line['method']}, {setting}" if setting else line["method"]


def _data(line: Mapping[str, str]) -> str:
    return line["dataset"]


def _rate(line: Mapping[str, str]) -> str:
    return line.get("noise_rate", "")


def _mrate(line: Mapping[str, str]) -> float:
    return BANK_RATE if "bank_size" in line else float(line.get("noise_rate") or 0)


def _arguments(run: RunSpec, dataset: str, line: Mapping[str, str], noise: str) -> Iterator[tuple[str, Any]]:
    rate = _mrate(line)
    yield "method", run.method
    yield "dataset", dataset
    yield "preset", "paper"
    of_data = set(inspect.signature(datasets[dataset].factory).parameters)
    if not run.model:  # category retrieval
        yield "noise_rate", rate
        yield from ((k, v) for k, v in run.options.items() if k not in of_data)
        if chosen := {k: v for k, v in run.options.items() if k in of_data}:
            yield "data_options", chosen
        return
    own = set(rules(models.options(run.model.partition(JOINED)[0])))
    yield "model", run.model
    yield "mrate", rate
    if rate and noise:
        yield "protocol", noise
    yield from ((k, v) for k, v in run.options.items() if k not in own | of_data)
    for part, names in (("data_options", of_data), ("model_options", own)):
        if chosen := {k: v for k, v in run.options.items() if k in names}:
            yield part, chosen
