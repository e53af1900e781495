"""Claims and report lines of ``claims.yml``, and the comparisons that decide them."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ncbook.compare import Difference, growth
from ncbook.effects import STUDIES, with_shares
from ncbook.evidence import (
    CATEGORY_CONDITIONS,
    CONDITIONS,
    PLACE,
    REGIONS,
    Line,
    Region,
    Verdict,
    best_other,
    compare,
    conclude,
    conditions_of,
    line_of,
    within,
)
from ncbook.measurements import probed
from ncbook.runs import RECALLS, Runs, select, usual_value

PAPER_OF = {"L": "L2RM", "O": "OMIT", "R": "REPAIR", "U": "UOT-RCL"}  # by the first letter of a claim
IMAGE_MB = 37 * 1024 * 4 / 1e6  # of an image in SGR's bank at the papers' size: 36 regions and their mean
OPTIONS = re.compile(r"^(matching|marginals|variant)=")  # named by their value alone


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim, as written in ``claims.yml``."""

    # A variant of the paper's method or column = value pairs, or a list. ``*`` in a variant matches every
    # recorded value of one option; as a column's value it means every other recorded value.
    ours: Any = None
    theirs: Any = None
    best: str = ""  # column in which ``ours`` is compared with the best of ``others``
    others: Sequence[str] = ()  # values of that column
    column: str = ""  # of the same runs, from which ``minus``, a column or a number, is taken
    minus: str | float = 0
    # By default rSum, or mean average precision for labels. In a list, metrics of folds (``folds.``) count
    # where the test set has folds.
    metric: str | Sequence[str] = ""
    on: str = ""  # options of other encoders, as in a variant, which both variants have too
    where: Mapping[str, Any] = field(default_factory=dict)  # column = value pairs; a list means any of it
    query: str = ""  # further condition, as DataFrame.query takes it, instead of the paper's
    rates: Sequence[float] = ()  # that the claim speaks of, all of them needed; every recorded one when empty
    values: str = ""  # condition on the ``value`` of a matched variant or column; ``usual`` is the usual one
    conditions: Sequence[str] = ()  # columns that must agree; the usual ones by default
    share: float = 1.0  # factor of ``theirs``: 0.5 compares with half of its value
    growth: Sequence[tuple[float, float]] = ()  # pairs of rates: the difference at the second minus the first
    average: bool = False  # lists in ``ours`` and ``theirs`` are averaged, not combined
    digits: int | None = None  # by default 1, or 3 for labels and columns
    name: str | None = None  # text before the condition, with {ours}, {theirs} and {metric}
    rule: str = "above"  # claimed region of the differences: name in ncbook.evidence.REGIONS
    margin: float = 0  # of the rules ``equal``, ``not above`` and ``not below``

    @property
    def region(self) -> Region:
        """Where the claim says that the differences lie."""
        low, high = (end * self.margin if math.isfinite(end) else end for end in REGIONS[self.rule])
        return low, high

    @property
    def test(self) -> str:
        """The claimed region, as text."""
        texts = {"above": "> 0", "below": "< 0", "equal": f"within ±{self.margin:g}"}
        texts |= {"not above": f"< {self.margin:g}", "not below": f"> −{self.margin:g}"}
        return f"difference {texts[self.rule]}"


