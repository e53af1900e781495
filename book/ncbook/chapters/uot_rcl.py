"""Figures and tables of the chapter on UOT-RCL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas.io.formats.style import Styler
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import confusion_matrix
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from ncbook import means, printed, show
from ncbook.chapters import (
    ONLY_PRINTED,
    cost_of,
    devices,
    gains,
    recorded_or_run,
    stored_benchmark,
    wide,
)
from ncbook.runs import select
from nclib import Record, data, plots
from nclib.plots import labels
from nclib.runs import LoadedRun, experiment_of

METHODS = ("uot_rcl", "mrl", "elrcmr", "dscmr", "sdml")  # compared in the tables
RATES = (0.2, 0.4, 0.6, 0.8)
ACCURACIES = {
    "given_accuracy": "given labels right",
    "corrected_accuracy": "corrected labels right",
    "corrected_accuracy_by_mass": "by mass",
    "transported_mass": "mass moved",
    "confident_purity": "confident pairs right",
    "relation_same_class": "relation plan, same class",
    "relation_chance": "by chance",
}
TARGETS = {  # what a method contrasts an image with
    ("uot_rcl", "default"): "relation plan",
    ("uot_rcl", "lam=0.0"): "no contrast",
    ("uot_rcl", "relation=instance"): "own text",
    ("mrl", "default"): "MRL",
    ("elrcmr", "default"): "ELRCMR",
}
PARTS = {
    "default": "full",
    "plc=off": "w/o label correction (plc off)",
    "lam=0.0": "w/o relation alignment (λ = 0)",
    "confident=random": "w/o confident set (random)",
    "plc=ce": "given labels (plc ce)",
    "consistency=off": "consistency off",
    "relation=instance": "contrast with the pair itself",
}
COSTS = {  # columns of the benchmark on a large set
    "size": "networks",
    "pairs": "pairs",
    "steps_taken": "steps taken",
    "correction": "correction, s",
    "steps": "steps, s",
    "rest": "validation and saving, s",
    "seconds": "together, s",
    "growth": "growth",
    "start_mb": "before, MB",
    "peak_mb": "peak, MB",
}


def printed_map() -> Styler:
    """Show the printed mAP on Wikipedia, mean of both directions, over the noise rate."""
    rows = printed("category_map", paper="UOT-RCL", dataset="Wikipedia", table="II")
    rows = rows[rows["method"].isin(["DSCMR", "SDML", "MRL", "ELRCMR", "UOT-RCL"])]
    cells = wide(rows, "method", "noise_rate", "map").rename_axis(index=None, columns="label noise")
    return show(cells, "printed", f"Printed in the paper; {ONLY_PRINTED}", digits=3, best=True)


def beside(record: Record, given: Mapping[str, Any], other: str) -> dict[str, Record]:
    """Return this run and another method (or ``none``) with the same data, noise, seed and schedule.

    ``given`` are the parameters of this run. The other's recorded run is taken where there is one.
    """
    runs = {"uot_rcl": record}
    if other != "none":
        runs[other] = recorded_or_run(other, **experiment_of("uot_rcl").shared(given))
    return runs


def map_table(compared: Mapping[str, Record]) -> Styler:
    """Show mAP, selected epoch and cost of the compared runs."""
    rows = {
        name: {
            "image to text": r.metrics["test"]["map_i2t"],
            "text to image": r.metrics["test"]["map_t2i"],
            "mean": r.metrics["test"]["map_avg"],
            "mean, last epoch": r.metrics["last"]["map_avg"],
            "best epoch": r.best_epoch,
            **cost_of(r),
        }
        for name, r in compared.items()
    }
    record = compared["uot_rcl"]
    used = record.data
    caption = (
        f"Measured: mAP on {used['test_pairs']} test pairs of {used['name']}, epoch selected on "
        f"{used['val_pairs']} validation pairs; preset {record.settings['preset']}. "
        f"Noise: {record.noise['description']}"
    )
    return show(pd.DataFrame(rows), "run", caption, digits=3)


def validation(compared: Mapping[str, Record]) -> Figure:
    """Draw the validation mAP of the compared runs by epoch."""
    settings = compared["uot_rcl"].settings
    rate = f"noise {settings['noise_rate']:g}, this run" if not settings["noise_file"] else ""
    title = rate or "labels from a file"
    return labels.validation_curves({title: {name: r.curves for name, r in compared.items()}})


def _compared(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the compared methods with the options of the preset."""
    return select(runs, variant="default", method=list(METHODS))


