"""Figures and tables of the chapter on REPAIR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler
from torch import Tensor

import nclib
from ncbook import printed, recorded, show
from ncbook.chapters import Finished, gains, kind_of_pair, stored_benchmark, training
from nclib import Record, plots
from nclib.methods.parts.bank import FeatureBank, pooled
from nclib.models import CaptionEncoding, ImageEncoding
from nclib.noise import bank_distances, max_ranks, rank_correlation

SEEN = {
    "auc": "AUC of the division (losses)",
    "rc_auc": "AUC of the rank correlation",
    "division_precision": "division: precision",
    "division_recall": "division: recall",
    "ece": "division: calibration error",
    "replaced": "pairs half-replaced",
    "replaced_precision": "of them really mismatched",
    "replaced_label": "mean label of the new pairs",
    "old_relevance": "relevance before replacing",
    "new_relevance": "relevance after replacing",
    "bank_mb": "banks of both networks, MB",
}
SWEPT = ("eta", "variant", "replace", "tau", "bank_size")
CASE = ["model", "protocol", "mrate", "epochs"]
CASE_NAMES = ["model", "noise", "mismatch rate", "epochs"]
DRAWN = 4000  # half-replaced pairs whose relevance is drawn


def entering(compared: Mapping[str, Record]) -> Styler:
    """Show validation rSum of REPAIR and NCR around the epoch in which noisy pairs enter."""
    rows = {}
    for name in compared.keys() & {"repair", "ncr"}:
        values = training(compared[name])["val_rsum"].tolist()
        start = compared[name].settings["epochs"] // 2
        before, after = values[:start], values[start:]
        rows[name] = {
            "last epoch before": before[-1] if before else None,
            "first epoch with": after[0] if after else None,
            "best with": max(after, default=None),
        }
    table = pd.DataFrame(rows).T.sort_index(ascending=False).astype(float)
    lacking = "" if "ncr" in rows else "; no recorded run of NCR with these settings"
    caption = f"Validation rSum around the epoch in which noisy pairs enter{lacking}"
    return show(table, "entering", caption, digits=1, missing="–")


def _pairs_of_runs() -> Iterator[tuple[dict[str, Any], dict[str, Record]]]:
    """Yield recorded runs of REPAIR and NCR with equal settings, the longest first."""
    every = recorded(dataset="emoji", protocol="images")
    if every.empty:
        return
    every = every[every["method"].isin(["repair", "ncr"])]
    keys = ["model", "mrate", "seed", "epochs", "warmup_epochs", "decay_every"]
    for key, part in every.sort_values("epochs", ascending=False).groupby(keys, sort=False):
        usual = part[(part["method"] == "ncr") | (part["method_variant"] == "rc+npr")]
        paths = usual.drop_duplicates("method").set_index("method")["path"]
        if {"ncr", "repair"} <= set(paths.index):
            yield dict(zip(keys, key, strict=True)), {k: Record.load(v) for k, v in paths.items()}


def longer_runs() -> Figure | None:
    """Draw validation rSum of the longest recorded runs of REPAIR and NCR with the same settings."""
    found = next(_pairs_of_runs(), None)
    if found is None:
        return None
    key, runs = found
    figure, ((axis,),) = plots.panels(1, 1, 7.0, 3.2)
    for name, mark, colour in (("repair", "o", plots.MATCHED), ("ncr", "s", plots.MISMATCHED)):
        rows = pd.DataFrame(runs[name].curves)
        axis.plot(rows["epoch"], rows["val_rsum"], marker=mark, ms=4, color=colour, label=name)
    enter = key["warmup_epochs"] + key["epochs"] // 2 + 0.5
    axis.axvline(enter, ls="--", color=plots.NEUTRAL, label="noisy pairs enter")
    axis.axvspan(0.5, key["warmup_epochs"] + 0.5, color="#f0f0f0", zorder=0)
    title = f"{key['model']}, rate {key['mrate']:g}, seed {key['seed']}"
    axis.set(xlabel="epoch", ylabel="rSum on validation", title=title)
    axis.legend()
    return figure


def _encoded(run: Finished, rows: np.ndarray) -> tuple[ImageEncoding, CaptionEncoding]:
    """Return the encodings of some pairs by the selected network A."""
    batch, network = run.trainer.batch(torch.as_tensor(rows)), run.trainer.networks[0]
    with run.trainer.evaluating():
        return network.encode_images(batch.images), network.encode_captions(batch.captions)


def ranks(run: Finished, seed: int) -> Figure:
    """Draw the ranks of one matched and one mismatched pair in the bank, each of median correlation."""
    rng, matched, size = np.random.default_rng(seed), run.matched, run.options["bank_size"]
    p_peer = run.last.get("p_clean_b", np.ones(len(matched)))
    believed = np.flatnonzero(p_peer > run.options["threshold"])
    believed = rng.permutation(believed if len(believed) > 1 else np.arange(len(matched)))[:size]
    bank = FeatureBank(size)
    for part in np.array_split(believed, max(1, len(believed) // 256)):
        bank.push(*_encoded(run, part), torch.as_tensor(part))
    bank_images, bank_texts = bank.features()

    def distances(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        images, captions = _encoded(run, rows)
        return bank_distances(pooled(images), bank_images), bank_distances(pooled(captions), bank_texts)

    examples = []
    for flag in (True, False):
        some = rng.permutation(np.flatnonzero(matched == flag))[:401]
        if len(some):
            order = rank_correlation(*distances(some)).argsort().numpy()
            examples.append(some[order[[len(order) // 2]]])
    figure, (axes,) = plots.panels(1, len(examples), height=3.8)
    for axis, rows in zip(axes, examples, strict=True):
        d_image, d_text = distances(rows)
        corre, (kind, colour) = float(rank_correlation(d_image, d_text)[0]), kind_of_pair(matched[rows[0]])
        axis.scatter(max_ranks(d_image)[0], max_ranks(d_text)[0], s=5, color=colour, alpha=0.5)
        axis.set(xlabel="rank of the entry's image", ylabel="rank of the entry's caption")
        axis.set_title(f"really {kind}: corre {corre:.2f}")
    return figure


def soft_labels(run: Finished) -> Figure | None:
    """Draw the soft labels by truth, in the first and the last epoch that has them."""
    return plots.pairs_by_epoch(
        run.kept, "label", run.matched, xlabel="soft label", bins=30, unit="% of kind"
    )


def thresholds(run: Finished) -> Figure | None:
    """Draw accuracy, precision and recall of finding mismatched pairs over the threshold eta."""
    last, matched = run.last, run.matched
    if "p_clean" not in last or matched.all():
        return None
    worst = np.maximum(last["p_clean"], last["p_clean_b"])
    etas = np.linspace(0, 0.5, 51)[1:]
    chosen = worst < etas[:, None]  # (etas, N)
    right, found = (chosen & ~matched).sum(1), chosen.sum(1)
    measures = {
        "accuracy": ((chosen == ~matched).mean(1), "-", plots.ACCENT),
        "precision": (np.where(found, right / np.maximum(found, 1), np.nan), "--", plots.MATCHED),
        "recall": (right / (~matched).sum(), ":", plots.MISMATCHED),
    }
    figure, ((axis,),) = plots.panels(1, 1, 7.0, 3.2)
    for name, (values, style, colour) in measures.items():
        axis.plot(etas, values, style, color=colour, label=name)
    axis.axvline(run.options["eta"], color=plots.NEUTRAL, lw=1)
    axis.set(xlabel="threshold eta", ylabel="share", ylim=(0, 1.02), title="Finding mismatched pairs")
    axis.legend()
    return figure


def _usual() -> dict[str, Any]:
    """Return the swept options as the preset quick has them, by column."""
    options = nclib.resolve("repair").method_options
    return {f"method_{k}": getattr(options, k) for k in SWEPT}


def _with_usual(every: pd.DataFrame, free: str) -> pd.DataFrame:
    """Return the runs in which every swept option but ``free`` is the preset's."""
    fixed = [every[c] == value for c, value in _usual().items() if c != free]
    return every[np.logical_and.reduce(fixed)]


