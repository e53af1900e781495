"""From recorded runs to a verdict: comparisons under equal conditions, and the rules of a verdict.

One rule for every claim. A claim says where mean differences lie: above zero, below it, within a margin, or
not above a margin. A line of evidence collects the comparisons of one place (data, model, protocol, preset).

- It supports the claim when the 95 % interval of every comparison lies inside the claimed region.
- It contradicts the claim when comparisons lie outside by the test of Simes at 5 %, which allows for their
  number.
- Else it is too close to call. "Within a margin" so becomes the equivalence test (two one-sided tests of
  2.5 % each): few seeds give wide intervals and prove nothing.
- One seed or two decide nothing. Where a part of what the claim speaks of was not recorded, or not stored,
  the rest can support the claim in part only.

The paper's own noise protocol decides before others, where three seeds of it were recorded.

A claim *holds* or *does not hold* on the data that it names, with a model that it names, in the preset
``paper``. Everywhere else, smaller networks and shorter schedules on the same data included, it is *seen here
too* or *not seen here*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ncbook.compare import LEVEL, Difference, by_seed, paired
from ncbook.marks import marks_of
from ncbook.runs import BUNDLED, select

HOLDS, FAILS = "holds", "does not hold"
SEEN, MIXED, UNSEEN = "seen here too", "seen in part", "not seen here"
CLOSE, UNRUN, UNTESTED = "too close to call", "not run here", "cannot be tested here"
VERDICTS = (HOLDS, FAILS, SEEN, MIXED, UNSEEN, CLOSE, UNRUN, UNTESTED)
SHOWN, NAMED = 12, 2  # comparisons, and names of missing ones, that are written out
CONDITIONS = ("dataset", "preset", "model", "mrate", "protocol")
CATEGORY_CONDITIONS = ("dataset", "preset", "protocol", "noise_rate")
PLACE = ("dataset", "model", "protocol", "preset")
RATES = ("mrate", "noise_rate")
FOR, PART, AGAINST, OPEN, NOTHING = "for", "part", "against", "open", "nothing"  # what a line says

Region = tuple[float, float]
"""Where a claim says that a mean difference lies."""
REGIONS = {
    "above": (0, math.inf),
    "below": (-math.inf, 0),
    "equal": (-1, 1),
    "not above": (-math.inf, 1),
    "not below": (-1, math.inf),
}
"""Claimed regions by their name in ``claims.yml``; a 1 means the margin."""


@dataclass(frozen=True)
class Line:
    """What the records of one place say about a claim.

    Parameters
    ----------
    place : str
        Data, model, protocol and preset.
    says : {"for", "part", "against", "open", "nothing"}
        ``part``: what was tested supports the claim, the rest could not be; ``nothing``: fewer than three
        seeds.
    text : str
        The comparisons, with intervals.
    n : int
        Seeds of the smallest comparison that was tested.
    visible : str
        The smallest difference from zero that these seeds show, see :attr:`.Difference.visible`; that of the
        widest interval.
    tier : int
        0 for the claim's own data, 1 for other real data, 2 for drawn scenes.
    dataset, preset : str
    why : str
        What was not recorded, or what to know about the place.
    tested : tuple of (Difference, Region)
        The comparisons with three seeds, those of the text first.
    foreign : bool
        Whether the noise is by another protocol than the paper's.
    """

    place: str
    says: str
    text: str
    n: int = 0
    visible: str = ""
    tier: int = 2
    dataset: str = ""
    preset: str = ""
    why: str = ""
    tested: tuple[tuple[Difference, Region], ...] = ()
    foreign: bool = False

    @property
    def weakest(self) -> Difference:
        """The tested comparison whose mean lies farthest from the claimed region, or least inside it."""
        return min(self.tested, key=lambda pair: min(pair[0].mean - pair[1][0], pair[1][1] - pair[0].mean))[0]

    @property
    def word(self) -> str:
        """The verdict of this line alone."""
        words = {FOR: HOLDS, AGAINST: FAILS, OPEN: CLOSE, PART: MIXED}
        words[NOTHING] = "fewer than three seeds: cannot be decided"
        if self.tier:
            words |= {FOR: SEEN, AGAINST: UNSEEN, OPEN: f"{CLOSE} here"}
        return words[self.says]

    def __str__(self) -> str:
        remark = f" ({self.why})" if self.why else ""
        seeds = f"; n = {self.n}, smallest visible difference {self.visible}" if self.n else ""
        return f"{self.place}: {self.word}{remark}{seeds}"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim.

    Parameters
    ----------
    word : str
        One of :data:`VERDICTS`.
    lines : tuple of Line
        Evidence by place, the claim's own data first, then photographs, then drawn scenes.
    test : str
        What the claim says of the differences.
    why : str
        What the numbers mean, or the reason why nothing could be tested.
    """

    word: str
    lines: tuple[Line, ...] = ()
    test: str = ""
    why: str = ""

    @property
    def n(self) -> int:
        """Seeds in the smallest comparison; 0 when nothing was tested."""
        return min((line.n for line in self.lines if line.n), default=0)

    @property
    def data(self) -> str:
        """Names of the data that were looked at, in the order of the lines."""
        return ", ".join(dict.fromkeys(line.dataset for line in self.lines))

    @property
    def evidence(self) -> str:
        """Reason, lines and their numbers, as text."""
        lines = [f"{line}. {line.text}" for line in self.lines]
        return "\n".join(filter(None, [self.why, *lines]))