def recorded_validation(runs: pd.DataFrame) -> Figure | None:
    """Draw the validation mAP of recorded runs, seed 0, by epoch; one column per noise rate (Fig. 3)."""
    drawn = {}
    for rate in RATES:
        here = select(runs, variant="default", noise_rate=rate, seed=0)
        paths = {m: select(here, method=m)["path"] for m in ("uot_rcl", "elrcmr")}
        if curves := {m: Record.load(p).curves for m, found in paths.items() for p in found}:
            drawn[f"noise {rate:g}"] = curves
    return labels.validation_curves(drawn) if drawn else None


def rates(runs: pd.DataFrame) -> Figure | None:
    """Draw the test mAP of the compared methods over the noise rate."""
    here = _compared(runs)
    return None if here.empty else labels.sweep(here, "noise_rate", xlabel="label noise", group="method")


def _over_rates(runs: pd.DataFrame, by: str, names: Mapping[str, str], table: str) -> Styler | None:
    """Show the test mAP of those rows ``names`` of a table that were recorded, over the noise rate."""
    runs = runs[runs[by].isin(list(names))]
    if runs.empty:
        return None
    cells = means(runs, by, "noise_rate", "map_avg", digits=3).rename_axis(columns="label noise")
    cells = cells.reindex([n for n in names if n in cells.index]).rename(index=dict(names))
    what = "mean of both mAP on test, mean ± standard deviation (seeds)"
    return show(cells, table, f"Measured, preset quick: {what}; {devices(runs)}")


def rate_table(runs: pd.DataFrame, name: str) -> Styler | None:
    """Show the test mAP of the compared methods over the noise rate."""
    return _over_rates(_compared(runs), "method", {m: m for m in METHODS}, name)


def ablation(runs: pd.DataFrame) -> Styler | None:
    """Show the test mAP without each part of the method, over the noise rate (Table IV)."""
    return _over_rates(select(runs, method="uot_rcl"), "variant", PARTS, "ablation")


def paired(runs: pd.DataFrame) -> Styler | None:
    """Show what UOT-RCL gains over the other methods with the same seed."""
    here = _compared(runs)
    if here.empty:
        return None
    table = gains(here, "uot_rcl", ["noise_rate"], "method", "map_avg")
    clear = table["mean gain"].abs() > table["standard deviation"]
    verdict = np.where(
        clear, np.where(table["mean gain"] > 0, "ahead", "behind"), "within one standard deviation"
    )
    table["UOT-RCL is"] = np.where(table["seeds"] > 1, verdict, "one seed")
    table.index.names = ["label noise", "against"]
    caption = "Measured: mAP of UOT-RCL minus mAP of the other method with the same seed"
    shown = show(table, "paired", caption, digits=3, missing="one seed")
    return shown.format_index("{:g}", level="label noise")


def class_maps(record: Record, run: LoadedRun) -> Figure | None:
    """Draw true classes against the given and the corrected classes of this run (Fig. 8)."""
    noise, names = run.noise, run.dataset.label_names
    if len(names) > 50:
        return None
    given = np.concatenate([noise.image_labels, noise.text_labels])
    counts = confusion_matrix(np.tile(noise.truth, 2), given, labels=range(len(names)), normalize="true")
    drawn = {"given, this run": counts}
    if "confusion" in record.diagnostics:
        drawn["corrected"] = np.array(record.diagnostics["confusion"])
    return labels.confusions(drawn, names)


def recorded_class_maps(runs: pd.DataFrame) -> Figure | None:
    """Draw true classes against the corrected classes of recorded runs, seed 0, per noise rate (Fig. 8)."""
    drawn = {}
    for rate in RATES:
        for path in select(runs, method="uot_rcl", variant="default", noise_rate=rate, seed=0)["path"]:
            diagnostics = Record.load(path).diagnostics
            if "confusion" in diagnostics:
                drawn[f"noise {rate:g}"] = np.array(diagnostics["confusion"])
    return labels.confusions(drawn, data.load("emoji_category").label_names) if drawn else None


def accuracy(runs: pd.DataFrame) -> Styler | None:
    """Show how many labels, confident pairs and links of the relation plan are right, over the noise rate."""
    own = select(runs, method="uot_rcl", variant="default")
    if own.empty:
        return None
    table = own.groupby("noise_rate")[list(ACCURACIES)].mean().rename(columns=ACCURACIES)
    caption = f"Measured: last epoch, mean over {own['seed'].nunique()} seeds"
    return show(table.rename_axis("label noise"), "accuracy", caption, digits=3).format_index("{:g}")