@dataclass(frozen=True)
class Claim:
    """A claim that comparisons decide, as written in ``claims.yml``."""

    paper: str
    compare: Sequence[Comparison]  # all of them count
    # Where given, these decide on the claim's own data in preset paper, ``compare`` says what else is seen:
    # a table often compares a method on one model with others on other models.
    printed: Sequence[Comparison] = ()
    also_on: str = ""  # ``printed`` are then the comparisons, and again on these encoders, as in ``on``
    data: Sequence[str] = ()  # that the claim speaks of; those of the paper by default
    models: Sequence[str] = ()  # that the claim speaks of; those of the paper by default
    why: str = ""  # meaning of the numbers
    needs: str = ""  # part of the claim that records cannot decide: what runs would have to store
    missing: str = ""  # runs that would have to be recorded
    probe: str = ""  # part of a probe (book/probes) whose measurements count in the place of records

    @property
    def of_shares(self) -> Claim | None:
        """The claim with shares of the loss in place of rSum or mAP; None without such a comparison."""
        pairs = [
            replace(one, metric="won_back", digits=2)
            for one in self.compare
            if one.metric in ("", "rsum", "folded.rsum")
            and "mrate" in (one.conditions or _conditions(self.paper))
            and not (one.column or one.growth or one.average or one.share != 1)
        ]
        return replace(self, compare=pairs, printed=()) if pairs and self.paper in STUDIES else None

    def verdict(self, runs: Runs) -> Verdict:
        """Return the verdict on the claim from recorded runs."""
        data = self.data or _papers()[self.paper]["data"]
        table, lines = probed(self.probe) if self.probe else runs_of(self.paper, runs), list[Line]()
        if self.printed:
            lines += self._lines(self.printed, select(table, dataset=list(data), preset="paper"))
        places = {line.place for line in lines}
        lines += [line for line in self._lines(self.compare, table) if line.place not in places]
        test = "; ".join(dict.fromkeys(one.test for one in (*self.printed, *self.compare)))
        return conclude(lines, data, test=test, why=self.why, missing=self.missing)

    def _lines(self, compared: Sequence[Comparison], table: pd.DataFrame) -> Iterator[Line]:
        """Yield what the recorded runs of each place say in some comparisons."""
        general = _papers()[self.paper]
        data, models = self.data or general["data"], self.models or general.get("models", ())
        columns = [c for c in PLACE if c in (compared[0].conditions or _conditions(self.paper))]
        needed = table.loc[
            functools.reduce(pd.Index.union, (_rows(self.paper, c, table).index for c in compared))
        ]
        for key, part in needed.groupby(columns) if len(needed) else ():
            place = {"dataset": data[0], **dict(zip(columns, key, strict=True))}
            judged = [(d, one.region) for one in compared for d in differences(self.paper, one, part)]
            own = place["dataset"] in data and (
                "model" not in place or not models or place["model"] in models
            )
            if any(d.n for d, _ in judged):
                own = own and (compared is self.printed or not self.printed)
                noise = place.get("protocol")
                foreign = "protocol" in general and noise not in (None, general["protocol"])
                yield line_of(place, judged, own=own, foreign=foreign, needs=self.needs)


@functools.cache
def content() -> dict[str, Any]:
    """Return ``claims.yml`` as it stands."""
    claims: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("claims.yml").read_text("utf8"))
    return claims


def _papers() -> dict[str, dict[str, Any]]:
    papers: dict[str, dict[str, Any]] = content()["papers"]
    return papers


@functools.cache
def compared() -> dict[str, Claim]:
    """Return the claims of ``claims.yml`` by their number."""
    entries = {}
    for name, entry in content()["claims"].items():
        parts = {k: [Comparison(**one) for one in entry[k]] for k in ("compare", "printed") if k in entry}
        if on := entry.get("also_on"):
            parts["printed"] = [*parts["compare"], *(replace(one, on=on) for one in parts["compare"])]
        entries[name] = Claim(**{**entry, **parts, "paper": PAPER_OF[name[0]]})
    return entries


@functools.cache
def untested() -> dict[str, str]:
    """Return the reason of every claim that nothing here can decide."""
    return {name: one["why"] for one in content()["untested"] for name in one["claims"]}


def reported(paper: str) -> list[Comparison]:
    """Return the comparisons of a paper's report."""
    return [Comparison(**one) for one in content()["reports"][paper]]


