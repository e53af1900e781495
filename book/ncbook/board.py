"""The leaderboard: every method of the recorded runs by data, noise, rate and number of networks."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ncbook.compare import Difference, few_seeds, mean_text, paired, spread
from ncbook.marks import MARKS, REMARKED, WARMUP, in_warmup, marks_of
from ncbook.page import Cell, Table, csv_text
from ncbook.runs import NUMERICS, RECORDED, Runs, checksums
from ncbook.statistics import judged
from ncbook.temperature import chosen
from nclib import plots
from nclib.label_noise.base import METHODS as OF_LABELS
from nclib.methods.base import METHODS

ONE, ALONE, TWO = "one", "one of two", "two"  # networks that were trained and tested
NETWORKS = (ONE, ALONE, TWO)
AVERAGED = ", averaged"  # ends the label of two networks that were trained apart
CHOSEN = ", temperature chosen"  # ends the label of a method that is not at its published temperature
PLACE = ["task", "dataset", "preset", "model"]  # what runs must share to be ranked, beside the noise
NOISE = ["protocol", "rate"]
PHOTOGRAPHS = (("f8k", "standard", "bow"), ("fashion44k", "standard", "bow"))  # of the overview
DATA_NAMES = {
    "f8k": "Flickr8K",
    "fashion44k": "product photographs",
    "emoji": "drawn scenes",
    "emoji_category": "drawn objects",
    "wikipedia": "Wikipedia",
    "fashion_category": "product photographs by type",
}
REAL: dict[str, dict[str, dict[str, str]]] = {
    "pairs": {
        "f8k": {"preset": "standard", "model": "bow", "protocol": "images"},
        "fashion44k": {"preset": "standard", "model": "bow", "protocol": "images"},
    },
    "labels": {
        "wikipedia": {"preset": "standard", "protocol": "symmetric"},
        "fashion_category": {"preset": "standard", "protocol": "symmetric"},
    },
}
"""Conditions of comparisons on real data, by task and data set; nothing was tuned on the second of each."""
METRICS = {"pairs": ("rSum", 1), "labels": ("mAP", 3)}  # name and decimals
OF_PAIRS = ("networks", "R@1 i→t", "R@1 t→i", "model")  # columns that category retrieval has not
DASH = "–"
OWN = ("crank", "crank_plus")  # methods of this book
LOSSES = {  # label of plain training: key of its loss in the bibliography
    "plain (triplet)": "faghri2018vsepp",
    "plain (infonce)": "oord2018cpc",
    "plain (gce)": "zhang2018gce",
    "plain (rince)": "chuang2022rince",
    "plain (infonce_rce)": "wang2019sce",
}


def scored(runs: Runs, *, temperatures: bool = False) -> pd.DataFrame:
    """Return the runs with their preset's own settings, one row per run and number of networks.

    Parameters
    ----------
    runs : Runs
        From :func:`ncbook.load_runs`.
    temperatures : bool
        Whether runs at the temperature of :func:`ncbook.temperature.chosen` are rows of their own, whose
        label ends in :data:`CHOSEN`.

    Returns
    -------
    DataFrame
        Columns of :data:`PLACE` and :data:`NOISE`, ``method``, ``label`` (of plain training with its loss),
        ``networks`` (one of :data:`NETWORKS`), ``seed``, ``value`` (rSum, or mean average precision),
        ``r1_i2t``, ``r1_t2i``, ``seconds``, ``test_seconds``, ``train_pairs``, ``path``, and what marks of
        a cell need. A run of two networks that teach each other has two rows: their mean similarity, and
        what one of them reaches alone on average. Two networks that were trained apart have a row of
        :data:`TWO` whose label ends in :data:`AVERAGED`; one of them is a run of its own.
        Ablations, other schedules and more networks are left out; the loss of plain training is free.
    """
    found = chosen(runs) if temperatures else {}
    return pd.concat([_pairs(runs.retrieval, found), _labels(runs.category)], ignore_index=True)


_COLUMNS = [
    *(*PLACE, *NOISE, "method", "label", "networks", "seed", "value", "r1_i2t", "r1_t2i", "seconds"),
    *("test_seconds", "train_pairs", "path", NUMERICS, "remarks", "early", "collapsed", "noise.checksum"),
    "option.tau",
]


def _pairs(table: pd.DataFrame, temperatures: Mapping[str, float]) -> pd.DataFrame:
    if table.empty:
        return pd.DataFrame(columns=_COLUMNS)
    plain = table["method"] == "plain"
    loss = table.get("option.loss", pd.Series("", index=table.index)).astype(str)
    apart = table["networks"] > 1
    variant = table["variant"].str.replace(r"(^|, )networks=\d+", "", regex=True).str.removeprefix(", ")
    usual = (variant == "") | (plain & (variant == "loss=" + loss))
    label = table["method"].where(~plain, "plain (" + loss + ")")
    tau = label.map(temperatures)
    other = tau.notna() & (variant == ("loss=" + loss + ", ").where(plain, "") + tau.map("tau={:g}".format))
    label, usual = label.where(~other, label + CHOSEN), usual | other
    usual &= table["networks"] * table["method"].map(_networks_of) <= 2
    table = table.assign(
        task="pairs",
        label=label.where(~apart, label + AVERAGED),
        rate=table["mrate"],
        early=in_warmup(table),
        # What else runs on a machine costs wall time; records of earlier versions have no CPU seconds.
        seconds=table.get("cpu_seconds", table["seconds"]).fillna(table["seconds"]),
    )[usual]
    two = table.get("single.rsum", pd.Series(np.nan, index=table.index)).notna()
    ways = {"value": "rsum", "r1_i2t": "i2t_r1", "r1_t2i": "t2i_r1"}
    whole = table.assign(networks=np.where(two, TWO, ONE), **{new: table[old] for new, old in ways.items()})
    parts, taught = [whole], table[two & ~apart[usual]]
    if len(taught):
        alone = {new: taught[f"single.{old}"] for new, old in ways.items()}
        parts.append(taught.assign(networks=ALONE, **alone))
    return pd.concat(parts).reindex(columns=_COLUMNS)


def _networks_of(method: str) -> int:
    """Return the networks that a method trains together; 1 for one that this version does not know."""
    return METHODS[method].factory.n_networks if method in METHODS else 1


def _labels(table: pd.DataFrame) -> pd.DataFrame:
    if table.empty:
        return pd.DataFrame(columns=_COLUMNS)
    table = table[table["variant"] == ""]
    table = table.assign(
        task="labels",
        model="",
        label=table["method"],
        rate=table["noise_rate"],
        networks=ONE,
        value=table["map_avg"],
        early=in_warmup(table.rename(columns={"option.warmup_epochs": "warmup_epochs"})),
    )
    return table.reindex(columns=_COLUMNS)


@dataclass(frozen=True)
class Standing:
    """Methods under one condition, best in mean first.

    Parameters
    ----------
    best : str
        Label of the method with the highest mean.
    behind : dict
        Label to the best minus this method over shared seeds, in the order of the means; without ``best``.
    means : dict
        Label to its values, one per seed, best first.
    single : tuple of str
        Labels with one seed only, which are not ranked.
    """

    best: str
    behind: dict[str, Difference]
    means: dict[str, tuple[float, ...]]
    single: tuple[str, ...] = ()

    @property
    def level(self) -> list[str]:
        """Labels that cannot be told from the best by the rule of :mod:`ncbook.statistics`."""
        return [label for label, one in judged(self.behind).items() if one.sign == "level"]


def is_marked(table: pd.DataFrame) -> pd.Series:
    """Tell which rows of :func:`scored` are not ranked: † or * marks a run of their method and condition."""
    marked = table["early"].astype(bool) | table["remarks"].fillna("").ne("")
    return marked.groupby([table[name] for name in (*PLACE, *NOISE, "label")]).transform("any")


def has_seeds(seeds: pd.Series) -> pd.Series:
    """Tell by its number of seeds which method is ranked: one seed counts only where most have one."""
    return (seeds > 1) | ((seeds == 1).mean() > 0.5)


def is_own(label: str) -> bool:
    """Return whether a label is of a method of this book, which was developed on Flickr8K."""
    return label.split(", ")[0] in OWN


def standing(part: pd.DataFrame) -> Standing | None:
    """Rank the methods in rows of :func:`scored` that share place, noise and number of networks.

    Methods with one seed are ranked as :func:`has_seeds` says, methods of :func:`is_marked` never.
    None without rows.
    """
    part = part[~is_marked(part)]
    values = {str(k): tuple(g.sort_values("seed")["value"]) for k, g in part.groupby("label")}
    if not values:
        return None
    enough = has_seeds(pd.Series({k: len(v) for k, v in values.items()}))
    ranked = {k: v for k, v in values.items() if enough[k]}
    order = sorted(ranked, key=lambda k: -float(np.mean(ranked[k])))
    best, digits = part[part["label"] == order[0]], METRICS[str(part["task"].iloc[0])][1]
    behind = {k: paired(best, part[part["label"] == k], "value", name=k, digits=digits) for k in order[1:]}
    single = tuple(sorted(values.keys() - ranked.keys()))
    return Standing(order[0], behind, {k: ranked[k] for k in order}, single)


def data_name(dataset: str) -> str:
    """Return the words for a data set on the pages of answers."""
    return DATA_NAMES.get(dataset, dataset)


def noise_name(protocol: str) -> str:
    """Return what is exchanged or wrong under a protocol."""
    return {"images": "images exchanged", "captions": "captions exchanged"}.get(
        protocol, f"labels, {protocol}"
    )


def rate_text(rates: Sequence[float]) -> str:
    """Write rates: three or more in a row of the recorded fifths as a range.

    Examples
    --------
    >>> rate_text([0.0, 0.4, 0.6, 0.8])
    '0, 0.4 to 0.8'
    """
    runs: list[list[float]] = []
    for rate in sorted(rates):
        if runs and abs(rate - runs[-1][-1] - 0.2) < 1e-9:
            runs[-1].append(rate)
        else:
            runs.append([rate])
    parts = [
        f"{run[0]:g} to {run[-1]:g}" if len(run) > 2 else ", ".join(f"{rate:g}" for rate in run)
        for run in runs
    ]
    return ", ".join(parts)


# -- table -----------------------------------------------------------------------------------------------


def board_table(table: pd.DataFrame, task: str = "pairs", *, rate: str = "0.4") -> Table | None:
    """Return the leaderboard of one task: a row per method, data, model, noise, rate and networks.

    Parameters
    ----------
    table : DataFrame
        From :func:`scored`.
    task : {"pairs", "labels"}
    rate : str
        Rate that the page shows first, if it was recorded.

    Returns
    -------
    Table or None
        None without a run of the task. The rank is that among methods with as many tested networks. Data
        and noise are never shown together, so that sorting never crosses them; model, rate and number of
        networks can be chosen. The year leads to the paper, the last column to the records.
    """
    part = table[table["task"] == task]
    if part.empty:
        return None
    metric, digits = METRICS[task]
    pairs = task == "pairs"
    rows, lines, said = [], [], list[dict[str, str]]()
    marks: dict[str, None] = {}
    for key, cells in part.groupby([*PLACE, *NOISE], sort=False):
        where = dict(zip([*PLACE, *NOISE], key, strict=True))
        tops = {kind: standing(cells[cells["networks"] == kind]) for kind in (ONE, TWO)}
        level = {kind: top.level if top else [] for kind, top in tops.items()}
        groups = cells.groupby(["label", "networks"])
        for (label, networks), group in sorted(groups, key=lambda item: -item[1]["value"].mean()):
            group = group.sort_values("seed")
            kind = TWO if networks == TWO else ONE
            top = tops[kind]
            best = cells[(cells["networks"] == kind) & (cells["label"] == (top.best if top else ""))]
            ranked = list(top.means) if top and networks == kind else []
            rank = str(ranked.index(label) + 1) if label in ranked else DASH
            rank += " =" if label in level[kind] and networks == kind else ""
            gap = _gap(paired(group, best, "value", digits=digits))
            found = marks_of(group)
            marks |= dict.fromkeys(found)
            year, paper = _year_and_paper(str(label))
            texts = {
                "rate": f"{where['rate']:g}",
                metric: mean_text(list(group["value"]), digits, count=False),
                "against the best": f"best of {kind} network{'s' * (kind == TWO)}" if rank == "1" else gap,
                "networks": networks,
                "R@1 i→t": f"{group['r1_i2t'].mean():.1f}",
                "R@1 t→i": f"{group['r1_t2i'].mean():.1f}",
                "seconds": f"{group['seconds'].mean():.0f}" if group["seconds"].notna().any() else DASH,
                "model": where["model"],
                "data": f"{data_name(where['dataset'])} ({where['preset']})",
                "noise": noise_name(where["protocol"]),
                "year": year,
            }
            texts = {name: text for name, text in texts.items() if pairs or name not in OF_PAIRS}
            records = [
                (f"{seed:g}", _record(path)) for seed, path in zip(group["seed"], group["path"], strict=True)
            ]
            seeds = " ".join(seed for seed, _ in records)
            views = {name: Cell(text) for name, text in texts.items()}
            views |= {metric: Cell(texts[metric], tuple(found)), "year": Cell(year, link=paper)}
            linked = Cell(seeds, links=tuple((seed, link) for seed, link in records if link))
            rows.append(([Cell(rank), Cell(str(label))], [*views.values(), linked]))
            sizes = [f"{group['value'].mean():.4f}", f"{spread(list(group['value'])):.4f}", str(len(group))]
            names = " ".join(Path(path).name.removesuffix(".json") for path in group["path"])
            checked = " ".join(checksums(group, "noise.checksum"))
            lines.append([rank, str(label), *texts.values(), *sizes, checked, names])
            said.append(texts)
    rates, columns = {texts["rate"] for texts in said}, list(said[0])
    start = {"rate": rate if rate in rates else "", "data": said[0]["data"], "noise": said[0]["noise"]}
    if pairs:  # scores of different models are not compared at first sight: begin with the model of most rows
        models = Counter(texts["model"] for texts in said if texts["data"] == start["data"])
        start = {"model": models.most_common(1)[0][0], "networks": "", **start}
    which = f"{'Image-text' if pairs else 'Category'} retrieval"
    return Table(
        slug=f"board-{task}",
        title=f"{which}: {part['path'].nunique():,} runs",
        kind="measured",
        lines=[
            f"{metric} at the epoch that validation selected, mean ± standard deviation over the seeds.",
            "Against the best: mean difference to the best method with as many tested networks under the "
            "same conditions, runs with the same seed. The rank is among methods with as many networks; = "
            "cannot be told from the first (deviation pooled, Holm's rule, 5 %; from three seeds on); "
            f"{WARMUP} or {REMARKED}: none; one seed: only where most methods have one.",
            *(
                ["Averaged: two networks trained apart on the same noise, the mean of their similarities."]
                if part["label"].str.endswith(AVERAGED).any()
                else []
            ),
            *(
                ["Temperature chosen: the best of six on Flickr8K's validation, not the published one."]
                if part["label"].str.contains(CHOSEN).any()
                else []
            ),
        ],
        names=("rank", "method"),
        columns=[(name,) for name in (*columns, "records by seed")],
        rows=rows,
        notes={mark: MARKS[mark] for mark in marks},
        file=csv_text(["rank", "method", *columns, "mean", "std", "n", "noise checksums", "records"], lines),
        filters=start,
        apart=("data", "noise"),
    )


def _gap(d: Difference) -> str:
    if not d.n:
        return DASH
    few = "" if d.judged else f", {few_seeds(d.n)}"
    return f"{d.mean:+.{d.digits}f}{few}"


def _record(path: str) -> str:
    """Return the link from a page of ``notebooks`` to the table of a record; empty for records elsewhere."""
    at = Path(path)
    table = at.parent if at.parent.suffix == ".csv" else at
    here = table.is_relative_to(RECORDED)
    return f"../book/{quote(table.relative_to(RECORDED.parent).as_posix())}" if here else ""


@functools.cache
def _bibliography() -> dict[str, str]:
    """Return the address of each entry by its key: on arXiv, by its DOI, or else the book's own page."""
    text = RECORDED.with_name("references.bib").read_text("utf8")
    found = {}
    for key, fields in re.findall(r"^@\w+\{(\w+),(.*?)(?=^@|\Z)", text, re.MULTILINE | re.DOTALL):
        at = re.search(r"\barXiv:(?P<arxiv>[\d.]+)|\bdoi = \{(?P<doi>[^}]+)", fields)
        found[key] = "../book/symbols.html#bibliography"
        if at:
            found[key] = (
                f"https://arxiv.org/abs/{at['arxiv']}" if at["arxiv"] else f"https://doi.org/{at['doi']}"
            )
    return found