def contrast(record: Record, runs: pd.DataFrame) -> Figure:
    """Draw what the relation plan of this run links by epoch, and test mAP by the target of the contrast."""
    figure, ((left, right),) = plots.panels(1, 2, 8.6, 3.6, width_ratios=(1, 1.15))
    _links(left, record)
    _targets(right, runs)
    return figure


def _links(axis: Axes, record: Record) -> None:
    """Draw the share of the relation plan between equal classes and on own pairs, by epoch."""
    rows = pd.DataFrame([row for row in record.curves if "relation_same_class" in row])
    if len(rows):
        rows["alone"] = rows["predicted_accuracy_image"] * rows["predicted_accuracy_text"]
        for column, text, colour, line in (
            ("relation_same_class", "plan: same class", plots.MATCHED, "o-"),
            ("relation_own_pair", "plan: own text", plots.MISMATCHED, "s-"),
            ("alone", "image right × text right", plots.NEUTRAL, "--"),
            ("relation_chance", "by chance", plots.NEUTRAL, ":"),
        ):
            axis.plot(rows["epoch"], rows[column], line, color=colour, ms=4, label=text)
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="epoch", ylabel="share", ylim=(0, 1), title="what the relation plan links, this run")


def _targets(axis: Axes, runs: pd.DataFrame) -> None:
    """Draw the test mAP of recorded runs by target, at the rates with runs on their own text."""
    axis.set_title("test mAP by target of the contrast")
    control = set(select(runs, method="uot_rcl", variant="relation=instance")["noise_rate"])
    if not control:
        axis.text(0.5, 0.5, "no recorded runs here", transform=axis.transAxes, ha="center")
        return
    target = [TARGETS.get(key) for key in zip(runs["method"], runs["variant"], strict=True)]
    here = runs.assign(target=target, noise="noise " + runs["noise_rate"].map("{:g}".format))
    here = here[here["noise_rate"].isin(control)].dropna(subset="target").sort_values("noise_rate")
    n = len(control)
    sns.pointplot(
        here, x="target", y="map_avg", hue="noise", order=list(TARGETS.values()), errorbar="sd", ax=axis,
        dodge=0.14 * (n - 1) if n > 1 else False, linestyle="none", capsize=0.06, err_kws={"lw": 1.5}, ms=6,
        markers=list(plots.MARKS[:n]), palette=list(plots.CYCLE[:n]),
    )  # fmt: skip
    axis.axvline(2.5, color=plots.NEUTRAL, lw=0.8)  # left of it UOT-RCL, right of it other methods
    axis.tick_params(axis="x", labelsize=8)
    axis.set(xlabel="", ylabel="")
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3)


def control(record: Record, given: Mapping[str, Any]) -> Styler | None:
    """Show this run beside one that contrasts every image with its own text instead of the relation plan."""
    planned = any("relation_same_class" in row for row in record.curves)
    if record.settings["method_options"]["relation"] != "transport" or not planned:
        return None
    own_text = recorded_or_run("uot_rcl", **{**given, "relation": "instance"})
    rows = {
        name: {
            "test mAP": r.metrics["test"]["map_avg"],
            "corrected labels right": r.diagnostics["corrected_accuracy"],
            "image right, alone": r.diagnostics.get("predicted_accuracy_image"),
            "text right, alone": r.diagnostics.get("predicted_accuracy_text"),
        }
        for name, r in (("relation plan", record), ("own text", own_text))
    }
    caption = "Measured: target of the contrast, everything else equal; accuracies on training pairs"
    return show(pd.DataFrame(rows, dtype=float).T, "control", caption, digits=3, missing="not recorded")


def momentum(runs: pd.DataFrame) -> Figure | None:
    """Draw the validation mAP for several momenta of the targets, at a low and a high noise rate (Fig. 4)."""
    drawn = {}
    for rate in (0.2, 0.8) if len(runs) else ():
        here = select(runs, method="uot_rcl", noise_rate=rate, seed=0)
        here = here[here["variant"].str.fullmatch(r"default|gamma=\S+")]
        here = here.sort_values("method_gamma").drop_duplicates("method_gamma")
        if len(here) > 1:
            values = zip(here["method_gamma"], here["path"], strict=True)
            drawn[f"noise {rate:g}"] = {f"γ = {g:g}": Record.load(path).curves for g, path in values}
    return labels.validation_curves(drawn) if drawn else None


