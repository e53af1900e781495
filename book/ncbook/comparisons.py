"""Claims and report lines of ``claims.yml``, and the comparisons that decide them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ncbook.compare import Difference
from ncbook.evidence import (
    CATEGORY_CONDITIONS,
    CONDITIONS,
    RULES,
    Verdict,
    at_all_rates,
    best_other,
    compare,
    conclude,
    data_of,
    robust_methods,
    within,
)
from ncbook.runs import Runs, select

PAPER_OF = {"L": "L2RM", "O": "OMIT", "R": "REPAIR", "U": "UOT-RCL"}  # by the first letter of a claim
OPTIONS = re.compile(r"^(matching|marginals|variant)=")  # named by their value alone


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim, as written in ``claims.yml``."""

    # A variant of the paper's method or column = value pairs, or a list. ``*`` in a variant matches every
    # recorded value of one option; as a column's value it means every other recorded value.
    ours: Any = None
    theirs: Any = None
    best: str = ""  # column in which ``ours`` is compared with the best of ``others``
    others: str | Sequence[str] = "recorded"  # or "robust", "robust and plain", a list of values
    least: int = 1  # number of others that such a comparison needs
    column: str = ""  # of the same runs, from which ``minus``, a column or a number, is taken
    minus: str | float = 0
    metric: str | Sequence[str] = ""  # by default rSum, or mean average precision for labels
    where: Mapping[str, Any] = field(default_factory=dict)  # column = value pairs; a list means any of it
    query: str = ""  # further condition, as DataFrame.query takes it
    values: str = ""  # condition on the ``value`` of a matched variant; ``usual`` is that of the usual runs
    conditions: Sequence[str] = ()  # columns that must agree; the usual ones by default
    digits: int | None = None  # by default 1, or 3 for labels and columns
    name: str | None = None  # text before the condition, with {ours}, {theirs} and {metric}
    turn: bool = False  # reverse the sign


@dataclass(frozen=True)
class Claim:
    """A claim that comparisons decide, as written in ``claims.yml``."""

    paper: str
    compare: Sequence[Comparison]  # all of them count
    rule: str = "above"  # name in ncbook.evidence.RULES
    limit: float | None = None  # of the rule ``small``
    decides: str = ""  # only differences whose name starts so decide; all when empty
    rates: Sequence[float] = ()  # that the claim speaks of
    data: Mapping[str, Any] | None = None  # runs whose data are named; by default those of the paper's method
    lead: str = ""  # meaning of the numbers
    missing: str = ""  # runs that would have to be recorded

    def verdict(self, runs: Runs) -> Verdict:
        """Return the verdict on the claim from recorded runs."""
        found = [d for one in self.compare for d in differences(self.paper, one, runs)]
        deciding = [d for d in found if d.name.startswith(self.decides)]
        word = RULES[self.rule](deciding, *(() if self.limit is None else (self.limit,)))
        of = _papers()[self.paper]["of"] if self.data is None else self.data
        data = data_of(select(runs_of(self.paper, runs), **of))
        verdict = conclude(found, data, word=word, lead=self.lead, missing=self.missing)
        return at_all_rates(verdict, found, self.rates) if self.rates else verdict


@functools.cache
def content() -> dict[str, Any]:
    """Return ``claims.yml`` as it stands."""
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("claims.yml").read_text("utf8"))
    return found


def _papers() -> dict[str, dict[str, Any]]:
    papers: dict[str, dict[str, Any]] = content()["papers"]
    return papers


@functools.cache
def compared() -> dict[str, Claim]:
    """Return the claims of ``claims.yml`` by their number."""
    found = {}
    for name, entry in content()["claims"].items():
        parts = [Comparison(**one) for one in entry["compare"]]
        found[name] = Claim(**{**entry, "paper": PAPER_OF[name[0]], "compare": parts})
    return found


@functools.cache
def untested() -> dict[str, str]:
    """Return the reason of every claim that nothing here can decide."""
    return {name: one["why"] for one in content()["untested"] for name in one["claims"]}


def reported(paper: str) -> list[Comparison]:
    """Return the comparisons of a paper's report."""
    return [Comparison(**one) for one in content()["reports"][paper]]


# -- comparisons of claims.yml ---------------------------------------------------------------------------