def sweep_table() -> Styler | None:
    """Show recorded runs of REPAIR in which one option differs from the preset."""
    every = recorded(dataset="emoji", method="repair", preset="quick")
    sweeps = []
    for column in _usual() if not every.empty else ():
        for key, group in _with_usual(every, column).groupby(CASE):
            if group[column].nunique() > 1:
                cells = group.groupby(column)["rsum"].agg(["mean", "std", "count"]).reset_index()
                cells.columns = ["value", "rSum, mean", "standard deviation", "seeds"]
                cells["value"] = [f"{v:g}" if isinstance(v, float) else v for v in cells["value"]]
                where = dict(zip(CASE_NAMES, key, strict=True))
                sweeps.append(cells.assign(option=column.removeprefix("method_"), **where))
    if not sweeps:
        return None
    table = pd.concat(sweeps).set_index([*CASE_NAMES, "option", "value"])
    caption = "Measured, preset quick: test rSum of REPAIR when one option changes"
    shown = show(table, "sweep", caption, digits=1, missing="–")
    return shown.format_index("{:g}", level="mismatch rate")


def printed_ablation() -> Styler:
    """Show the ablation that the paper prints."""
    table = printed("retrieval", paper="REPAIR", table="III", metric="rsum")
    table = table[["method", "value"]].set_index("method").rename(columns={"value": "rSum"})
    caption = "Printed in the paper's Table III (Flickr30K, rate 0.4), for comparison with the rows above"
    return show(table, "ablation", caption)


