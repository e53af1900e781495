"""The strongest regime in which the rows of a printed table were recorded: data, preset and model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ncbook.board import data_name, noise_name
from ncbook.layouts import Layout
from ncbook.match import RunSpec, models_named, run_of
from ncbook.papers import rows_of
from ncbook.runs import BUNDLED, Runs, select

SMALL = "quick"  # the preset in which runs are too short to show an effect
REGIME = ("dataset", "preset", "model")
DRAWN = {
    "retrieval": "emoji",
    "category_map": "emoji_category",
}  # what a table without a record would be run on
ONLY_SHORT = f"Only the short preset ({SMALL}) was recorded for this comparison."

Groups = dict[tuple[str, str, str], tuple[RunSpec, list[str]]]
"""Method, model and variant of the runs behind the rows of a table -> the run, and the names of its rows."""


@dataclass(frozen=True)
class Place:
    """Where the runs that stand beside a printed table were made.

    Parameters
    ----------
    where : dict
        Data and preset, and for a figure the model, as columns of the records.
    rates : tuple of float
        Noise rates that are shown.
    protocol : str
        Kind of the noise; empty where the table has none.
    remark : str
        In words, what differs from the printed noise, or that only short runs were recorded.
    """

    where: dict[str, str]
    rates: tuple[float, ...]
    protocol: str = ""
    remark: str = ""


def strongest(table: pd.DataFrame, cells: Sequence[str], regime: Sequence[str] = REGIME) -> dict[str, str]:
    """Return the regime in which most cells of a comparison were recorded.

    The preset ``quick`` is taken where no other has more than half as many cells; between regimes with as
    many cells, real data come before drawn ones.

    Parameters
    ----------
    table : DataFrame
        Runs that belong to the comparison.
    cells : sequence of str
        Columns whose distinct values are its cells.
    regime : sequence of str
        Columns that name a regime; those that the table does not have are left out.

    Returns
    -------
    dict
        Empty without a run.

    Examples
    --------
    >>> runs = pd.DataFrame({"dataset": ["emoji"] * 3 + ["f8k"] * 2, "rho": [0.1, 0.2, 0.5, 0.1, 0.2]})
    >>> strongest(runs.assign(preset=["quick"] * 3 + ["standard"] * 2), ["rho"])
    {'dataset': 'f8k', 'preset': 'standard'}
    """
    regime = [c for c in regime if c in table]
    if table.empty:
        return {}
    counts = table.drop_duplicates([*regime, *cells]).groupby(regime).size()
    counts = counts[sorted(counts.index, key=lambda key: key[0] in BUNDLED)]
    longer = counts[counts.index.get_level_values("preset") != SMALL]
    best = longer if 2 * longer.max() > counts.max() else counts
    return dict(zip(regime, best.idxmax(), strict=True))


def place_of(
    layout: Layout,
    runs: Runs,
    *,
    preset: str = "",
    model: str = "",
    methods: Sequence[str] = (),
    figure: bool = False,
) -> Place:
    """Return where the runs that are shown beside a printed table stand: the strongest regime of its rows.

    Where :func:`strongest` finds short runs alone under the printed noise, the kind and rate of noise are
    taken under which longer runs have most of the rows, and the remark names the difference.

    Parameters
    ----------
    layout : Layout
    runs : Runs
    preset, model : str
        Those of the runs; chosen where empty.
    methods : sequence of str
        Methods, or ``"method, variant"``, that are shown; every row of the table where empty.
    figure : bool
        A figure shows one model, and the papers' own data where they were recorded; a table shows every
        model, and such runs fill the printed cells.
    """
    printed = {
        float(row["noise_rate"]) for row in rows_of(layout.paper, layout.table) if row.get("noise_rate")
    }
    named = models_named(layout)
    rates = tuple(sorted(printed or ({0.0} if named else ())))
    table, rate = (runs.category, "noise_rate") if layout.of_labels else (runs.retrieval, "mrate")
    noise = "symmetric" if layout.of_labels else layout.noise
    usual = {"dataset": DRAWN.get(layout.file, ""), "preset": preset or SMALL}
    usual |= {"model": model or "vse"} if figure and not layout.of_labels else {}
    own = select(table, **{k: v for k, v in (("preset", preset), ("model", model)) if v})
    if own.empty:
        return Place(usual, rates, noise)
    wanted = groups_of(layout)
    keys = zip(own["method"], own["model"] if named else [""] * len(own), own["variant"], strict=True)
    own = own[[key in wanted for key in keys]]
    own = own[own["preset"] != "paper"] if not figure else own
    if methods:
        names = (own["method"] + ", " + own["variant"]).str.removesuffix(", ")
        own = own[names.isin(list(methods))]
    exact = own[own[rate].isin(rates)]
    exact = exact[(exact["protocol"] == noise) | (exact[rate] == 0)] if noise else exact
    regime = REGIME if figure else REGIME[:2]
    rows = ["method", "variant", *(["model"] if named else [])]
    where = strongest(exact, [*rows, rate], regime) or usual
    if preset or where["preset"] != SMALL:
        return Place(where, rates, noise)
    short = select(exact, **where).drop_duplicates(rows)
    if layout.noise:
        longer = own[(own["preset"] != SMALL) & (own[rate] > 0)]
        near = strongest(longer, rows, [*regime, "protocol", rate])
        if near and 2 * len(select(longer, **near).drop_duplicates(rows)) > len(short):
            level, protocol = float(near.pop(rate)), near.pop("protocol")
            remark = (
                f"Of most rows only the short preset ({SMALL}) was recorded under the printed noise "
                f"({noise_name(noise)}, rate {', '.join(f'{r:g}' for r in rates)}). Measured here are longer "
                f"runs with {noise_name(protocol)} at rate {level:g}."
            )
            return Place(near, (level,), protocol, remark)
    return Place(where, rates, noise, ONLY_SHORT if len(short) else "")


def groups_of(layout: Layout) -> Groups:
    """Return the runs behind the rows of a table with the names of those rows; models apart for OMIT."""
    groups: Groups = {}
    for row in rows_of(layout.paper, layout.table):
        run = run_of(layout, row)
        if run is None:
            continue
        name = row["setting"] if layout.rows == ("warm-up",) else row["method"]
        key = (run.method, run.model if models_named(layout) else "", run.variant)
        names = groups.setdefault(key, (run, []))[1]
        if name not in names:
            names.append(name)
    return groups


def place_text(where: dict[str, str]) -> str:
    """Return a regime in words."""
    dataset, *more = where.values()
    return ", ".join([data_name(dataset), *more])
