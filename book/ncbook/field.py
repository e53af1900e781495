"""The field's printed rows: newer papers, repositories and re-runs, beside those of the four papers.

Nothing here was measured by this project. A row says which kind of noise it was made under, because the same
rate means different problems: ``images`` moves all captions of a picture together, ``captions`` moves them
one by one. Rows of different kinds, data, test protocols or features are never ranked against each other.
"""

from __future__ import annotations

import functools

import pandas as pd

from ncbook.page import Cell, Table, csv_text
from ncbook.papers import printed
from nclib.runs.record import RECALLS

NOT_STATED = "not stated"
ROUNDING = 0.1  # a sum that was made before rounding may differ from its rounded recalls by this
LEVELS = {"images": "images exchanged", "captions": "captions exchanged", "": "kind not stated"}
TESTS = {
    "test-1k": "",
    "5fold-1k": " 1K, five folds",
    "5fold-1k (assumed)": " 1K, five folds",
    "full-5k": " 5K",
}
FEATURES = {"region": "regions", "pixels": "CLIP"}
NETWORKS = {"true": "several", "false": "one", "": NOT_STATED}
SOURCES = {"measured": "measured there", "reported": "reported from elsewhere", "": NOT_STATED}
OLDER = {
    "L2RM": ("2", "6", "8"),
    "REPAIR": ("I", "II", "IV"),
}  # tables of the four papers with mismatched pairs
OLDER_LEVEL = {"L2RM": ("images", "stated"), "REPAIR": ("captions", "inferred from its wording")}
GROUP = ["data", "features", "noise"]  # never crossed
COPIED = "t2i_r10 of MS-COCO 1K repeats"


@functools.cache
def field_rows() -> pd.DataFrame:
    """Return every printed row with six recalls under wrong pairs, one line per row.

    Returns
    -------
    DataFrame
        ``data`` (with the test protocol), ``features``, ``noise`` (kind), ``rate`` (text, ``natural`` for web
        data), ``method``, ``backbone``, ``networks``, ``paper``, ``table``, ``source``, ``level_from``,
        ``selection``, ``setting``, the six recalls and ``rsum`` as printed, ``total``: the sum of the six
        recalls, ``value``: ``rsum``, or the total where no sum is printed, and ``off``: ``rsum - total``
        where they differ by more than rounding, else 0.
    """
    table = pd.concat([printed("field"), _older()], ignore_index=True).fillna("")
    complete = (table[list(RECALLS)] != "").all(axis=1) & (table["noise_kind"] != "none")
    table = table[complete & ~table["setting"].str.contains("ablation|trained on clean")].copy()
    places = ["dataset", "protocol", "noise_rate", *RECALLS]
    keys = table[places].agg(" ".join, axis=1)
    copied = (table["noise_kind"] == "mismatch") & keys.isin(set(keys[table["paper"] == "L2RM"]))
    copied &= table["paper"] != "L2RM"
    table.loc[copied, ["level", "level_from"]] = ["images", "equals a row of L2RM"]
    recalls = table[list(RECALLS)].astype(float)
    table["total"] = recalls.sum(axis=1).round(1)
    table["value"] = pd.to_numeric(table["rsum"]).fillna(table["total"])
    off = (table["value"] - table["total"]).round(1)
    table["off"] = off.where(off.abs() > ROUNDING + 1e-9, 0.0)
    table["data"] = table["dataset"] + table["protocol"].map(TESTS)
    table["features"] = table["features"].str.extract("^(region|pixels)")[0].map(FEATURES).fillna("regions")
    web = table["noise_kind"] == "natural"
    table["noise"] = table["level"].map(LEVELS).where(~web, "web pairs")
    table["rate"] = table["noise_rate"].where(~web, "natural")
    table["networks"] = table["ensemble"].map(NETWORKS)
    table["source"] = table["source"].map(SOURCES)
    return table.sort_values([*GROUP, "rate", "value"], ascending=[True] * 4 + [False]).reset_index(drop=True)