# -- comparisons -----------------------------------------------------------------------------------------


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
    parts: Iterable[tuple[str, pd.DataFrame]],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    values: Sequence[str] = ("rsum",),
    *,
    digits: int = 1,
    names: Sequence[str] = ("",),
    share: float = 1.0,
) -> list[list[Difference]]:
    """Return for each metric the difference of two settings where both were recorded.

    ``parts`` come from :func:`conditions_of`; ``ours`` and ``theirs`` are column = value pairs of either
    side, ``values`` metrics and ``names`` the text before the condition of each; ``share`` is a factor of
    ``theirs``.
    """
    sides = [(at, select(part, **ours), select(part, **theirs)) for at, part in parts]
    by_metric = [
        [paired(a, b, value, name=f"{name} {at}".strip(), digits=digits, share=share) for at, a, b in sides]
        for value, name in zip(values, names, strict=True)
    ]
    return [[d for d in of_metric if d.n] for of_metric in by_metric]


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
    seen = []
    for at, rows in conditions_of(table.dropna(subset=columns), conditions):
        values = rows[ours] - (rows[theirs] if isinstance(theirs, str) else theirs)
        d = by_seed(values.groupby(rows["seed"]).mean(), f"{name} {at}".strip(), digits)
        seen.append(replace(d, marks=marks_of(rows, ours)))
    return seen


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
    against: str = ", best of {n} others ({best})",
) -> list[Difference]:
    """Return ours minus the best of the others, by mean, under every condition where both were recorded.

    Every other with a seed of ours counts, by the mean difference over the seeds that both have; conditions
    with fewer than ``least`` others are left out. ``against`` ends the name of a difference.
    ``ours`` and ``others`` (by default all recorded) are values of ``column``, ``conditions`` columns that
    must agree; the rest is as in :func:`compare`.
    """
    rivals = set(table.get(column, ())) if others is None else set(others)
    seen = []
    for at, part in conditions_of(table, conditions):
        mine = select(part, **{column: ours})
        differences = []
        for other in sorted(rivals - {ours}):
            d = paired(mine, select(part, **{column: other}), value, digits=digits)
            if d.n:
                differences.append((d.mean, other, d))
        if len(differences) >= least:
            _, best, d = min(differences, key=lambda item: item[0])
            words = against.format(n=len(differences), best=best or "usual")
            seen.append(replace(d, name=f"{name} {at}{words}".strip()))
    return seen


# -- rules -----------------------------------------------------------------------------------------------


def inside(d: Difference, region: Region) -> bool:
    """Return whether the interval of a difference lies in a region."""
    low, high = d.interval
    return region[0] < low and high < region[1]


def p_outside(d: Difference, region: Region) -> float:
    """Return the p-value of "the mean lies in the region": 1 where the measured mean does."""
    beyond = [end for end, away in zip(region, (d.mean < region[0], d.mean > region[1]), strict=True) if away]
    return d.p_of(beyond[0]) if beyond else 1.0


