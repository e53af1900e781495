"""From recorded runs to a verdict: comparisons under equal conditions, and one rule for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ncbook._compare import Difference, paired, test_words
from ncbook.runs import Runs, select

if TYPE_CHECKING:
    import pandas as pd

HOLDS, PARTLY, FAILS, UNTESTED = "holds", "partly", "does not hold", "not tested here"
VERDICTS = (HOLDS, PARTLY, FAILS, UNTESTED)
SHOWN = 6  # comparisons written out in one line of evidence
ROBUST = ("ncr", "decl", "bicro", "rcl", "mscn", "l2rm", "repair")
UNSUPERVISED = ("mcca", "pls", "dcca", "dccae")
LABEL_NOISE = ("mrl", "elrcmr", "uot_rcl")  # methods made for wrong labels
CONDITIONS = ("dataset", "preset", "model", "mrate", "protocol")
CATEGORY_CONDITIONS = ("dataset", "preset", "protocol", "noise_rate")


@dataclass(frozen=True)
class Finding:
    """What was found about one claim.

    Parameters
    ----------
    verdict : str
        One of :data:`VERDICTS`.
    evidence : str
        Numbers, or the reason why there are none.
    n : int
        Seeds (or problems) in the smallest comparison; 0 when nothing was tested.
    data : str
        Data and preset.
    test : str
        How the comparison was made.
    """

    verdict: str
    evidence: str
    n: int = 0
    data: str = ""
    test: str = ""


def compare(
    table: pd.DataFrame,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    value: str = "rsum",
    *,
    digits: int = 1,
    conditions: Sequence[str] = CONDITIONS,
    name: str = "",
    **where: Any,
) -> list[Difference]:
    """Return the difference of two settings under every condition in which both were recorded.

    Parameters
    ----------
    table : DataFrame
        Runs runs.
    ours, theirs : mapping
        Column = value pairs of either side.
    value : str
        Metric.
    digits : int
        Decimals in text.
    conditions : sequence of str
        Columns that must agree.
    name : str
        What is compared, put before the condition.
    **where
        Column = value pairs of both sides.
    """
    found = []
    for at, part in conditions_of(select(table, **where), conditions):
        a, b = select(part, **ours), select(part, **theirs)
        difference = paired(a, b, value, name=f"{name} {at}".strip(), digits=digits)
        if difference.n:
            found.append(difference)
    return found


def conditions_of(table: pd.DataFrame, columns: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each combination of values in ``columns``, as text that leaves out what never varies."""
    columns = [c for c in columns if c in table]
    if table.empty or not columns:
        return
    varying = [c for c in columns if table[c].nunique() > 1 or c in ("mrate", "noise_rate")]
    for key, part in table.groupby(columns, dropna=False):
        values = dict(zip(columns, key, strict=True))
        yield ", ".join(_condition(c, values[c]) for c in varying), part


def _condition(column: str, value: Any) -> str:
    return f"rate {value:g}" if column in ("mrate", "noise_rate") else str(value)


def within(
    table: pd.DataFrame, ours: str, theirs: str, *, digits: int = 3, scale: float = 1, **by: Any
) -> list[Difference]:
    """Return the difference of two columns of the same runs, per condition; one value per seed.

    Parameters
    ----------
    table : DataFrame
        Runs runs.
    ours, theirs : str
        Columns.
    digits : int
        Decimals in text.
    scale : float
        Factor on the difference.
    **by
        ``conditions``: columns that make a condition; other names select rows.
    """
    conditions = by.pop("conditions", CONDITIONS)
    part = select(table, **by)
    if part.empty or ours not in part or theirs not in part:
        return []
    part = part.dropna(subset=[ours, theirs])
    found = []
    for at, rows in conditions_of(part, conditions):
        values = (rows.groupby("seed")[ours].mean() - rows.groupby("seed")[theirs].mean()) * scale
        found.append(Difference(tuple(float(v) for v in values), at, digits=digits))
    return found


def best_other(
    table: pd.DataFrame,
    column: str,
    ours: str,
    others: Iterable[str],
    value: str = "rsum",
    *,
    digits: int = 1,
    conditions: Sequence[str] = CONDITIONS,
    least: int = 1,
    **where: Any,
) -> list[Difference]:
    """Return ours minus the best of the others, by mean, under every condition where both were recorded.

    Only others with every seed of ours count, so that the best is chosen among equals; conditions with fewer
    than ``least`` of them are left out.
    """
    found = []
    for at, part in conditions_of(select(table, **where), conditions):
        mine = select(part, **{column: ours})
        differences = []
        for other in others:
            d = paired(mine, select(part, **{column: other}), value, digits=digits)
            if other != ours and d.n and d.n == mine["seed"].nunique():
                differences.append((d.mean, other, d))
        if len(differences) >= least:
            _, name, d = min(differences, key=lambda item: item[0])
            best = f"{at}, best of {len(differences)} others ({name or 'usual'})"
            found.append(Difference(d.values, best, digits=digits))
    return found