def _older() -> pd.DataFrame:
    """Return the rows of the four papers in the columns of ``field.csv``."""
    parts = []
    for paper, tables in OLDER.items():
        found = printed("retrieval", paper=paper)
        found = found[found["table"].isin(tables)]
        keys = [c for c in found if c not in ("metric", "value")]
        wide = found.pivot_table(index=keys, columns="metric", values="value", aggfunc="first", sort=False)
        wide = wide.reset_index()
        mismatch = wide["noise_kind"] == "mismatch"
        level, origin = OLDER_LEVEL[paper]
        wide["level"] = mismatch.map({True: level, False: ""})
        wide["level_from"] = mismatch.map({True: origin, False: ""})
        sources = {"measured by that paper": "measured", "reported there from elsewhere": "reported"}
        wide["source"] = wide["source"].map(sources).fillna("")
        parts.append(wide)
    return pd.concat(parts, ignore_index=True)


def field_table(rows: pd.DataFrame, *, rate: str = "0.4") -> Table:
    """Return the printed rows side by side; data, features and kind of noise are shown one at a time.

    Parameters
    ----------
    rows : DataFrame
        From :func:`field_rows`.
    rate : str
        Rate that the page shows first; all where no row has it.

    Returns
    -------
    Table
        Notes name the selection rule of a method, sums that do not add up, and cells that are known to be
        wrong.
    """
    lines, notes = [], {}
    for row in rows.to_dict("records"):
        marks = []
        if row["selection"]:
            notes[row["selection"]] = f"Selected by {row['selection']} (code or text of the method)."
            marks.append(row["selection"])
        value, wrong = f"{row['value']:.1f}", []
        if row["off"]:
            wrong = [f"sum {row['off']:+.1f}"]
            notes[wrong[0]] = f"The printed sum differs from the sum of its six recalls by {row['off']:+.1f}."
        if row["rsum"] == "":
            wrong = ["added here"]
            notes["added here"] = "No sum is printed; the six recalls were added here."
        copied = [COPIED] if row["setting"].startswith(COPIED) else []
        if copied:
            notes[COPIED] = "Repeats R@10 of the other direction: the evaluation adds the wrong count."
        place = f"{row['paper']} {row['table']}" if row["table"] != NOT_STATED else row["paper"]
        cells = [
            Cell(row["rate"]),
            Cell(value, tuple(wrong)),
            *(Cell(row[k], tuple(copied) if k == "t2i_r10" else ()) for k in RECALLS),
            Cell(row["networks"]),
            Cell(place, own=row["source"]),
            *(Cell(row[k]) for k in GROUP),
        ]
        lines.append(([Cell(row["method"], tuple(marks), own=row["backbone"])], cells))
    recalls = [f"{way} {k}" for way in ("i→t", "t→i") for k in (1, 5, 10)]
    head = ["method", "backbone", "rate", *RECALLS, "rsum", "total", "networks", "paper", "table", "source"]
    head += [*GROUP, "level_from", "selection", "setting"]
    return Table(
        slug="field",
        title=f"{len(rows)} printed rows from {rows['paper'].nunique()} papers and repositories",
        kind="printed",
        lines=[
            "Recalls in percent, rSum in points (600 at most), as printed elsewhere; nothing is measured.",
            "Data, features and kind of noise are chosen one at a time: other rows cannot be compared.",
        ],
        names=("method",),
        columns=[(name,) for name in ("rate", "rSum", *recalls, "networks", "printed in", *GROUP)],
        rows=lines,
        notes=notes,
        file=csv_text(head, rows[head].astype(str).to_numpy().tolist()),
        filters={
            "rate": rate if rate in set(rows["rate"]) else "",
            "networks": "",
            "data": "Flickr30K",
            "features": "regions",
            "noise": LEVELS["captions"],
        },
        apart=GROUP,
    )


