"""Results of ``make gpu``: tables for the page on GPUs, and the hours of declared runs.

``{gpu-results}`` shows the stored file, or says that nothing was measured. :func:`seconds_of` multiplies
measured steps by the steps of a run.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

STORED = pathlib.Path("book", "measured", "bench_gpu.json")
VARIANTS = ("float32", "fused", "tf32", "bf16", "loop", "compiled", "graph")
NOTHING = "**Nothing was measured on a GPU yet.** The command above writes what this section will show."

Found = Mapping[str, Any]
Rows = list[list[str]]


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
    found: dict[str, Any] = json.loads(path.read_text("utf8"))
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
    measurement: the usual ones.

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
    if part is None or layout is None:
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
    """Return the seconds that a model takes to score one image with one caption, in float32."""
    rows = results(found, "score/").get(model, {}).get("rows", ())
    for row in rows:
        if row["precision"] == "float32":
            return float(row["seconds"] / row["share"] / (row["images"] * row["captions"]))
    return None


def _of_labels(settings: Mapping[str, Any], found: Found) -> float | None:
    from nclib.data.category_features import SETS

    part = results(found, "labels/").get(settings["method"])
    known = SETS.get(settings["dataset"])
    if part is None or known is None:
        return None
    epochs = 1 if part["closed_form"] else settings["epochs"]
    steps = 1.0 if part["closed_form"] else part["batch"] / settings["batch_size"]
    return float(epochs * part["epoch_s"] * known.sizes[0] / part["pairs"] * steps)


# ------------------------------------------------------------------------------------------------- the tables


def lines_of(found: Found | None) -> list[str]:
    """Return the section as lines of Markdown."""
    if found is None:
        return [NOTHING]
    lines = [provenance(found), ""]
    for title, rows in (
        ("CPU and GPU agree: the largest relative differences", agreement(found)),
        ("Training steps, milliseconds", steps(found)),
        ("Steps of the methods", method_steps(found)),
        ("Partial masked transport from a cost on the device to a plan on it", transport(found)),
        ("Many small transport problems", small_problems(found)),
        ("OMIT's problems of a batch, by the plain path and by fused kernels", fused(found)),
        ("Attention of every caption on every image of a batch, forward (SCAN)", attention(found)),
        ("Scoring of a test set, seconds", scoring(found)),
        ("Runs of L2RM in the papers' sizes, with a short schedule", runs(found)),
    ):
        if rows[1:]:
            lines += [f"**{title}**", "", *table(rows), ""]
    return [*lines, *failures(found)]


def provenance(found: Found) -> str:
    """Return where and when the results were made, and what the device gives at most."""
    device, parts = found["device"], found["parts"].values()
    days = sorted({part["when"][:10] for part in parts})
    commits = sorted({part["commit"] for part in parts})
    text = f"Measured on {device['name']}"
    if "driver" in device:
        text += f", driver {device['driver']}, CUDA {device['cuda']}"
    text += f", torch {device['torch']}, {' to '.join(dict.fromkeys((days[0], days[-1])))}, commit "
    text += ", ".join(f"`{commit}`" for commit in commits) + "."
    if (bounds := results(found).get("device/bounds")) is not None:
        rates = ", ".join(f"{name} {rate / 1e12:.1f}" for name, rate in bounds["flops_per_s"].items())
        text += f" Bounds on the spot: {bounds['bytes_per_s'] / 1e12:.2f} TB/s of a large copy, products of "
        text += f"large matrices in {rates} TFLOP/s, {bounds['launch_us']:.1f} µs a launch."
    return text


def table(rows: Rows) -> Iterator[str]:
    """Yield a table; its first column is text, the others are numbers."""
    yield f"| {' | '.join(rows[0])} |"
    yield "|---" + "|---:" * (len(rows[0]) - 1) + "|"
    for row in rows[1:]:
        yield f"| {' | '.join(row)} |"


def number(value: float | None) -> str:
    """Return a number with three digits; a dash where there is none."""
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def agreement(found: Found) -> Rows:
    """Return the parts that compare both devices, with the case that is nearest to what is allowed."""
    rows = [["what", "cases", "agree", "worst case", "difference", "allowed"]]
    for name, part in results(found, "agree/").items():
        cases = part["cases"].items()
        gaps = {k: math.inf if (gap := case.get("difference")) is None else gap for k, case in cases}
        worst, case = max(cases, key=lambda item, gaps=gaps: gaps[item[0]] / item[1]["allowed"])
        shown = f"{gaps[worst]:.1e}" if gaps[worst] < math.inf else "failed"
        good = sum(case["agrees"] for _, case in cases)
        rows.append([name, str(len(cases)), str(good), worst, shown, f"{case['allowed']:.0e}"])
    return rows


def steps(found: Found) -> Rows:
    """Return milliseconds of a step by arithmetic and form, memory, and how near the bounds are."""
    rows = [["model", *VARIANTS, "loop / float32", "peak MB", "bound", "bandwidth", "products"]]
    parts, bounds = results(found, "step/"), results(found).get("device/bounds")
    for model in dict.fromkeys(name.split()[0] for name in parts):
        own = {v: parts[f"{model} {v}"] for v in VARIANTS if f"{model} {v}" in parts}
        smaller = {v: f" (batch {part['batch']})" if part["too_large"] else "" for v, part in own.items()}
        cells = [number(own[v]["ms"]) + smaller[v] if v in own else "–" for v in VARIANTS]
        plain = own.get("float32", {})
        gain = own["loop"]["ms"] / plain["ms"] if plain and "loop" in own else None
        near = ["–"] * 3
        if bounds is not None and "work" in plain:
            work, seconds = plain["work"], plain["ms"] / 1e3
            least = least_ms({"flops": work["flops"], "bytes": plain["least_bytes"]}, bounds)
            used = work["bytes"] / bounds["bytes_per_s"], work["flops"] / bounds["flops_per_s"]["float32"]
            near = [number(least), *(f"{100 * share / seconds:.0f} %" for share in used)]
        rows.append([model, *cells, number(gain), number(plain.get("peak_mb")), *near])
    return rows


def method_steps(found: Found) -> Rows:
    """Return milliseconds of a warm-up step and of a training step, and of what surrounds 1,000 pairs."""
    rows = [["method, model", "networks", "warm-up step", "first epoch", "last epoch", "around 1,000 pairs"]]
    for name, part in results(found, "method/").items():
        around = (part["first"]["around_ms"] + part["last"]["around_ms"]) / 2
        ms = [number(part[phase]["step_ms"]) for phase in ("warm-up", "first", "last")]
        rows.append([name, str(part["networks"]), *ms, number(1e3 * around / part["pairs"])])
    return rows


def transport(found: Found) -> Rows:
    """Return medians over the problems of a size, and ratios to the loop of the official code."""
    rows = [["solver", "size", "ms", "official loop / this", "largest plan error"]]
    for size, part in sorted(results(found, "transport/partial ").items(), key=lambda item: int(item[0])):
        other = results(found, "transport/ott ").get(size, {}).get("rows", ())
        good = [row for row in part["rows"] if "ms" in row]
        base = {(r["cost"], r["reg"]): r["ms"] for r in good if r["solver"] == "published loop"}
        good += [{"solver": "OTT float32", **row} for row in other]
        for solver in dict.fromkeys(row["solver"] for row in good):
            own = [row for row in good if row["solver"] == solver]
            ratios = [base[r["cost"], r["reg"]] / r["ms"] for r in own if (r["cost"], r["reg"]) in base]
            errors = [row["plan_error"] for row in own if "plan_error" in row]
            cells = [number(median(row["ms"] for row in own)), number(median(ratios) if ratios else None)]
            rows.append([solver, size, *cells, f"{max(errors):.0e}" if errors else "–"])
    return rows


def small_problems(found: Found) -> Rows:
    """Return times of the small problems, ratios to the official loop, and the least time."""
    rows = [["problems, passes, what", "solver", "ms", "official loop / this", "bound ms"]]
    bounds = results(found).get("device/bounds")
    for count, part in sorted(results(found, "transport/small ").items(), key=lambda item: int(item[0])):
        good = [row for row in part["rows"] if "ms" in row]
        base = {(r["passes"], r["what"]): r["ms"] for r in good if r["solver"] == "released loop"}
        for row in good:
            key = row["passes"], row["what"]
            gain = base[key] / row["ms"] if key in base else None
            least = None if bounds is None else least_ms(row["bound"], bounds)
            what = f"{int(count):,}, {row['passes']}, {row['what']}"
            rows.append([what, row["solver"], number(row["ms"]), number(gain), number(least)])
    return rows


def fused(found: Found) -> Rows:
    """Return times of OMIT's problems by either path, bytes that it moves, and its share of the bandwidth."""
    rows = [["batch, what", "path", "ms", "plain / this", "MB", "bandwidth", "difference to float64"]]
    bounds = results(found).get("device/bounds")
    for batch, part in sorted(results(found, "transport/fused ").items(), key=lambda item: int(item[0])):
        good = [row for row in part["rows"] if "bytes" in row]
        base = {row["what"]: row["ms"] for row in good if row["path"] == "plain"}
        for row in good:
            gain = base[row["what"]] / row["ms"] if row["what"] in base else None
            rate = None if bounds is None else 1e3 * row["bytes"] / row["ms"] / bounds["bytes_per_s"]
            cells = [number(row["ms"]), number(gain), number(row["bytes"] / 1e6)]
            cells += ["–" if rate is None else f"{100 * rate:.0f} %", f"{row['difference']:.0e}"]
            rows.append([f"{batch}, {row['what']}", row["path"], *cells])
    return rows


