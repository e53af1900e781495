"""From recorded runs to a verdict: comparisons under equal conditions, and the rules of a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ncbook.compare import Difference, paired, test_name
from ncbook.runs import BUNDLED, Runs, select
from nclib import methods

HOLDS, PARTLY, FAILS, UNTESTED = "holds", "partly", "does not hold", "not tested here"
VERDICTS = (HOLDS, PARTLY, FAILS, UNTESTED)
SHOWN = 6  # comparisons written out in one line of evidence
CONDITIONS = ("dataset", "preset", "model", "mrate", "protocol")
CATEGORY_CONDITIONS = ("dataset", "preset", "protocol", "noise_rate")
RATES = ("mrate", "noise_rate")


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim.

    Parameters
    ----------
    word : str
        One of :data:`VERDICTS`.
    evidence : str
        Numbers, or the reason why there are none.
    n : int
        Seeds (or problems) in the smallest comparison; 0 when nothing was tested.
    data, test : str
        Data and preset, and how the comparison was made.
    """

    word: str
    evidence: str
    n: int = 0
    data: str = ""
    test: str = ""


# -- comparisons -----------------------------------------------------------------------------------------


def robust_methods() -> tuple[str, ...]:
    """Return the registered methods for mismatched pairs without plain training."""
    return tuple(name for name in methods.available() if name != "plain")