def best_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the highest printed sum for every data, features, kind of noise, rate and number of networks.

    Rows whose kind of noise is not stated are left out, as are rows whose sum does not add up, whose recalls
    are known to be wrong, or that are second-hand.
    """
    sound = (rows["off"] == 0) & ~rows["setting"].str.contains("repeats|quoted by a user")
    part = rows[sound & (rows["noise"] != LEVELS[""])]
    top = part.loc[part.groupby([*GROUP, "rate", "networks"])["value"].idxmax()]
    text = top["method"] + " " + top["value"].map("{:.1f}".format)
    place = top["paper"] + (" " + top["table"]).where(~top["paper"].str.endswith("repository"), "")
    text += " (" + place + ")"
    table = top.assign(text=text).pivot(index=[*GROUP, "rate"], columns="networks", values="text")
    order = [n for n in ("one", "several", NOT_STATED) if n in table]
    return table[order].fillna("–").rename_axis(columns=None)


def wrong_sums(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose printed sum is not the sum of its recalls, largest difference first."""
    part = rows[rows["off"] != 0]
    part = part.reindex(part["off"].abs().sort_values(ascending=False, kind="stable").index)
    names = {"total": "sum of the recalls", "rsum": "printed sum", "off": "difference"}
    columns = ["paper", "table", "method", "data", "rate", *names]
    return part[columns].rename(columns=names).reset_index(drop=True)


def _is_rerun(rows: pd.DataFrame) -> pd.Series:
    """Tell rows that somebody else than the method's authors measured."""
    home = rows["paper"].str.split(" ").str[0]
    method = rows["method"].str.split("[- ]", regex=True).str[0]
    user = rows["setting"].str.startswith("a user")
    return user | ((rows["source"] == SOURCES["measured"]) & (home != method))


def reruns(rows: pd.DataFrame) -> pd.DataFrame:
    """Return printed sums beside those that others got for the same method, data, kind of noise and rate.

    Each distinct value is named once, with where it stands. Only methods with a value of either side under
    the same conditions.
    """
    rows = rows.assign(kind=_is_rerun(rows).map({True: "re-run by others", False: "printed"}))
    by = [*GROUP, "rate", "method"]

    def values(part: pd.DataFrame) -> str:
        places = part.groupby("value", sort=False)["paper"].agg(lambda p: ", ".join(dict.fromkeys(p)))
        return "; ".join(f"{value:.1f} ({where})" for value, where in places.sort_index().items())

    table = rows.groupby([*by, "kind"]).apply(values, include_groups=False).unstack("kind")
    span = rows.groupby(by)["value"].agg(lambda v: v.max() - v.min())
    if "re-run by others" not in table:
        return pd.DataFrame(columns=["printed", "re-run by others", "range"])
    table["range"] = span.map("{:.1f}".format)
    return table.dropna().rename_axis(columns=None)


def kinds_mixed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for methods printed under both kinds of noise, the smallest and largest sum under each."""
    known = rows[rows["noise"].isin([LEVELS["images"], LEVELS["captions"]])]
    by = ["data", "features", "rate", "method"]

    def span(values: pd.Series) -> str:
        low, high = values.min(), values.max()
        return f"{low:.1f}" if low == high else f"{low:.1f} to {high:.1f}"

    table = known.groupby([*by, "noise"])["value"].agg(span).unstack("noise").dropna()
    return table.rename_axis(columns=None)


def mixing_papers(rows: pd.DataFrame) -> list[str]:
    """Return the papers of the field that print both kinds of noise in one table, as ``paper, table n``."""
    exchanged = rows[rows["noise"].isin([LEVELS["images"], LEVELS["captions"]])]
    kinds = exchanged.groupby(["paper", "table"])["noise"].nunique()
    return [f"{paper}, table {table}" for paper, table in kinds.index[kinds > 1]]
