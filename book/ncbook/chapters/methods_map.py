"""The map of the methods: what each takes as a sign of a wrong pair, and what it does to such a pair."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from pandas.io.formats.style import Styler

from ncbook import show
from ncbook.chapters import photographs
from nclib.methods.base import METHODS

SIGNALS = {
    "none": "(no pair is suspected)",
    "loss": "its loss is large, by a mixture",
    "score": "it scores low in its batch",
    "relations": "its picture and its caption have other neighbours",
    "clean": "a network that learned from clean pairs suspects it",
}
FATES = {
    "kept": "is trained like any other",
    "bounded": "pulls little, by the loss itself",
    "weighed": "weighs less, or is left out",
    "softened": "gets a softer target",
    "replaced": "gets another partner",
}


class Idea(NamedTuple):
    """What a method does, in the terms of the map; the rest is in the registry and in the records."""

    name: str
    signal: str  # one of SIGNALS
    fate: str  # one of FATES
    how: str  # what happens to a suspect pair, in a few words
    page: str  # notebook, and section
    paper: str = ""  # of plain losses; that of a method is in the registry


# By label of a recorded run, in the order of publication.
IDEAS = {
    "plain (triplet)": Idea(
        "triplet", "none", "kept", "trains as given", "losses", "Faghri et al., BMVC 2018"
    ),
    "plain (infonce)": Idea(
        "InfoNCE", "none", "kept", "trains as given", "losses", "van den Oord et al., 2018"
    ),
    "plain (gce)": Idea(
        "GCE", "none", "bounded", "its gradient vanishes", "losses",
        "Zhang and Sabuncu, NeurIPS 2018",
    ),
    "plain (infonce_rce)": Idea(
        "InfoNCE + RCE", "none", "bounded", "half of the loss is bounded", "losses", "Wang et al., ICCV 2019"
    ),
    "ncr": Idea("NCR", "loss", "softened", "its margin shrinks", "coteaching#ncr"),
    "decl": Idea("DECL", "score", "weighed", "is taught to be uncertain, not ranked", "negatives#decl"),
    "bicro": Idea("BiCro", "relations", "softened", "its margin follows its anchors", "coteaching#bicro"),
    "rcl": Idea("RCL", "none", "bounded", "only its negatives are supervised", "negatives#rcl"),
    "mscn": Idea("MSCN", "clean", "weighed", "is left out", "coteaching#mscn"),
    "crcl": Idea("CRCL", "score", "weighed", "its negatives train, it does not", "negatives#crcl"),
    "repair": Idea("REPAIR", "relations", "replaced", "one half is replaced", "repair"),
    "l2rm": Idea("L2RM", "loss", "replaced", "is rematched within its batch", "l2rm"),
    "gsc": Idea("GSC", "relations", "weighed", "weighs less", "relations#gsc"),
    "gsc_plus": Idea("GSC+", "relations", "weighed", "weighs less", "relations#gsc"),
    "cream": Idea("CREAM", "loss", "softened", "its weight goes to its negatives", "neighbours#cream"),
    "sps": Idea("SPS", "loss", "replaced", "takes a clean picture's caption", "relations#sps"),
    "pcsr": Idea("PCSR", "loss", "replaced", "takes a caption of its pseudo-class", "neighbours#pcsr"),
    "in2r": Idea("IN2R", "loss", "replaced", "takes a blend of captions", "neighbours#in2r"),
    "crank": Idea("CRANK", "score", "weighed", "ranks last, weighs near 0", "crank"),
    "crank_plus": Idea("CRANK+", "score", "weighed", "ranks last, weighs near 0", "crank"),
}  # fmt: skip


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
