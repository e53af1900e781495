"""The tables of UOT-RCL in [0, 1] with measured means beside them, and how far both orders agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ncbook.compare import mean_text
from ncbook.layouts import DIRECTION, LAYOUTS
from ncbook.match import STAND_INS, category_method
from ncbook.notebook import NO_RECORD
from ncbook.papers import printed, rows_of

if TYPE_CHECKING:
    import pandas as pd

WHY_NOT = {  # printed methods that are not rerun, and why
    "GSS-SL": (
        "neither its code nor its exact objective and settings are public; a label regression with the parts "
        "that are known stands in, under its own name"
    ),
    "FGCrossNet": (
        "an image network trained end to end on pictures, frames, spectrograms and drawn texts; how it was "
        "reduced to fixed features is not documented; its losses on fixed features stand in, under their own "
        "name"
    ),
    "SMLN": (
        "no public code; the function of the eigenvalues that its loss is made of, the neighbour counts and "
        "the training settings cannot be recovered from the sources at hand"
    ),
}
PRINTED_ONLY = {name: (why, STAND_INS.get(name, "")) for name, why in WHY_NOT.items()}
"""Printed name -> reason, and the stand-in here or an empty string."""
ABLATIONS = LAYOUTS["UOT-RCL", "IV"].options
"""Rows of Table IV -> options of uot_rcl."""
UNLABELLED = ("mcca", "pls", "dcca", "dccae")  # label noise cannot change them
RATES = (0.2, 0.4, 0.6, 0.8)


def printed_methods() -> dict[str, str]:
    """Return the methods that are rerun under their printed name: printed name -> method."""
    names = dict.fromkeys(row["method"] for row in rows_of("UOT-RCL", "II"))
    return {name: category_method(name) for name in names if name not in PRINTED_ONLY}


def printed_map(table: str, dataset: str) -> pd.DataFrame:
    """Return a printed table, one row per method, columns (direction, noise rate), values in [0, 1].

    Parameters
    ----------
    table : {"I", "II", "III", "IV"}
    dataset : str
        As printed: ``Wikipedia``, ``NUS-WIDE`` or ``XMediaNet``.

    Raises
    ------
    ValueError
        When the paper has no such table for that data.
    """
    rows = printed("category_map", paper="UOT-RCL", table=table, dataset=dataset)
    if rows.empty:
        raise ValueError(f"UOT-RCL has no values for {dataset!r} in Table {table!r}")
    rows = rows.assign(
        map=rows["map"].astype(float),
        direction=rows["direction"].map(DIRECTION),
        noise_rate=rows["noise_rate"].astype(float),
    )
    wide = rows.pivot_table(
        index="method", columns=["direction", "noise_rate"], values="map", sort=False, aggfunc="first"
    )
    wide.columns.names = ["", "noise"]
    return wide


def measured_map(
    runs: pd.DataFrame, names: Mapping[str, str], rates: tuple[float, ...] = RATES
) -> pd.DataFrame:
    """Return mean ± standard deviation (seeds) of recorded runs, in the form of :func:`printed_map`.

    Parameters
    ----------
    runs : DataFrame
        As :func:`ncbook.recorded` returns, with a column ``row`` that names the row of each run.
    names : mapping
        Value of ``row`` to the name shown; rows without any run say "no record".
    rates : tuple of float
    """
    import pandas as pd

    columns = pd.MultiIndex.from_product([list(DIRECTION.values()), rates], names=["", "noise"])
    table = pd.DataFrame(NO_RECORD, index=pd.Index(list(names.values()), name="method"), columns=columns)
    for (row, rate), part in runs.groupby(["row", "noise_rate"]) if len(runs) else ():
        for key, direction in DIRECTION.items() if row in names and rate in rates else ():
            table.loc[names[row], (direction, rate)] = mean_text(list(part[f"map_{key}"]), 3)
    return table


def rank_agreement(runs: pd.DataFrame, dataset: str, table: str) -> pd.DataFrame:
    """Compare the order of methods in a printed table with that of the measured runs.

    Parameters
    ----------
    runs : DataFrame
        As for :func:`measured_map`.
    dataset, table : str
        As for :func:`printed_map`.

    Returns
    -------
    DataFrame
        Per noise rate: Spearman's rank correlation of the mean of both directions, and the number of methods.
    """
    import pandas as pd

    wide = printed_map(table, dataset).rename(index=printed_methods())
    theirs = wide.T.groupby(level="noise").mean().T  # mean of both directions
    found = []
    for rate in theirs.columns:
        part = runs[runs["noise_rate"] == rate] if len(runs) else runs
        ours = part.groupby("row")["map_avg"].mean() if len(part) else pd.Series(dtype=float)
        both = pd.concat([theirs[rate].rename("theirs"), ours.rename("ours")], axis=1, join="inner")
        if len(both) >= 3:
            correlation = both["theirs"].corr(both["ours"], method="spearman")
            found.append({"noise": rate, "rank correlation": correlation, "methods": len(both)})
    return pd.DataFrame(found, columns=["noise", "rank correlation", "methods"])