def ablation_table() -> Styler | None:
    """Show rSum of each row of the ablation minus that of the full method, same seeds."""
    every = recorded(dataset="emoji", method="repair", preset="quick")
    if every.empty:
        return None
    rows = _with_usual(every, "method_variant")
    if "rc+npr" not in set(rows["method_variant"]) or rows["method_variant"].nunique() < 2:
        return None
    own = gains(rows, "rc+npr", CASE, "method_variant")  # of the full method: of the row it is the negative
    cells = own.mul([-1, 1, -1, -1, 1])[own["seeds"] > 1]
    cells = cells[["mean gain", "standard deviation", "largest gain", "smallest gain", "seeds"]]
    cells.index.names = [*CASE_NAMES, "row"]
    cells.columns = ["mean gain", "standard deviation", "least", "most", "seeds"]
    caption = "Measured, preset quick, same seeds: rSum of the row minus that of the full method (rc+npr)"
    return show(cells, "ablation-paired", caption, digits=1).format_index("{:g}", level="mismatch rate")


def examples(run: Finished, seed: int) -> Figure | None:
    """Draw pairs with their soft labels, and pairs before and after one half was replaced."""
    last, split = run.last, run.trainer.pairs.split
    if "label" not in last or not split.has_pictures:
        return None
    rng, matched, label, image_of = np.random.default_rng(seed), run.matched, last["label"], run.image_of

    def true(image: int, caption: int) -> str:
        return f"truth {100 * split.relevance([image], [caption])[0, 0]:.0f} %"

    order = rng.permutation(len(label))
    order = order[np.argsort(-label[order], kind="stable")]
    chosen = [*order[matched[order]][:2], *order[~matched[order]][:1], *order[~matched[order]][-1:]]
    pictures, lines = [], []
    for row in chosen:
        kind, colour = kind_of_pair(matched[row])
        head = (f"really {kind}, label {label[row]:.2f}", colour)
        pictures.append(image_of[row])
        lines.append([head, (split.captions.text(row), "#222222"), (true(image_of[row], row), "#444444")])
    if "replaced_pair" in last:
        swapped = np.flatnonzero(last["replaced_image"])
        _, unique = np.unique(last["replaced_pair"][swapped], return_index=True)
        for i in rng.permutation(swapped[unique])[:2]:
            pair, by = last["replaced_pair"][i], last["replaced_by"][i]
            bank = f"picture from the bank, label {last['replaced_label'][i]:.2f}"
            for p, head, text in (
                (pair, ("✗ the given pair", plots.MISMATCHED), split.captions.text(pair)),
                (by, (bank, plots.MATCHED), "➜ its caption there: " + split.captions.text(by)),
            ):
                pictures.append(image_of[p])
                lines.append([head, (text, "#222222"), (true(image_of[p], pair), "#444444")])
    return plots.captioned_pictures(split, pictures, lines)


