"""The tables of UOT-RCL beside measured runs: which printed row is which method here, and why some are none.

Printed values come from ``book/ncbook/printed`` and measured ones from records; each stay in
cells of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ncbook._printed import printed

if TYPE_CHECKING:
    import pandas as pd

METHODS = {  # printed name -> method here
    "MCCA": "mcca",
    "PLS": "pls",
    "DCCA": "dcca",
    "DCCAE": "dccae",
    "GMA": "gma",
    "MvDA": "mvda",
    "ACMR": "acmr",
    "deep-SM": "deep_sm",
    "SDML": "sdml",
    "DSCMR": "dscmr",
    "MRL": "mrl",
    "ELRCMR": "elrcmr",
    "UOT-RCL": "uot_rcl",
}
PRINTED_ONLY = {  # printed name -> (reason, stand-in here or "")
    "GSS-SL": (
        "neither its code nor its exact objective and settings are public; a label regression with the parts "
        "that are known stands in, under its own name",
        "gss_regression",
    ),
    "FGCrossNet": (
        "an image network trained end to end on pictures, frames, spectrograms and drawn texts; how it was "
        "reduced to fixed features is not documented; its losses on fixed features stand in, under their own "
        "name",
        "fgcrossnet_losses",
    ),
    "SMLN": (
        "no public code; the function of the eigenvalues that its loss is made of, the neighbour counts and "
        "the training settings cannot be recovered from the sources at hand",
        "",
    ),
}
ABLATIONS: dict[str, dict[str, Any]] = {  # rows of Table IV -> options of uot_rcl
    "UOT-RCL": {},
    "UOT-RCL w/o label correction loss": {"plc": "off"},
    "UOT-RCL w/o relation alignment loss": {"lam": 0.0},
    "UOT-RCL w/o confident set": {"confident": "random"},
}
UNLABELLED = ("mcca", "pls", "dcca", "dccae")  # label noise cannot change them
DIRECTIONS = {"i2t": "image → text", "t2i": "text → image"}


def printed_table(table: str, dataset: str) -> pd.DataFrame:
    """Return a table of the paper, one row per method, columns (direction, noise rate), values in [0, 1].

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
        direction=rows["direction"].map(DIRECTIONS),
        noise_rate=rows["noise_rate"].astype(float),
    )
    wide = rows.pivot_table(
        index="method", columns=["direction", "noise_rate"], values="map", sort=False, aggfunc="first"
    )
    wide.columns.names = ["", "noise"]
    return wide


def select(runs: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """Return the runs of ``uot_rcl`` with the options of the preset ``quick`` but for those given."""
    from nclib import resolve

    wanted = {**vars(resolve("uot_rcl").method_options), **options}
    keep = runs["method"] == "uot_rcl"
    for name, value in wanted.items():
        column = f"method_{name}"
        keep &= runs[column] == value if column in runs else False
    return runs[keep]


def measured_table(
    runs: pd.DataFrame, names: Mapping[str, str], rates: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
) -> pd.DataFrame:
    """Return mean ± standard deviation (seeds) of recorded runs, in the form of :func:`printed_table`.

    Parameters
    ----------
    runs : DataFrame
        As :func:`ncbook.recorded` returns, with a column ``row`` that tells the row of each run.
    names : mapping
        Value of ``row`` to the name shown; rows without any run say "no record".
    rates : tuple of float
    """
    import pandas as pd

    columns = pd.MultiIndex.from_product([list(DIRECTIONS.values()), rates], names=["", "noise"])
    table = pd.DataFrame("no record", index=pd.Index(list(names.values()), name="method"), columns=columns)
    for row, name in names.items():
        for rate in rates:
            part = runs[(runs["row"] == row) & (runs["noise_rate"] == rate)] if len(runs) else runs
            for key, direction in DIRECTIONS.items() if len(part) else ():
                values = part[f"map_{key}"]
                spread = f" ± {values.std():.3f}" if len(values) > 1 else ""
                table.loc[name, (direction, rate)] = f"{values.mean():.3f}{spread} ({len(values)})"
    return table


def ranks_agree(runs: pd.DataFrame, dataset: str, table: str) -> pd.DataFrame:
    """Compare the order of methods in a printed table with that of the measured runs.

    Returns
    -------
    DataFrame
        Per noise rate: Spearman's rank correlation of the mean of both directions, and the number of methods.
    """
    import pandas as pd
    from scipy.stats import spearmanr

    wide = printed_table(table, dataset).T.groupby(level="noise").mean().T  # mean of both directions
    found = []
    for rate in wide.columns:
        part = runs[runs["noise_rate"] == rate] if len(runs) else runs
        ours = part.groupby("row")["map_avg"].mean() if len(part) else {}
        shared = [name for name, method in METHODS.items() if method in ours and name in wide.index]
        if len(shared) < 3:
            continue
        rho = spearmanr([wide.loc[n, rate] for n in shared], [ours[METHODS[n]] for n in shared]).statistic
        found.append({"noise": rate, "rank correlation": rho, "methods": len(shared)})
    return pd.DataFrame(found, columns=["noise", "rank correlation", "methods"])