def _year_and_paper(label: str) -> tuple[str, str]:
    """Return the year of a method's paper and a link to it; of the book's own methods, their chapter."""
    label = label.removesuffix(AVERAGED).removesuffix(CHOSEN)
    if label in OWN:
        return "this book", "crank.html"
    name = label.removesuffix("_plus").replace("_", "")
    for key, address in _bibliography().items():
        if key == LOSSES.get(label) or re.fullmatch(rf"[a-z]+\d{{4}}{re.escape(name)}", key):
            return re.sub(r"\D", "", key)[:4], address
    said = METHODS[label].paper if label in METHODS else OF_LABELS[label].paper if label in OF_LABELS else ""
    year = re.search(r"\b(?:19|20)\d\d\b", said)
    return (year[0] if year else DASH), ""


# -- figure ----------------------------------------------------------------------------------------------


def overview_figure(
    table: pd.DataFrame, places: Sequence[tuple[str, str, str]] = PHOTOGRAPHS
) -> Figure | None:
    """Draw rSum of all methods, as published, over the rates, images exchanged: one network above, two below.

    Parameters
    ----------
    table : DataFrame
        From :func:`scored`.
    places : sequence of (data, preset, model)
        A panel each.

    Returns
    -------
    Figure or None
        Each cell holds the mean over the seeds, its shade the share of the best mean without noise: so
        colours of one panel compare. Bold: the best of its block among means of two seeds or more without †
        and *. Rows are ordered by their mean share of the best of a column. None without a run.
    """
    keys = ["dataset", "preset", "model"]
    part = table[(table["protocol"] == "images") & table["networks"].isin([ONE, TWO])]
    part = part[~part["label"].str.contains(CHOSEN)]
    part = part[[place in places for place in zip(*(part[k] for k in keys), strict=True)]]
    if part.empty:
        return None
    lines = [(kind, label) for kind in (ONE, TWO) for label in ("", *_rows(part, kind))]
    found = {place: rows for place, rows in part.groupby(keys) if place in places}
    panels = [(place, found[place]) for place in places if place in found]
    rates = [sorted(set(rows["rate"])) for _, rows in panels]
    figure, (axes,) = plots.panels(
        1, len(panels), 2.0 + 0.34 * sum(map(len, rates)), 1.1 + 0.235 * len(lines),
        sharey=True, width_ratios=[len(each) for each in rates],
    )  # fmt: skip
    for axis, (place, rows), at in zip(axes, panels, rates, strict=True):
        means = rows.groupby(["networks", "label", "rate"])["value"].mean()
        seeds = rows[~is_marked(rows)].groupby(["networks", "label", "rate"])["value"].count()
        grid = np.array([[means.get((*line, rate), np.nan) for rate in at] for line in lines])
        ranked = np.array([[seeds.get((*line, rate), 0) > 1 for rate in at] for line in lines])
        shade = grid / np.nanmax(grid[:, 0])  # rate 0
        kind = np.array([line[0] for line in lines])
        tops = {k: np.where((kind == k)[:, None] & ranked, grid, -1).max(axis=0) for k in (ONE, TWO)}
        axis.imshow(shade, cmap="cividis", vmin=0.1, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                ink = "black" if shade[i, j] > 0.6 else "white"
                weight = "bold" if value == tops[lines[i][0]][j] else "normal"
                axis.text(
                    j, i, f"{value:.0f}", ha="center", va="center", fontsize=8.5, color=ink, weight=weight
                )
        axis.set_xticks(range(len(at)), [f"{rate:g}" for rate in at])
        axis.set_title(data_name(place[0]).replace(" ", "\n"), loc="left", fontsize=9)
        axis.set_xlabel("rate")
        axis.grid(False)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    heads = {ONE: "one network", TWO: "two networks"}
    words = [re.sub(r"plain \((\w+)\)", r"\1 loss", label) or heads[kind] for kind, label in lines]
    axes[0].set_yticks(range(len(lines)), words)
    for (_, label), text in zip(lines, axes[0].get_yticklabels(), strict=True):
        text.set_weight("normal" if label else "bold")
    return figure


def _rows(table: pd.DataFrame, networks: str) -> list[str]:
    """Return the labels with this number of networks, best mean share of the best first."""
    part = table[table["networks"] == networks]
    cells = part.groupby([*PLACE, *NOISE, "label"])["value"].mean()
    share = cells / cells.groupby(level=[*PLACE, *NOISE]).transform("max")
    return [str(label) for label in share.groupby("label").mean().sort_values(ascending=False).index]