# -- comparisons of claims.yml ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def runs_of(paper: str, runs: Runs) -> pd.DataFrame:
    """Return the recorded runs of a paper's task, with derived columns.

    ``lost`` is what the last epoch loses against the selected one; ``called_share`` and ``clean_share`` are
    the shares of training pairs that a method calls matched and that are; ``noisy_change`` is the change of
    the validation rSum in the epoch in which the loss on noisy pairs begins; ``fold_gap`` is the rSum on all
    test images minus the mean of that on folds of 1,000; ``folded.<metric>`` is the mean on these folds where
    the test set has them, else the metric on all of it; ``row`` is "method on model"; ``text_share`` is the
    share of captions in REPAIR's two banks, for SGR in preset paper; ``won_back`` is the share of the loss
    won back, at rates from the first of the figure of effects on.
    """
    table = runs.category if paper == "UOT-RCL" else runs.retrieval
    if paper in STUDIES and len(table):
        table = with_shares(table, STUDIES[paper], min(STUDIES[paper].shown))
    if "last.map_avg" in table:
        table = table.assign(lost=table["map_avg"] - table["last.map_avg"])
    if {"called_matched", "train_pairs", "noise.true_rate"} <= set(table):
        called = table["called_matched"] / table["train_pairs"]
        table = table.assign(called_share=called, clean_share=1 - table["noise.true_rate"])
    if "before_noisy" in table:
        table = table.assign(noisy_change=table["after_noisy"] - table["before_noisy"])
    if "folds.rsum" in table:
        table = table.assign(fold_gap=table["rsum"] - table["folds.rsum"])
    if "model" in table:
        folds = {m: table.get(f"folds.{m}", table[m]).fillna(table[m]) for m in RECALLS if m in table}
        table = table.assign(**{f"folded.{m}": values for m, values in folds.items()})
        table = table.assign(row=table["method"] + " on " + table["model"])
    if {"bank_mb", "option.bank_size"} <= set(table):
        images = 2 * table["option.bank_size"] * IMAGE_MB
        sized = (table["model"] == "sgr") & (table["preset"] == "paper")
        table = table.assign(text_share=(1 - images / table["bank_mb"]).where(sized))
    return table


def _conditions(paper: str) -> Sequence[str]:
    return CATEGORY_CONDITIONS if paper == "UOT-RCL" else CONDITIONS


def differences(paper: str, one: Comparison, table: pd.DataFrame) -> list[Difference]:
    """Return the differences of one comparison under every recorded condition, from :func:`runs_of`.

    A pair of settings, or a rate of the comparison, without a record gives one difference without values.
    """
    if one.growth:
        grown = []
        for rates in one.growth:
            small, large = (differences(paper, replace(one, growth=(), rates=(r,)), table) for r in rates)
            name = f"{name_of(paper, one)} at {rates[1]:g} minus at {rates[0]:g}".strip()
            grown += [growth(a, b, name) for a, b in zip(small, large, strict=True)]
        return grown
    table = _rows(paper, one, table)
    grown, column = [], "noise_rate" if paper == "UOT-RCL" else "mrate"
    for rate in one.rates or (None,):
        at, part = ("", table) if rate is None else (f"rate {rate:g}", select(table, **{column: float(rate)}))
        for name, some in _compared(paper, one, part):
            grown += some or [Difference((), f"{name} {at}".strip())]
    return grown


