"""Figures and tables of the chapter on image-text models."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator
from matplotlib.transforms import Bbox
from pandas.io.formats.style import Styler

from ncbook import recorded, show
from ncbook.demo import timed
from ncbook.measurements import made, measurement
from ncbook.papers import ONLY_PRINTED, printed
from ncbook.training import words_of
from nclib import Record, losses, models, plots
from nclib.data import Split
from nclib.models.cross import word_attention
from nclib.models.scoring import evaluating
from nclib.runs import LoadedRun, cpu_threads
from nclib.runs.record import RECALLS

PLACES: tuple[tuple[tuple[int, int], Literal["left", "right", "center"]], ...] = (
    ((6, 4), "left"), ((6, -11), "left"), ((-6, 4), "right"), ((-6, -11), "right"), ((0, 8), "center"),
    ((0, -16), "center"), ((6, 14), "left"), ((6, -22), "left"), ((-6, 14), "right"), ((-6, -22), "right"),
)  # fmt: skip
"""Places of a name beside its point, offsets in points, the best first."""
KINDS = {  # where image and caption meet; in all other models regions meet words
    **dict.fromkeys(("bow", "vse", "vse_inf", "vsrn", "hrem", "clip"), "dual"),
    **dict.fromkeys(("pvse", "sbe"), "dual, several vectors"),
    "pcme": "dual, Gaussians",
}
FULL_SIZE = {"feature_dim": 2048, "vocab_size": 8481, "n_regions": 36}
SMALL_WORDS = {"a", "an", "and", "with", "on", "of", "the", "in", "to", "at"}
COLUMNS = ["rsum", *RECALLS]


def catalogue() -> Styler:
    """Show every model with its number of weights at the size in which the papers train."""
    with torch.device("meta"):  # counts weights without allocating them
        full = {name: models.build(name, **FULL_SIZE) for name in models.available()}
    rows = {
        name: {
            "meeting": KINDS.get(name, "regions and words"),
            "million weights": sum(p.numel() for p in network.parameters()) / 1e6,
            "width of a pair's vector": network.pair_dim,
            "what it is": models.available()[name],
        }
        for name, network in full.items()
    }
    return show(pd.DataFrame(rows).T, "catalogue", digits=1)


def _milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the lesser processor time of two calls, after one that does not count."""
    spent = []
    for _ in range(3):
        start = time.process_time()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent.append(1e3 * (time.process_time() - start))
    return min(spent[1:])


def timings(record: Record, run: LoadedRun) -> pd.DataFrame:
    """Return the time of a training step and of scoring, one row per model, timed with the run.

    ``step, ms`` and ``scoring, ms``: processor time, in the size and with the data of the run.
    """
    return pd.DataFrame(timed(record, "models", lambda: _timings(record, run))).T


def _timings(record: Record, run: LoadedRun) -> dict[str, dict[str, float]]:
    """Time a training step and scoring of every model, untrained."""
    settings, data, trainer = record.settings, run.dataset, run.trainer
    sizes = {k: v for k, v in settings["model_options"].items() if k in ("embed_dim", "sim_dim", "word_dim")}
    sizes |= {"feature_dim": data.feature_dim, "n_regions": data.n_regions}
    sizes["vocab_size"] = data.vocabulary.size
    batch = trainer.batch(torch.arange(min(settings["batch_size"], trainer.n_pairs)))
    test = data.test.part(0, min(32, data.test.n_images))

    def step(network: torch.nn.Module) -> None:
        network.zero_grad()
        losses.info_nce(network(batch.images, batch.captions), 0.05).mean().backward()

    rows = {}
    with cpu_threads(settings["threads"]):  # as in the run
        for name in models.available():
            torch.manual_seed(settings["seed"])
            network = models.build(name, **sizes).to(trainer.device)
            calls: dict[str, Callable[[], object]] = {
                "step, ms": partial(step, network),
                "scoring, ms": partial(models.similarity_matrix, network, test),
            }
            rows[name] = {what: _milliseconds(call, trainer.device) for what, call in calls.items()}
    return rows


def recall_and_time(record: Record, timed: pd.DataFrame) -> pd.DataFrame:
    """Return recalls and times of all models, best first: recorded runs, and this run of plain training."""
    s = record.settings
    own = {"mrate": s["mrate"], "option.loss": s["method_options"]["loss"]}
    runs = recorded(
        method="plain", dataset="emoji", protocol="images", preset="quick", seed=0, epochs=3, **own
    )
    known = runs.drop_duplicates("model").set_index("model") if len(runs) else pd.DataFrame(columns=COLUMNS)
    table = known.reindex(timed.index)[COLUMNS].astype(float).join(timed)
    now = {k: record.metrics["test"][k] for k in COLUMNS} | dict(timed.loc[s["model"]])
    table.loc[f"{s['model']}, now"] = now
    return table.sort_values("rsum", ascending=False)


def side_by_side(table: pd.DataFrame, record: Record) -> Styler:
    """Show recall beside time; arguments from :func:`recall_and_time`."""
    s = record.settings
    caption = (
        f"Measured: emoji, preset quick, plain training ({s['method_options']['loss']}), mismatch rate "
        f"{s['mrate']:g}, one seed, best epoch on validation, 500 test pictures. Times: the machine of the "
        "run marked now."
    )
    return show(table.rename(columns={"rsum": "rSum"}), "side", caption, digits=1, missing="not run")


