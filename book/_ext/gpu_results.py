"""Results of ``make gpu``: tables for the page on GPUs, and the hours of declared runs.

``{gpu-results}`` shows the stored file, or says that nothing was measured. :func:`seconds_of` multiplies
measured steps by the steps of a run.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ncbook.measurements import unpacked

if TYPE_CHECKING:
    from sphinx.application import Sphinx

STORED = pathlib.Path("book", "measured", "bench_gpu.json")
NOTHING = "**Nothing was measured on a GPU yet.** The command above writes what this section will show."

DATASETS = ("f30k", "coco", "cc152k")  # of the printed runs

Found = Mapping[str, Any]


def stored(root: pathlib.Path) -> dict[str, Any] | None:
    """Return the stored results under the root of the book; None where there are none.

    Raises
    ------
    ValueError
        When the file holds results of small sizes, or none of this command.
    """
    path = root / STORED
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf8"), object_hook=unpacked)
    if found.get("benchmark") != "gpu" or found.get("small"):
        raise ValueError(f"{path.name} must hold the results of make gpu in the papers' sizes")
    return found


def results(found: Found, start: str = "") -> dict[str, Any]:
    """Return the results of the measured parts whose name starts so, by the rest of their names."""
    return {
        name.removeprefix(start): part["result"]
        for name, part in found["parts"].items()
        if part["state"] == "done" and name.startswith(start)
    }


# --------------------------------------------------------------------------------------------- hours of a run


def seconds_of(settings: Mapping[str, Any], found: Found) -> float | None:
    """Return the seconds of a run on the measured device, or None where its steps were not measured.

    Steps of a warm-up epoch and the mean of those of the first and the last training epoch, times the steps
    of the run; what surrounds them, times the pairs; validation after every epoch, and the test. A method
    that divides the pairs is taken to find the matched ones. Options of methods and models are those of the
    measurement: the usual ones. None as well where steps were timed while something was compiled.

    Parameters
    ----------
    settings : mapping
        Of one run, as records hold them.
    found : mapping
        What :func:`stored` returns.
    """
    if "noise_rate" in settings:
        return _of_labels(settings, found)
    from nclib.data.feature_files import LAYOUTS
    from nclib.data.region_features import VALIDATION_IMAGES

    layout = LAYOUTS.get(settings["dataset"])
    if {"pixels", "pieces"} & {k for k, v in settings.get("data_options", {}).items() if v}:
        return None  # pretrained networks were not measured
    part = results(found, "method/").get(f"{settings['method']} {settings['model']}")
    if part is None or layout is None or any(row.get("compiles") for row in part.get("rows", ())):
        return None
    images, each = layout.images, layout.captions_per_image
    n, batch, networks = images["train"] * each, settings["batch_size"], part["networks"]
    scale = batch / part["batch"]  # a step costs what its pairs cost
    first = part["warm-up"]
    seconds = settings["warmup_epochs"] * networks * math.ceil(n / batch) * first["step_ms"] * scale / 1e3
    trained = n * (1 - settings["mrate"] if part["divides"] else 1.0)
    for phase in ("first", "last"):
        ms = part[phase]["step_ms"] * part[phase]["steps"] / part["trained_pairs"] * trained
        ms += part[phase]["around_ms"] * n / part["pairs"]
        seconds += settings["epochs"] / 2 * ms / 1e3
    test = images["testall" if "testall" in images else "test"]
    epochs = settings["warmup_epochs"] + settings["epochs"]
    scored = epochs * min(images["dev"], VALIDATION_IMAGES) ** 2 + test**2
    rate = scoring_rate(settings["model"], found)
    return None if rate is None else seconds + networks * each * scored * rate


def scoring_rate(model: str, found: Found) -> float | None:
    """Return the seconds that a model takes to score one image with one caption, as runs do by default."""
    rows = results(found, "score/").get(model, {}).get("rows", ())
    each = [row["seconds"] / row["share"] / (row["images"] * row["captions"]) for row in rows]
    return float(each[0]) if each else None


def _of_labels(settings: Mapping[str, Any], found: Found) -> float | None:
    from nclib.data.category_features import SETS

    part = results(found, "labels/").get(settings["method"])
    known = SETS.get(settings["dataset"])
    if part is None or known is None:
        return None
    epochs = 1 if part["closed_form"] else settings["epochs"]
    steps = 1.0 if part["closed_form"] else part["batch"] / settings["batch_size"]
    return float(epochs * part["epoch_s"] * known.sizes[0] / part["pairs"] * steps)


def hours(found: Found) -> list[dict[str, Any]]:
    """Return hours of printed runs whose steps were measured, at 40 % noise, and what papers print."""
    import nclib

    rows = []
    for method, model in (name.split() for name in results(found, "method/")):
        row: dict[str, Any] = {"method": method, "model": model}
        for dataset in DATASETS:
            given = {"dataset": dataset, "preset": "paper", "model": model, "data_options": {"root": "."}}
            if dataset != "cc152k":  # whose own pairs are noisy
                given["mrate"] = 0.4
            seconds = seconds_of(nclib.resolve(method, **given).flat(), found)
            row[f"{dataset} h"] = seconds / 3600 if seconds else None
        rows.append(row | {"printed": printed_hours(method, model)})
    return rows


def printed_hours(method: str, model: str) -> str | None:
    """Return the hours that a paper prints for its runs of a method with a model, and on which card."""
    from ncbook.papers import printed

    rows = [
        row
        for row in printed("resources", quantity="training time").to_dict("records")
        if (row["method"].lower(), row["backbone"].lower().replace("∞", "_inf")) == (method, model)
    ]
    values = ", ".join(dict.fromkeys(f"{row['value']} (bank {row['bank_size']})" for row in rows))
    return f"{rows[0]['dataset']}: {values} on {rows[0]['hardware']}" if rows else None


# ------------------------------------------------------------------------------------------------- the tables

TITLES = {
    "step": "Training steps of the models; difference: of compiled scores from eager ones, in norm",
    "method": "Steps of the methods, and what surrounds those of an epoch",
    "score": "Scoring of a test set; share: of the captions that were scored",
    "transport/partial": "Partial masked transport from a cost on the device to a plan on it",
    "transport/omit": "OMIT's problems of a batch",
    "launches": "Calls of a step",
    "agree": "CPU and GPU agree, nothing compiled: the largest relative differences in norm",
    "resume": "L2RM with SAF, killed and continued: the largest relative difference in norm of its tensors",
    "run": "Runs of L2RM with a short schedule",
    "labels": "Epochs of the methods for wrong labels",
}


def lines_of(found: Found | None) -> list[str]:
    """Return the section as lines of Markdown: a table for each kind of part, and what failed."""
    if found is None:
        return [NOTHING]
    from ncbook.gpu import gpu_lines, part_commit

    parts, lines = found["parts"], gpu_lines(found)
    for start, title in TITLES.items():
        rows = [
            _marked(row) | {"commit": part_commit(start + name, parts[start + name])}
            for name, part in results(found, start).items()
            for row in part["rows"]
        ]
        if rows:
            lines += [f"**{title}**", "", *table(rows), ""]
    if of_runs := table(hours(found)):
        lines += [
            f"**Hours of a run with the printed settings on {found['device']['name']}, from these steps**",
            "",
            *of_runs,
            "",
        ]
    errors = {name: " ".join(part["error"].split()) for name, part in parts.items() if "error" in part}
    return lines + [f"- {name} failed: `{error.replace('`', chr(39))}`" for name, error in errors.items()]


def _marked(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row; steps that were timed while something was compiled show so in place of a time."""
    shown = {key: value for key, value in row.items() if key != "compiles"}
    return shown | ({"step_ms": "compiled meanwhile"} if row.get("compiles") else {})


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return rows as a table of Markdown, with a column for every key; no lines without rows."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"] if rows else []
    return lines + [f"| {' | '.join(text(row.get(head)) for head in heads)} |" for row in rows]


def text(value: Any) -> str:
    """Return a cell; numbers with three digits."""
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    return "–" if value is None else " ".join(str(value).replace("|", "/").split())


# ---------------------------------------------------------------------------------------------- the extension


def setup(app: Sphinx) -> dict[str, bool]:
    from docutils import nodes
    from docutils.statemachine import StringList
    from sphinx.util.docutils import SphinxDirective

    class GpuResults(SphinxDirective):
        """The section of the page on GPUs that shows what was measured."""

        def run(self) -> list[nodes.Node]:
            root = pathlib.Path(self.env.srcdir)
            self.env.note_dependency(str(root / STORED))
            box = nodes.container(classes=["execution-status"])
            lines = lines_of(stored(root))
            self.state.nested_parse(StringList(lines, source=self.env.doc2path(self.env.docname)), 0, box)
            return [box]

    app.add_directive("gpu-results", GpuResults)
    return {"parallel_read_safe": True}