def attention(found: Found) -> Rows:
    """Return the time of the comparison of SCAN beside its bound."""
    parts = results(found)
    if not {"kernel/attention", "device/bounds"} <= parts.keys():
        return []
    part = parts["kernel/attention"]
    least = least_ms(part["bound"], parts["device/bounds"])
    return [["arithmetic", "ms", "bound ms"], ["float32", number(part["ms"]), number(least)]]


def least_ms(bound: Found, bounds: Found) -> float:
    """Return the least milliseconds of a kernel or step: of its bytes, or of its float32 operations."""
    operations = bound["flops"] / bounds["flops_per_s"]["float32"]
    return 1e3 * max(bound["bytes"] / bounds["bytes_per_s"], operations)


def scoring(found: Found) -> Rows:
    """Return seconds of a test set; a share that was scored is extended to the whole, and marked."""
    cells: dict[str, dict[str, str]] = {}
    for name, part in results(found, "score/").items():
        cells[name] = {}
        for row in part["rows"]:
            share = f" (from {100 * row['share']:.0f} %)" if row["share"] < 1 else ""
            size = f"{row['images']:,} x {row['captions']:,}, {row['precision']}"
            cells[name][size] = number(row["seconds"] / row["share"]) + share
    sizes = list(dict.fromkeys(size for own in cells.values() for size in own))
    return [["model", *sizes], *([name, *(own.get(s, "–") for s in sizes)] for name, own in cells.items())]


def runs(found: Found) -> Rows:
    """Return the results of the real runs."""
    rows = [["data", "precision", "epochs", "seconds", "test rSum", "peak MB"]]
    for part in results(found, "run/").values():
        record = part["record"]
        cost, s = record["cost"], record["settings"]
        cells = [s["dataset"], s["precision"], str(len(record["curves"])), number(cost["seconds"])]
        rows.append([*cells, f"{record['metrics']['test']['rsum']:.1f}", number(cost["peak_memory_mb"])])
    return rows


def failures(found: Found) -> list[str]:
    """Return what failed, with its message as code on one line."""
    failed = {k: part["error"] for k, part in found["parts"].items() if part["state"] == "failed"}
    shown = [f"- {name}: `{' '.join(error.replace('`', chr(39)).split())}`" for name, error in failed.items()]
    return ["**Parts that failed**", "", *shown] if failed else []


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