def scatter(table: pd.DataFrame) -> Figure:
    """Draw the sum of recalls over the time of a training step, one point per model."""
    figure, ((axis,),) = plots.panels(1, 1, 8.0, 4.6)
    found = table.dropna(subset=["rsum"])
    dual = np.array([name.split(",")[0] in KINDS for name in found.index], bool)
    for part, mark, colour, label in (
        (found[dual], "o", plots.ACCENT, "dual encoder"),
        (found[~dual], "s", plots.THIRD, "regions meet words"),
    ):
        axis.scatter(part["step, ms"], part["rsum"], marker=mark, s=45, color=colour, label=label)
    axis.set(xlabel="processor time of a training step, ms", ylabel="rSum on test (max 600)")
    axis.set(xscale="log", title="Recall and time")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.margins(x=0.15, y=0.15)
    axis.legend(loc="lower left")
    _name_points(axis, found)
    return figure


def _name_points(axis: Axes, found: pd.DataFrame) -> None:
    """Write each model's name beside its point, at the first place where it covers no point and no name."""
    axis.figure.canvas.draw()  # sizes of texts are known after drawing
    points = axis.transData.transform(found[["step, ms", "rsum"]].to_numpy())
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    for name, point in zip(found.index, found[["step, ms", "rsum"]].to_numpy(), strict=True):
        for offset, side in PLACES:
            text = axis.annotate(
                str(name), tuple(point), xytext=offset, textcoords="offset points", ha=side, fontsize=9
            )
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken) or (offset, side) == PLACES[-1]:
                taken.append(box)
                break
            text.remove()


def printed_matching() -> Styler:
    """Show the rSum and the time of matching that the paper of OMIT prints, encoders held equal."""
    recall = printed("retrieval", paper="OMIT", table="3", metric="rsum")
    clock = printed("resources", paper="OMIT", table="3", quantity="matching time")
    rows = recall.merge(clock, on=["backbone", "method"], suffixes=("", " time"))
    rows = rows.rename(columns={"value": "rSum", "value time": "matching time, s"})
    table = rows.set_index(["backbone", "method"])[["rSum", "matching time, s"]]
    return show(table, "printed", f"Printed in the paper; {ONLY_PRINTED}")


def attention(run: LoadedRun, shown: int = 4, n_words: int = 4) -> Figure | None:
    """Draw where the words of captions look in their own pictures, the first of the test split.

    None for a model without regions and words, and for data without pictures or boxes.
    """
    network, test, device = run.trainer.networks[0], run.dataset.test, run.trainer.device
    rows = np.arange(shown)
    with evaluating(network):
        images = network.encode_images(test.features(rows).to(device))
        captions = network.encode_captions(test.captions.batch(rows * test.captions_per_image).to(device))
    attends = getattr(images, "regions", None) is not None and getattr(captions, "words", None) is not None
    if not attends or test.boxes is None or not test.has_pictures:
        return None
    shares = word_attention(images, captions, getattr(network, "temperature", 9.0)).float().cpu().numpy()
    figure, axes = plots.panels(shown, n_words, 8.4, 2.35 * shown, layout="none")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.97, bottom=0.01, wspace=0.06, hspace=0.18)
    for axis in axes.flat:
        axis.axis("off")
    for i in range(shown):
        words = words_of(test, i * test.captions_per_image)
        chosen = [j for j in range(1, len(words) - 1) if words[j] not in SMALL_WORDS][:n_words]
        for axis, j in zip(axes[i], chosen, strict=False):
            _boxes(axis, test, i, shares[i, i, j])
            axis.set_title(words[j], fontsize=10)
    return figure


def _boxes(axis: Axes, split: Split, image: int, share: np.ndarray) -> None:
    """Draw a picture with its boxes, each as strong as its share; the largest share stands in its box."""
    assert split.boxes is not None
    picture = split.picture(image)
    height, width = picture.shape[:2]
    axis.imshow(picture, interpolation="nearest")
    corners = split.boxes[image] * [width, height, width, height]
    for k in np.argsort(share):
        x0, y0, x1, y1 = corners[k]
        strength = float(share[k] / share.max())
        box = Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, ec=plots.ACCENT)
        box.set(lw=0.5 + 2.5 * strength, alpha=max(0.08, strength))
        axis.add_patch(box)
    x0, y0 = corners[share.argmax(), :2]
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
    axis.text(x0 + 1, y0 + 1, f"{share.max():.2f}", fontsize=7, va="top", color="#222222", bbox=ground)


def loops() -> Styler:
    """Show the recorded cost of scoring all pairs at once, beside a loop over captions."""
    bench = measurement("bench_similarity")
    *_, (size_name, size) = bench["sizes"].items()
    rows = {}
    for row in (r for r in bench["rows"] if r["size"] == size_name):
        ours, loop = row["nclib"], row.get("loop")
        rows[row["model"]] = {
            "step, s": ours["step"],
            "memory, GB": ours["peak_bytes"] / 1e9,
            "loop's step, s": loop and loop["step"],
            "times faster": row.get("step_ratio"),
            "scoring, times faster": row.get("forward_ratio"),
            "share of the loop's memory": row.get("memory_ratio"),
            "difference": row.get("score_difference"),
        }
    table = pd.DataFrame(rows).T.astype(float).sort_values("step, s")
    caption = (
        f"Measured: batch {size['batch']}, {size['n_regions']} regions of {size['feature_dim']} numbers, "
        f"common space {size['embed_dim']}, captions of {size['words'][0]} to {size['words'][1]} words, "
        f"float32, {bench['machine']['cpu']}, one thread, torch {bench['machine']['versions']['torch']}, "
        f"{made(bench)}"
    )
    text = {"difference": "{:.0e}"}
    return show(table, "loops", caption, digits=2, missing="–").format(text, na_rep="–", subset=[*text])
