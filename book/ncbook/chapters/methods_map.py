"""The map of the methods: what each takes as a sign of a wrong pair, and what it does to such a pair."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml
from pandas.io.formats.style import Styler

from ncbook import show
from ncbook.chapters import photographs
from nclib.methods.base import METHODS

_READ = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text("utf8"))
SIGNALS, FATES = _READ["signals"], _READ["fates"]


class Idea(NamedTuple):
    """What a method does, in the terms of the map; the rest is in the registry and in the records."""

    name: str
    signal: str  # one of SIGNALS
    fate: str  # one of FATES
    how: str  # what happens to a suspect pair, in a few words
    page: str  # notebook, and section
    paper: str = ""  # of plain losses; that of a method is in the registry


IDEAS = {label: Idea(*words) for label, words in _READ["ideas"].items()}
"""By label of a recorded run, in the order of publication."""


def facts(networks: int = 0) -> pd.DataFrame:
    """Return what the map says, one row per method or plain loss.

    Parameters
    ----------
    networks : int
        Keep methods with this number of networks; 0 keeps all.

    Returns
    -------
    DataFrame
        By label: the fields of :class:`Idea`, with ``paper``, ``networks`` and ``clean`` (share of known
        clean pairs) of the registry, ``year``, and ``seconds``, the median of the recorded runs on
        photographs (NaN without records).
    """
    table = pd.DataFrame.from_dict(IDEAS, orient="index", columns=list(Idea._fields))
    methods = [label.split(" (")[0] for label in table.index]
    made = [METHODS[name].factory for name in methods]
    table["networks"], table["clean"] = [m.n_networks for m in made], [m.clean_share for m in made]
    papers = pd.Series([METHODS[name].paper for name in methods], table.index)
    table["paper"] = table["paper"].where(table["paper"] != "", papers).replace("", "this book")
    table["year"] = table["paper"].str.extract(r"\b((?:19|20)\d\d)\b", expand=False).fillna("")
    table["seconds"] = photographs.photograph_runs().groupby("label")["seconds"].median()
    return table[table["networks"] == networks] if networks else table


def _link(idea: pd.Series[str]) -> str:
    page, _, section = idea["page"].partition("#")
    return f'<a href="{page}.html{"#" * bool(section)}{section}"><b>{idea["name"]}</b></a>'


def grid(networks: int = 0) -> Styler:
    """Show every method where its signal, a row, meets the fate of a suspect pair, a column."""
    table = facts(networks)
    seconds = table["seconds"].map("{:.0f}\N{NO-BREAK SPACE}s".format, na_action="ignore").fillna("")
    marks = [n * "●" + bool(clean) * "◇" for n, clean in zip(table["networks"], table["clean"], strict=True)]
    small = table["year"] + " " + marks + " " + seconds
    table["chip"] = [f"{_link(row)} {small[label]}" for label, row in table.iterrows()]
    cells = table.groupby(["signal", "fate"], sort=False)["chip"].agg("<br>".join).unstack("fate")
    cells = cells.reindex(index=list(SIGNALS), columns=list(FATES)).fillna("")
    cells = cells.rename(index=SIGNALS, columns=FATES).rename_axis(index=None, columns=None)
    caption = (
        "Rows: a pair is suspected because ... Columns: a suspect pair ... ● networks, ◇ needs known clean "
        "pairs; seconds of training: median of the recorded runs on Flickr8K, model bow, beside other work"
    )
    style = show(cells, "map", caption)
    return style.set_properties(**{"text-align": "left", "vertical-align": "top"})


def details(networks: int = 0) -> Styler:
    """Show the methods as a list, with citation and needs."""
    table = facts(networks)
    columns = {
        "paper": table["paper"],
        "a suspect pair": table["how"],
        "networks": table["networks"],
        "clean pairs": [f"{share:.0%}" if share else "none" for share in table["clean"]],
        "seconds": table["seconds"],
    }
    shown = pd.DataFrame(columns).set_axis([_link(row) for _, row in table.iterrows()])
    caption = "In the order of publication; clean pairs: known ones, as a share of the training pairs"
    return show(shown, "methods", caption, digits=0, missing="–").set_properties(**{"text-align": "left"})


def said() -> str:
    """Return what the map shows, in sentences computed from it."""
    table = facts()
    own = table[~table.index.str.startswith("plain")]
    several, needy = own[own["networks"] > 1], own[own["clean"] > 0]
    replacing = own[own["fate"] == "replaced"]
    by_loss = (replacing["signal"] == "loss").sum()
    times = own["seconds"].dropna()
    quick, slow = times.idxmin(), times.idxmax()
    return (
        f"Of {len(own)} methods {len(several)} train two networks; known clean pairs are needed by "
        f"{', '.join(needy['name'])}. "
        f"Of the {len(replacing)} that look for another partner, {by_loss} suspect a pair by its loss. "
        f"Training on Flickr8K takes from {times.min():.0f} seconds ({own.loc[quick, 'name']}) to "
        f"{times.max():.0f} ({own.loc[slow, 'name']})."
    )