def conditions_of(
    table: pd.DataFrame, columns: Sequence[str] = CONDITIONS
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each combination of values in ``columns``, as text without the columns that never vary."""
    columns = [c for c in columns if c in table]
    if table.empty or not columns:
        return
    varying = [c for c in columns if table[c].nunique() > 1 or c in RATES]
    for key, part in table.groupby(columns, dropna=False):
        values = dict(zip(columns, key, strict=True))
        yield ", ".join(f"rate {values[c]:g}" if c in RATES else str(values[c]) for c in varying), part


def compare(
    table: pd.DataFrame,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    value: str = "rsum",
    *,
    digits: int = 1,
    conditions: Sequence[str] = CONDITIONS,
    name: str = "",
) -> list[Difference]:
    """Return the difference of two settings under every condition in which both were recorded.

    ``ours`` and ``theirs`` are column = value pairs of either side, ``conditions`` columns that must agree.
    """
    found = []
    for at, part in conditions_of(table, conditions):
        a, b = select(part, **ours), select(part, **theirs)
        found.append(paired(a, b, value, name=f"{name} {at}".strip(), digits=digits))
    return [d for d in found if d.n]


def within(
    table: pd.DataFrame,
    ours: str,
    theirs: str | float,
    *,
    digits: int = 3,
    conditions: Sequence[str] = CONDITIONS,
    name: str = "",
) -> list[Difference]:
    """Return a column minus another column, or a number, of the same runs, per condition."""
    columns = [ours, *([theirs] if isinstance(theirs, str) else [])]
    if table.empty or not set(columns) <= set(table):
        return []
    found = []
    for at, rows in conditions_of(table.dropna(subset=columns), conditions):
        values = rows[ours] - (rows[theirs] if isinstance(theirs, str) else theirs)
        by_seed = values.groupby(rows["seed"]).mean()
        found.append(Difference(tuple(float(v) for v in by_seed), f"{name} {at}".strip(), digits=digits))
    return found


def best_other(
    table: pd.DataFrame,
    column: str,
    ours: str,
    others: Iterable[str] | None = None,
    value: str = "rsum",
    *,
    digits: int = 1,
    conditions: Sequence[str] = CONDITIONS,
    name: str = "",
    least: int = 1,
) -> list[Difference]:
    """Return ours minus the best of the others, by mean, under every condition where both were recorded.

    Only others with every seed of ours count, so that the best is chosen among equals; conditions with fewer
    than ``least`` of them are left out. ``ours`` and ``others`` (by default all recorded) are values of
    ``column``; the rest is as in :func:`compare`.
    """
    rivals = set(table.get(column, ())) if others is None else set(others)
    found = []
    for at, part in conditions_of(table, conditions):
        mine = select(part, **{column: ours})
        differences = []
        for other in sorted(rivals - {ours}):
            d = paired(mine, select(part, **{column: other}), value, digits=digits)
            if d.n and d.n == mine["seed"].nunique():
                differences.append((d.mean, other, d))
        if len(differences) >= least:
            _, best, d = min(differences, key=lambda item: item[0])
            what = f"{name} {at}, best of {len(differences)} others ({best or 'usual'})"
            found.append(Difference(d.values, what.strip(), digits=digits))
    return found


def growth(small: Sequence[float], large: Sequence[float], name: str, digits: int = 1) -> Difference:
    """Return how much larger a gain is at the second place than at the first, seed by seed."""
    return Difference(tuple(b - a for a, b in zip(small, large, strict=True)), name, digits=digits)


# -- rules -----------------------------------------------------------------------------------------------


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


def not_above(differences: Sequence[Difference]) -> str:
    """Return the verdict on "no difference is clearly above zero": *holds* when no interval lies above it."""
    counted = [d for d in differences if d.n > 1]
    above = [d for d in counted if d.sign == "above"]
    return UNTESTED if not counted else HOLDS if not above else FAILS if above == counted else PARTLY


def undecided(differences: Sequence[Difference]) -> str:
    """Return the verdict on "nothing changes": *holds* when every interval includes zero, else *partly*."""
    return HOLDS if all(d.sign == "open" for d in differences if d.n > 1) else PARTLY


def small(differences: Sequence[Difference], limit: float) -> str:
    """Return the verdict on "nothing changes by more than ``limit``", by means: *holds* or *partly*."""
    return HOLDS if all(abs(d.mean) <= limit for d in differences if d.n > 1) else PARTLY


RULES: dict[str, Callable[..., str]] = {
    "above": verdict_of,
    "below": lambda differences: verdict_of(differences, "below"),
    "not above": not_above,
    "undecided": undecided,
    "small": small,
}
"""Rules of a verdict by their name in ``claims.yml``; ``small`` takes a limit."""


def conclude(
    differences: Sequence[Difference], data: str, *, word: str = "", lead: str = "", missing: str = ""
) -> Verdict:
    """Return a verdict with its evidence; untested when no condition has two seeds on both sides.

    ``lead`` says what the numbers mean, ``missing`` names the runs that would have to be recorded.
    """
    word = word or verdict_of(differences)
    counted = [d for d in differences if d.n > 1]
    if word == UNTESTED or not counted:
        single = "; ".join(str(d) for d in differences[:SHOWN])
        return no_record(missing, f"One seed only: {single}." if single else "")
    lead = _upper(lead)
    if all(d.sign == "open" for d in counted) and word == PARTLY:
        lead = f"Too close to call. {lead}" if lead else "Too close to call"
    shown = "; ".join(str(d) for d in counted[:SHOWN])
    more = f"; and {len(counted) - SHOWN} more" if len(counted) > SHOWN else ""
    n = min(d.n for d in counted)
    return Verdict(word, f"{f'{lead}: ' if lead else ''}{shown}{more}.", n, data, test_name(n))


def at_all_rates(verdict: Verdict, differences: Sequence[Difference], rates: Iterable[float]) -> Verdict:
    """Name the rates of a claim without a record; a claim about all of them then holds only partly."""
    missing = [f"{r:g}" for r in rates if not any(f"rate {r:g}" in d.name for d in differences if d.n > 1)]
    if verdict.word == UNTESTED or not missing:
        return verdict
    word = PARTLY if verdict.word == HOLDS else verdict.word
    return replace(verdict, word=word, evidence=f"{verdict.evidence} No record at {', '.join(missing)}.")


def no_record(missing: str, said: str = "") -> Verdict:
    """Return the verdict of a claim whose runs were not recorded."""
    need = f"No recorded runs{f' of {missing}' if missing else ''} with two seeds or more."
    return Verdict(UNTESTED, f"{need} {said}".strip())


def data_of(table: pd.DataFrame) -> str:
    """Return data and preset of the runs in a table, as text."""
    if table.empty:
        return ""
    pairs = table[["dataset", "preset"]].drop_duplicates()
    kind = "on bundled data" if set(pairs["dataset"]) <= BUNDLED else "on"
    return f"{kind} {'; '.join(f'{d}, {p}' for d, p in pairs.itertuples(index=False))}"


def usual(runs: Runs) -> pd.DataFrame:
    """Return the image-text runs with usual settings."""
    return select(runs.retrieval, variant="")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
