"""Figures and tables of the chapter on UOT-RCL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from IPython.display import Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas.io.formats.style import Styler
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import confusion_matrix
from sklearn.preprocessing import StandardScaler

from ncbook import means, show
from ncbook.compare import over_rates, verdicts
from ncbook.runs import devices, select
from ncbook.training import cost_of, recorded_or_run, say
from nclib import Record, data, plots, resolve
from nclib.evaluation import precision_at_k
from nclib.label_noise.parts import correction
from nclib.noise import LabelNoise
from nclib.ot import label_transport
from nclib.plots import labels
from nclib.runs import LoadedRun, experiment_of, load_record

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
    ("uot_rcl", ""): "relation plan",
    ("uot_rcl", "lam=0"): "no contrast",
    ("uot_rcl", "relation=instance"): "own text",
    ("mrl", ""): "MRL",
    ("elrcmr", ""): "ELRCMR",
}
PARTS = {
    "": "full",
    "plc=off": "w/o label correction (plc off)",
    "lam=0": "w/o relation alignment (λ = 0)",
    "confident=random": "w/o confident set (random)",
    "plc=ce": "given labels (plc ce)",
    "consistency=off": "consistency off",
    "relation=instance": "contrast with the pair itself",
}
# Votes of neighbours for five pairs and three topics: clear for the first three, unclear for the last two.
TOPICS = ("food", "pets", "sky")
VOTES = torch.tensor(
    [[0.75, 0.10, 0.05], [0.05, 0.80, 0.05], [0.10, 0.05, 0.70], [0.30, 0.25, 0.20], [0.20, 0.25, 0.30]]
)
GIVEN = (0, 0, 2, 1, 2)  # label that each of the five pairs came with; that of the second one is wrong
MOVED = 0.7  # mass that the drawn plan moves


def drawn_plan(mass: float = MOVED) -> torch.Tensor:
    """Return the corrected labels of :data:`VOTES`, (5, 3); rows sum to the share of a pair that moved."""
    cost = correction.semantic_cost(VOTES)
    return len(VOTES) * label_transport(cost, mass, reg=0.05).plan


def problem(given: Mapping[str, Any], n: int = 4) -> Figure | None:
    """Draw training pairs with their true topic and the one that the noise gave to the text."""
    settings = resolve("uot_rcl", **given)
    run, dataset = settings.run, data.load(settings.run.dataset, **settings.data_options)
    train, names = dataset.train, dataset.label_names
    if not train.has_pictures or run.noise_file:
        return None
    how = {"protocol": run.protocol, "scope": run.scope}
    noise = LabelNoise.draw(train.labels, run.noise_rate or 0.0, n_classes=len(names), seed=run.seed, **how)
    lines = []
    for row in range(n):
        true, told = names[train.labels[row]], names[noise.text_labels[row]]
        mark, colour = ("✓", plots.MATCHED) if true == told else ("✗", plots.MISMATCHED)
        lines.append(
            [(train.text(row), "#222222"), (f"{mark} label: {told}", colour), (f"topic: {true}", "#444444")]
        )
    return plots.captioned_pictures(train, list(range(n)), lines, columns=2)


def correction_said(record: Record) -> Markdown:
    """Say how many labels are right before and after the correction in a run."""
    last = next((row for row in reversed(record.curves) if "corrected_accuracy" in row), None)
    if last is None:
        return say("This run corrected no labels.")
    facts = {**record.metrics.get("noise", {}), **record.noise, **last}
    given = facts.get("given_accuracy", 1 - facts.get("true_rate", float("nan")))
    return say(
        f"{given:.0%} of the given labels are right and {last['corrected_accuracy']:.0%} of the "
        "corrected ones "
        f"({last['corrected_accuracy_by_mass']:.0%} by mass), last epoch."
    )


def place_said(runs: pd.DataFrame) -> Markdown:
    """Say at which rates of noise UOT-RCL is ahead of each other method, seed by seed."""
    compared = _compared(runs)
    marked, lines = compared.assign(label=compared["method"]), []
    for other in METHODS[1:]:
        said = verdicts(over_rates(marked, "uot_rcl", other, "noise_rate", "map_avg", digits=3))
        lines.append(f"- against {other}: {said}")
    head = (
        "**UOT-RCL, seed by seed.** *Ahead* and *behind*: the 95 % interval of the mean difference "
        "excludes zero."
    )
    return Markdown("\n".join([head, "", *lines]))


def beside(record: Record, given: Mapping[str, Any], other: str) -> dict[str, Record]:
    """Return this run and another method (or ``none``) with the same data, noise, seed and schedule.

    ``given`` are the parameters of this run. The other's recorded run is taken where there is one.
    """
    runs = {"uot_rcl": record}
    if other != "none":
        runs[other] = recorded_or_run(other, record, **experiment_of("uot_rcl").shared(given))
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
    return select(runs, variant="", method=list(METHODS))


def recorded_validation(runs: pd.DataFrame) -> Figure:
    """Draw the validation mAP of recorded runs, seed 0, by epoch; one column per noise rate (Fig. 3)."""
    drawn = {}
    for rate in RATES:
        here = select(runs, variant="", noise_rate=rate, seed=0)
        paths = {m: select(here, method=m)["path"] for m in ("uot_rcl", "elrcmr")}
        drawn[f"noise {rate:g}"] = {m: load_record(p).curves for m, found in paths.items() for p in found}
    return labels.validation_curves(drawn)


def rates(runs: pd.DataFrame) -> Figure:
    """Draw the test mAP of the compared methods over the noise rate."""
    return labels.sweep(_compared(runs), "noise_rate", xlabel="label noise", group="method")


def _over_rates(runs: pd.DataFrame, by: str, names: Mapping[str, str], table: str) -> Styler:
    """Show the test mAP of those rows ``names`` of a table that were recorded, over the noise rate."""
    runs = runs[runs[by].isin(list(names))]
    cells = means(runs, by, "noise_rate", "map_avg", digits=3).rename_axis(columns="label noise")
    cells = cells.reindex([n for n in names if n in cells.index]).rename(index=dict(names))
    what = "mean of both mAP on test, mean ± standard deviation (seeds)"
    return show(cells, table, f"Measured, preset quick: {what}; {devices(runs)}")


def rate_table(runs: pd.DataFrame, name: str) -> Styler:
    """Show the test mAP of the compared methods over the noise rate."""
    return _over_rates(_compared(runs), "method", {m: m for m in METHODS}, name)


def ablation(runs: pd.DataFrame) -> Styler:
    """Show the test mAP without each part of the method, over the noise rate (Table IV)."""
    return _over_rates(select(runs, method="uot_rcl"), "variant", PARTS, "ablation")


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


def recorded_class_maps(runs: pd.DataFrame) -> Figure:
    """Draw true classes against the corrected classes of recorded runs, seed 0, per noise rate (Fig. 8)."""
    own = select(runs, method="uot_rcl", variant="", seed=0)
    paths = {rate: select(own, noise_rate=rate)["path"].item() for rate in RATES}
    drawn = {f"noise {r:g}": np.array(load_record(p).diagnostics["confusion"]) for r, p in paths.items()}
    return labels.confusions(drawn, data.load("emoji_category").label_names)


def accuracy(runs: pd.DataFrame) -> Styler:
    """Show how many labels, confident pairs and links of the relation plan are right, over the noise rate."""
    own = select(runs, method="uot_rcl", variant="")
    table = own.groupby("noise_rate")[list(ACCURACIES)].mean().rename(columns=ACCURACIES)
    caption = f"Measured: last epoch, mean over {own['seed'].nunique()} seeds"
    return show(table.rename_axis("label noise"), "accuracy", caption, digits=3)


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
            ("relation_same_class", "plan: same class", plots.ACCENT, "o-"),
            ("relation_own_pair", "plan: own text", plots.THIRD, "s-"),
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
    own_text = recorded_or_run("uot_rcl", record, **{**given, "relation": "instance"})
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


def weight(runs: pd.DataFrame) -> Figure:
    """Draw the test mAP over the weight of the relation loss, with the seeds of the sweep (Fig. 6)."""
    here = select(runs, method="uot_rcl", noise_rate=0.4)
    here = here[here["variant"].str.fullmatch(r"|lam=[^,]+") & (here["option.lam"] > 0)]
    here = here[here["seed"].isin(here.loc[here["variant"] != "", "seed"])]
    return labels.sweep(here, "option.lam", xlabel="weight λ of the relation loss (noise 0.4)")


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
    label = torch.from_numpy(np.tile(found.labels, 2))
    is_text = torch.arange(len(label)) >= len(found.labels)
    rows = {}
    for word, parts in (("given", found.given), ("learned", found.learned)):
        x = torch.from_numpy(np.concatenate(parts))
        own, side = (precision_at_k(x, x, y, y, 10, same_items=True) for y in (label, is_text))
        rows[word] = {"same class": own, "other modality": 1 - side}
    caption = "Measured on the pairs shown: the ten nearest neighbours among images and texts together"
    return show(pd.DataFrame(rows).T, "mixing", caption, digits=3)