def weight(runs: pd.DataFrame) -> Figure | None:
    """Draw the test mAP over the weight of the relation loss, with the seeds of the sweep (Fig. 6)."""
    here = select(runs, method="uot_rcl", noise_rate=0.4)
    if here.empty:
        return None
    here = here[here["variant"].str.fullmatch(r"default|lam=\S+") & (here["method_lam"] > 0)]
    here = here[here["seed"].isin(here.loc[here["variant"] != "default", "seed"])]
    if here["method_lam"].nunique() < 2:
        return None
    return labels.sweep(here, "method_lam", xlabel="weight λ of the relation loss (noise 0.4)")


def retrieved(run: LoadedRun, seed: int, what: str) -> Figure | None:
    """Draw validation queries with what was found for them (Fig. 5); None for data without pictures.

    Three random pictures with five ``texts`` each, or two texts with three ``pictures`` each.
    """
    val, names = run.dataset.val, run.dataset.label_names
    if not val.has_pictures:
        return None
    v, t = run.trainer.embed_split(val)
    distance = -(v @ t.T).detach().cpu().numpy()
    draw = np.random.default_rng(seed)
    pictures, texts = (draw.choice(len(val), n, replace=False) for n in (3, 2))
    if what == "texts":
        best = np.argsort(distance[pictures], axis=1, kind="stable")[:, :5]
        return labels.retrieved_texts(val, pictures.tolist(), best, names)
    best = np.argsort(distance.T[texts], axis=1, kind="stable")[:, :3]
    return labels.retrieved_pictures(val, texts.tolist(), best, names)


@dataclass(frozen=True)
class Features:
    """Features of some test pairs before and after training, of images and texts, (n, d) each."""

    given: tuple[np.ndarray, np.ndarray]
    learned: tuple[np.ndarray, np.ndarray]
    labels: np.ndarray  # true classes, int, (n,)
    names: tuple[str, ...]  # of the classes


def features(run: LoadedRun, n: int, seed: int) -> Features:
    """Return features of ``n`` random test pairs, of the first ten classes alone: colour tells them apart."""
    test = run.dataset.test
    some = np.random.default_rng(seed).choice(len(test), min(n, len(test)), replace=False)
    some = some[test.labels[some] < 10]
    width = min(50, len(some), test.images.shape[1], test.texts.shape[1])
    scaled = (StandardScaler().fit_transform(x[some]) for x in (test.images, test.texts))
    images, texts = (PCA(width, random_state=0).fit_transform(x) for x in scaled)
    v, t = (x.detach().cpu().numpy()[some] for x in run.trainer.embed_split(test))
    return Features((images, texts), (v, t), test.labels[some], run.dataset.label_names[:10])


def feature_maps(found: Features) -> Figure:
    """Draw t-SNE maps of given and learned features: images, texts, and both together (Fig. 7)."""
    y, drawn = found.labels, {}
    no, yes = np.zeros(len(y), bool), np.ones(len(y), bool)
    for word, (images, texts) in (("given", found.given), ("learned", found.learned)):
        for name, x, label, is_text in (
            ("images", images, y, no),
            ("texts", texts, y, yes),
            ("both", np.concatenate([images, texts]), np.tile(y, 2), np.concatenate([no, yes])),
        ):
            plane = TSNE(perplexity=min(30, len(x) / 4), init="pca", random_state=0).fit_transform(x)
            drawn[f"{word}: {name}"] = (plane, label, is_text)
    return labels.maps(drawn, found.names)


def mixing(found: Features) -> Styler:
    """Show how many of the ten nearest neighbours have the same class, and how many the other modality."""
    label, is_text = np.tile(found.labels, 2), np.repeat([False, True], len(found.labels))
    rows = {}
    for word, parts in (("given", found.given), ("learned", found.learned)):
        search = NearestNeighbors(n_neighbors=10, metric="cosine").fit(np.concatenate(parts))
        near = search.kneighbors(return_distance=False)  # of every point, itself left out
        rows[word] = {
            "same class": (label[near] == label[:, None]).mean(),
            "other modality": (is_text[near] != is_text[:, None]).mean(),
        }
    caption = "Measured on the pairs shown: the ten nearest neighbours among images and texts together"
    return show(pd.DataFrame(rows).T, "mixing", caption, digits=3)


def scale() -> Styler | None:
    """Show the recorded cost of an epoch on sets as large as NUS-WIDE and larger."""
    bench = stored_benchmark("bench/category_scale.json")
    if bench is None:
        return None
    table = pd.DataFrame(bench["epochs"])[list(COSTS)].rename(columns=COSTS)
    caption = f"Measured {bench['when']}: CPU seconds of one epoch, largest resident set of the process"
    shown = show(table, "scale", caption, index=False).format(precision=1, thousands=",")
    return shown.format("{:.2f}", na_rep="", subset=["growth"])