def _rows(paper: str, one: Comparison, table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that a comparison is about."""
    query = one.query or _papers()[paper].get("query", "")
    if query and len(table):  # on the named columns alone: pandas parses the name of each
        named = {word for word in re.findall(r"\w+", query) if word in table}
        table = table[table[list(named)].eval(query)]
    table = select(table, **{k: _matched(table, k, v) for k, v in one.where.items()})
    of_method = one.best or one.column or isinstance(one.ours, Mapping)
    return table if of_method else select(table, **_papers()[paper]["of"])


def _compared(paper: str, one: Comparison, table: pd.DataFrame) -> Iterator[tuple[str, list[Difference]]]:
    """Yield the name of each pair of settings and metric of a comparison, and its differences."""
    labels = paper == "UOT-RCL"
    how: dict[str, Any] = {
        "digits": one.digits or (3 if labels or one.column else 1),
        "conditions": one.conditions or _conditions(paper),
    }
    metrics = _list(one.metric or ("map_avg" if labels else "rsum"))
    if one.column:
        yield one.name or one.column, within(table, one.column, one.minus, name=one.name or "", **how)
    elif one.best:
        name, least = name_of(paper, one), len(one.others)
        yield (
            name,
            best_other(
                table, one.best, one.ours, one.others, name=name, least=least, value=metrics[0], **how
            ),
        )
    else:
        sides = (_sides(table, one, side) for side in (one.ours, one.theirs))
        settings = [(ours, theirs) for ours, theirs in itertools.product(*sides) if ours != theirs]
        there = [m for m in metrics if not m.startswith("folds.") or (m in table and table[m].notna().any())]
        read = {*how["conditions"], *there, "seed", *(k for pair in settings for side in pair for k in side)}
        table = table[[c for c in read if c in table]]  # a selection copies every column
        parts = list(conditions_of(table, how["conditions"]))
        for ours, theirs in settings:
            names = [name_of(paper, replace(one, ours=ours, theirs=theirs), m) for m in there]
            each = compare(parts, ours, theirs, there, names=names, share=one.share, digits=how["digits"])
            yield from zip(names, each, strict=True)
        if not settings:
            yield name_of(paper, one), []


def name_of(paper: str, one: Comparison, metric: str = "") -> str:
    """Return the text of a comparison before its condition."""
    if one.name is None and one.best:
        return ""
    ours, theirs = (_label(side, _papers()[paper]["full"], one.on) for side in (one.ours, one.theirs))
    template = ("on {folder}, " if one.on else "") + ("{ours} − {theirs}," if one.name is None else one.name)
    folder = one.on.partition("folder=")[2].partition(",")[0]
    return template.format(folder=folder, ours=ours, theirs=theirs, metric=metric.removeprefix("folded."))


def _label(side: Any, full: str, on: str) -> str:
    values = side.values() if isinstance(side, Mapping) else [side]
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    if on:
        texts = [", ".join(v for v in text.split(", ") if v not in on.split(", ")) for text in texts]
    return ", ".join(OPTIONS.sub("", text) or full for text in texts)


def _sides(table: pd.DataFrame, one: Comparison, side: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of one side of a comparison, as column = value pairs."""
    if not isinstance(side, Mapping):
        variants = [", ".join(sorted(filter(None, f"{v}, {one.on}".split(", ")))) for v in _list(side)]
        side = {"variant": variants if one.on else side}
    if one.average:
        yield side
        return
    for values in itertools.product(*(_recorded(table, one, k, _list(v)) for k, v in side.items())):
        yield dict(zip(side, values, strict=True))


def _recorded(table: pd.DataFrame, one: Comparison, column: str, values: list[Any]) -> list[Any]:
    """Return the values of one column of a side, patterns replaced by recorded values that fit them."""
    starred: list[Any]
    if column == "variant":
        starred = sorted({v for p in values if "*" in p for v in matching(table, p)})
        option = starred[0].partition("=")[0] if starred else ""
        numbers = [float(v.partition("=")[2].partition(",")[0]) for v in starred] if one.values else []
        usual = usual_value(select(table, variant=starred), option)
    else:
        starred = sorted(set(table[column].dropna())) if values == ["*"] and column in table else []
        numbers, usual = starred, None
    if one.values and starred:
        frame = pd.DataFrame({"starred": starred, "value": numbers, "usual": usual})
        starred = list(frame.query(one.values)["starred"])
    return [*(v for v in values if not (isinstance(v, str) and "*" in v)), *starred]


def matching(table: pd.DataFrame, pattern: str) -> list[str]:
    """Return the recorded variants that fit a pattern; ``*`` matches the value of one option."""
    expression = re.compile(re.escape(pattern).replace(r"\*", "[^,]*"))
    return sorted({v for v in table.get("variant", ()) if expression.fullmatch(v)})


def _matched(table: pd.DataFrame, column: str, value: Any) -> Any:
    """Return a condition on a column with the patterns of variants replaced by recorded ones."""
    if column != "variant" or not isinstance(value, list):
        return value
    return [v for pattern in value for v in (matching(table, pattern) if "*" in pattern else [pattern])]


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