def runs_of(paper: str, runs: Runs, query: str = "") -> pd.DataFrame:
    """Return the recorded runs that a paper's claims are about, or those of ``query``, with derived columns.

    ``lost`` is what the last epoch loses against the selected one, ``called_share`` and ``clean_share`` are
    the shares of training pairs that a method calls matched and that are.
    """
    table = runs.category if paper == "UOT-RCL" else runs.retrieval
    if "last.map_avg" in table:
        table = table.assign(lost=table["map_avg"] - table["last.map_avg"])
    if {"called_matched", "train_pairs", "true_rate"} <= set(table):
        called = table["called_matched"] / table["train_pairs"]
        table = table.assign(called_share=called, clean_share=1 - table["true_rate"])
    query = query or _papers()[paper].get("query", "")
    return table.query(query) if query and len(table) else table


def differences(paper: str, one: Comparison, runs: Runs) -> list[Difference]:
    """Return the differences of one comparison under every recorded condition."""
    labels = paper == "UOT-RCL"
    table = runs_of(paper, runs, one.query)
    table = select(table, **{k: _matched(table, k, v) for k, v in one.where.items()})
    how: dict[str, Any] = {
        "digits": one.digits or (3 if labels or one.column else 1),
        "conditions": one.conditions or (CATEGORY_CONDITIONS if labels else CONDITIONS),
    }
    metrics = _list(one.metric or ("map_avg" if labels else "rsum"))
    if one.column:
        return within(table, one.column, one.minus, name=one.name or "", **how)
    if one.best:
        robust = robust_methods()
        every = {"robust": robust, "robust and plain": ("plain", *robust), "recorded": None}
        others = every[one.others] if isinstance(one.others, str) else one.others
        best = functools.partial(best_other, table, one.best, one.ours, others, **how, least=one.least)
        return [d for m in metrics for d in best(value=m, name=name_of(paper, one, m))]
    table = table if isinstance(one.ours, Mapping) else select(table, **_papers()[paper]["of"])
    found: list[Difference] = []
    sides = itertools.product(_sides(table, one, one.ours), _sides(table, one, one.theirs), metrics)
    for ours, theirs, metric in sides:
        if ours != theirs:
            name = name_of(paper, replace(one, ours=ours, theirs=theirs), metric)
            found += compare(table, ours, theirs, metric, name=name, **how)
    return [Difference(tuple(-v for v in d.values), d.name, d.digits) for d in found] if one.turn else found


def name_of(paper: str, one: Comparison, metric: str = "") -> str:
    """Return the text of a comparison before its condition."""
    if one.name is None and one.best:
        return ""
    ours, theirs = (_label(side, _papers()[paper]["full"]) for side in (one.ours, one.theirs))
    template = "{ours} − {theirs}," if one.name is None else one.name
    return template.format(ours=ours, theirs=theirs, metric=metric)


def _label(side: Any, full: str) -> str:
    values = side.values() if isinstance(side, Mapping) else [side]
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    return ", ".join(OPTIONS.sub("", text) or full for text in texts)


def _sides(table: pd.DataFrame, one: Comparison, side: Any) -> Iterator[dict[str, Any]]:
    """Yield the settings of one side of a comparison, as column = value pairs."""
    if isinstance(side, Mapping):
        recorded = {k: sorted(set(table.get(k, ()))) if v == "*" else _list(v) for k, v in side.items()}
        for values in itertools.product(*recorded.values()):
            yield dict(zip(side, values, strict=True))
        return
    patterns = _list(side)
    starred = sorted({v for p in patterns if "*" in p for v in matching(table, p)})
    for variant in [*(p for p in patterns if "*" not in p), *_narrowed(table, starred, one.values)]:
        yield {"variant": variant}


def _narrowed(table: pd.DataFrame, variants: list[str], condition: str) -> list[str]:
    """Return the variants whose first number meets a condition on ``value`` and ``usual``."""
    if not condition or not variants:
        return variants
    option = variants[0].partition("=")[0]
    usual = select(table, variant="")[option].max() if option in table else None
    values = [float(v.partition("=")[2].partition(",")[0]) for v in variants]
    frame = pd.DataFrame({"variant": variants, "value": values, "usual": usual})
    return list(frame.query(condition)["variant"])


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