def verdict_of(differences: Sequence[Difference], want: str = "above") -> str:
    """Return the verdict on "every difference is above (below) zero".

    *Holds* when every interval lies on the claimed side of zero; *does not hold* when none does and some
    interval lies on the other side; *partly* otherwise: under some conditions only, or too close to call.
    Comparisons of a single seed decide nothing.
    """
    counted = [d for d in differences if d.n > 1]
    if not counted:
        return UNTESTED
    right = [d for d in counted if d.sign == want]
    wrong = [d for d in counted if d.sign not in (want, "open")]
    if len(right) == len(counted):
        return HOLDS
    return FAILS if wrong and not right else PARTLY


def all_rates(finding: Finding, differences: Sequence[Difference], rates: Iterable[float]) -> Finding:
    """Name the rates of a claim without a record; a claim about all of them then holds only partly."""
    missing = [f"{r:g}" for r in rates if not any(f"rate {r:g}" in d.name for d in differences if d.n > 1)]
    if finding.verdict == UNTESTED or not missing:
        return finding
    verdict = PARTLY if finding.verdict == HOLDS else finding.verdict
    return replace(
        finding, verdict=verdict, evidence=f"{finding.evidence} No record at {', '.join(missing)}."
    )


def not_above(differences: Sequence[Difference]) -> str:
    """Return the verdict on "no difference is clearly above zero": *holds* when no interval lies above it."""
    counted = [d for d in differences if d.n > 1]
    if not counted:
        return UNTESTED
    above = [d for d in counted if d.sign == "above"]
    return HOLDS if not above else FAILS if len(above) == len(counted) else PARTLY


def conclude(
    differences: Sequence[Difference],
    data: str,
    *,
    verdict: str | None = None,
    want: str = "above",
    lead: str = "",
    missing: str = "",
) -> Finding:
    """Return a finding from differences; untested when no condition has two seeds on both sides.

    Parameters
    ----------
    differences : sequence of Difference
        Comparisons.
    data : str
        Data and preset in words.
    verdict : str, optional
        Verdict when it comes from another rule than :func:`verdict_of`.
    want : {"above", "below"}
        Side of zero that the claim expects.
    lead : str
        What the numbers are.
    missing : str
        What would have to be recorded.
    """
    said = verdict_of(differences, want) if verdict is None else verdict
    counted = [d for d in differences if d.n > 1]
    if said == UNTESTED or not counted:
        single = "; ".join(str(d) for d in differences[:SHOWN])
        return no_record(missing, f"One seed only: {single}." if single else "")
    if all(d.sign == "open" for d in counted) and said == PARTLY:
        lead = f"Too close to call. {lead[:1].upper()}{lead[1:]}" if lead else "Too close to call"
    lead = lead[:1].upper() + lead[1:]
    shown = "; ".join(str(d) for d in counted[:SHOWN])
    more = f"; and {len(counted) - SHOWN} more" if len(counted) > SHOWN else ""
    n = min(d.n for d in counted)
    return Finding(said, f"{f'{lead}: ' if lead else ''}{shown}{more}.", n, data, test_words(n))


def no_record(missing: str, said: str = "") -> Finding:
    """Return the finding that the records which the claim needs are not there."""
    need = f"No recorded runs{f' of {missing}' if missing else ''} with two seeds or more."
    return Finding(UNTESTED, f"{need} {said}".strip())


def data_of(table: pd.DataFrame) -> str:
    """Say on which data and preset the runs of a table were made."""
    if table.empty:
        return ""
    pairs = table[["dataset", "preset"]].drop_duplicates()
    kind = "on bundled data" if set(pairs["dataset"]) <= {"emoji", "emoji_category"} else "on"
    return f"{kind} {'; '.join(f'{d}, {p}' for d, p in pairs.itertuples(index=False))}"


def usual(runs: Runs) -> pd.DataFrame:
    """Return the image-text runs with usual settings."""
    return select(runs.retrieval, variant="")


def growth(small: Sequence[float], large: Sequence[float], name: str, digits: int = 1) -> Difference:
    """Return how much larger a gain is at the second place than at the first, seed by seed."""
    return Difference(tuple(b - a for a, b in zip(small, large, strict=True)), name, digits=digits)