def line_of(
    place: Mapping[str, str],
    compared: Sequence[tuple[Difference, Region]],
    *,
    own: bool = False,
    foreign: bool = False,
    needs: str = "",
) -> Line:
    """Return what the comparisons of one place say about a claim.

    Parameters
    ----------
    place : mapping
        Values of the columns in :data:`PLACE`.
    compared : sequence of (Difference, Region)
        Every comparison of the claim; one without values was not recorded.
    own : bool
        Whether the claim speaks of this data and this model.
    foreign : bool
        Whether the noise is by another protocol than the paper's.
    needs : str
        Part of the claim that records cannot decide.
    """
    tested = [(d, region) for d, region in compared if d.judged]
    few = _listed([d.name for d, _ in compared if d.n and not d.judged])
    missing = _listed([d.name for d, _ in compared if not d.n])
    right = sum(inside(d, region) for d, region in tested)
    against = sorted(p_outside(d, region) for d, region in tested)
    wrong = sum(p < 1 - LEVEL for p in against)
    refuted = any(p < (1 - LEVEL) * (i + 1) / len(against) for i, p in enumerate(against))  # Simes
    whys = [f"{what}: {names}" for what, names in (("too few seeds", few), ("no record", missing)) if names]
    whys += [f"needs {needs}"] if needs else []
    says, why = OPEN, ". ".join(whys)
    if refuted or not tested:
        says, why = AGAINST if refuted else NOTHING, ""
    elif right == len(tested):
        says = PART if whys else FOR
    own = own and place["preset"] == "paper"
    widest = max((d for d, _ in tested), key=lambda d: d.visible, default=Difference(()))
    count = f"{right} of {len(tested)} inside the claimed region, {wrong} outside: "
    shown = [d for d, _ in compared if d.n]
    if len(shown) > SHOWN:  # those farthest from the claim, as far as they were tested
        tested.sort(key=lambda pair: p_outside(*pair))
        shown = [d for d, _ in tested] or shown
    more = f"; and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    drawn = place["dataset"] in BUNDLED
    return Line(
        ", ".join(filter(None, (place.get(c, "") for c in PLACE))),
        says,
        f"{count if len(tested) > 1 else ''}{'; '.join(map(str, shown[:SHOWN]))}{more}.",
        min((d.n for d, _ in tested), default=0),
        f"{widest.visible:.{widest.digits}f}" if tested else "",
        0 if own else 2 if drawn else 1,
        place["dataset"],
        place["preset"],
        why,
        tuple(tested),
        foreign,
    )


def _listed(names: Sequence[str]) -> str:
    """Return some names as text, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{'; '.join(name.strip(', ') for name in names[:NAMED])}{more}"


def deciding(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of evidence with a test on the best data and noise, of lines in a verdict's order."""
    tested = [line for line in lines if line.says != NOTHING]
    return [line for line in tested if (line.tier, line.foreign) == (tested[0].tier, tested[0].foreign)]


def conclude(
    lines: Iterable[Line], data: Sequence[str], *, test: str, why: str = "", missing: str = ""
) -> Verdict:
    """Return the verdict on a claim about ``data`` from its lines of evidence.

    The best data with a test decide: the claim's own, else other real data, else drawn scenes; among them
    the noise of the paper's own protocol, where it was tested. A claim holds
    when every place on all of its own data supports it, and one place there refutes it. ``missing`` names the
    runs that would have to be recorded; without three seeds of any the claim was not run here.
    """
    ordered = sorted(lines, key=lambda line: (line.tier, line.foreign, line.place))
    best = deciding(ordered)
    said = {line.says for line in best}
    word = SEEN if said == {FOR} else MIXED if said & {FOR, PART} else UNSEEN if AGAINST in said else CLOSE
    if not best:
        word = UNRUN
        why = why if ordered else f"No recorded runs{f' of {missing}' if missing else ''}."
    elif best[0].tier == 0 and said & {AGAINST, OPEN}:
        word = FAILS if AGAINST in said else CLOSE
    elif said == {FOR} and {line.dataset for line in best if line.tier == 0} == set(data):
        word = HOLDS
    return Verdict(word, tuple(ordered), test, why)