def relevance_of_replaced(run: Finished) -> Figure | None:
    """Draw how true the captions of half-replaced pairs are, before and after."""
    last, truth = run.last, run.trainer.pairs.truth()
    if "replaced_pair" not in last or truth.relevance is None:
        return None
    relevance = truth.relevance

    def of(images: Tensor, captions: Tensor) -> np.ndarray:
        blocks = zip(images.split(200), captions.split(200), strict=True)
        return np.concatenate([relevance(i, c).diagonal().numpy() for i, c in blocks])

    figure, (axes,) = plots.panels(1, 2, height=3.0, sharey=True)
    for axis, side, title in zip(axes, (True, False), ("Picture replaced", "Caption replaced"), strict=True):
        rows = np.flatnonzero(last["replaced_image"] == side)[:DRAWN]
        axis.set(title=title if len(rows) else f"{title}: none")
        if len(rows):
            pair, by = (torch.as_tensor(last[name][rows]) for name in ("replaced_pair", "replaced_by"))
            before, after = of(pair, pair), of(*((by, pair) if side else (pair, by)))
            groups = (
                (before, plots.MISMATCHED, "///", f"given, mean {before.mean():.2f}"),
                (after, plots.MATCHED, "", f"replaced, mean {after.mean():.2f}"),
            )
            plots.histograms(axis, groups, np.linspace(0, 1, 11), "% of kind")
            axis.set(xlabel="share of the caption that is true")
            axis.legend(fontsize=8)
    axes[0].set_ylabel("% of the pairs")
    return figure


def bank_bytes(size: int, words: int, precision: str = "fp32", regions: int = 36, dim: int = 1024) -> int:
    """Return the bytes of two banks of ``size`` pairs, without taking that memory.

    Captions have ``words`` words; with 0 a bank holds global vectors only.
    """

    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    bank = FeatureBank(size, precision)
    bank.push(
        ImageEncoding(empty(8, dim), empty(8, regions, dim) if words else None),
        CaptionEncoding(empty(8, dim), (words or 1,) * 8, empty(8, words, dim) if words else None),
        torch.arange(8),
    )
    return 2 * bank.nbytes


def memory_table(record: Record) -> Styler:
    """Show the memory of the banks at the paper's sizes beside the printed values."""
    paper = printed("resources", paper="REPAIR", quantity="extra memory of the bank")
    unit, rows = {"GB": 1, "MB": 1e-3}, []
    for size in (4096, 8192):
        for backbone, words in (("SGR", 12), ("SGR", 18), ("SGR", 32), ("VSE∞", 0)):
            said = paper[(paper["backbone"] == backbone) & (paper["bank_size"] == str(size))].iloc[0]
            ours = [bank_bytes(size, words, precision) / 1e9 for precision in ("fp32", "fp16")]
            printed_gb = float(said["value"]) * unit[said["unit"]]
            rows.append([size, backbone, words or "–", *ours, printed_gb])
    own = next((row["bank_mb"] for row in reversed(record.curves) if "bank_mb" in row), 0.0)
    names = ["bank size", "backbone", "words per slot"]
    table = pd.DataFrame(rows, columns=[*names, "fp32, GB", "fp16, GB", "printed, GB"]).set_index(names)
    caption = f"Memory of both networks' banks. The banks of the run above: {own:.1f} MB"
    return show(table, "memory", caption, digits=3)


def step_time() -> Styler | None:
    """Show the recorded time of a step with the bank, relative to NCR's."""
    measured = stored_benchmark("bench/bank.json")
    if measured is None:
        return None
    steps = pd.DataFrame(measured["step"])
    full = "repair, " + steps["variant"].astype(str) + ", bank " + steps["bank"].astype(str)
    steps["what"] = full.where(steps["method"] != "ncr", "ncr")
    steps = steps.set_index(["model", "embed_dim", "batch", "what"])
    steps = steps[["ms", "over_ncr", "label_ms_per_1000_pairs", "bank_mb"]]
    steps.columns = ["ms per step", "relative to NCR", "labels, ms per 1,000 pairs", "banks, MB"]
    caption = f"Measured {measured['when']}, CPU time, one thread; with noisy batches in use"
    return show(steps, "time", caption, digits=2)


def correlation_time() -> Styler | None:
    """Show the recorded time of the rank correlation, beside a loop over the pairs."""
    measured = stored_benchmark("bench/bank.json")
    if measured is None:
        return None
    table = pd.DataFrame(measured["rank_correlation"]).set_index(["ties", "candidate"])
    table = table.rename(columns={"ratio": "times faster than the loop", "error": "largest error"})
    form = {"ms": "{:.0f}", "times faster than the loop": "{:.1f}", "largest error": "{:.1e}"}
    caption = "Rank correlation of 128 pairs with a bank of 4,096 in 1,024 dimensions, one thread"
    return show(table, "correlation", caption, format=form)
