"""The board: every method of the recorded runs by data, noise, rate and number of networks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ncbook.marks import in_warmup
from ncbook.runs import NUMERICS, Runs
from ncbook.temperature import chosen
from nclib.methods.base import METHODS

ONE, ALONE, TWO = "one", "one of two", "two"  # networks that were trained and tested
NETWORKS = (ONE, ALONE, TWO)
AVERAGED = ", averaged"  # ends the label of two networks that were trained apart
CHOSEN = ", temperature chosen"  # ends the label of a method that is not at its published temperature
PLACE = ["task", "dataset", "preset", "model"]  # what runs must share to be ranked, beside the noise
NOISE = ["protocol", "rate"]
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
    temperature_of = chosen(runs) if temperatures else {}
    return pd.concat([_pairs(runs.retrieval, temperature_of), _labels(runs.category)], ignore_index=True)


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


def is_marked(table: pd.DataFrame) -> pd.Series:
    """Tell which rows of :func:`scored` are not ranked: † or * marks a run of their method and condition."""
    marked = table["early"].astype(bool) | table["remarks"].fillna("").ne("")
    return marked.groupby([table[name] for name in (*PLACE, *NOISE, "label")]).transform("any")


def data_name(dataset: str) -> str:
    """Return the words for a data set on the pages of answers."""
    return DATA_NAMES.get(dataset, dataset)


def noise_name(protocol: str) -> str:
    """Return what is exchanged or wrong under a protocol."""
    words = {
        "images": "images exchanged",
        "captions": "captions exchanged",
        "near": "similar images exchanged",
    }
    return words.get(protocol, f"labels, {protocol}")
