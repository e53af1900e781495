"""Claims of UOT-RCL that recorded runs of category retrieval can decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncbook._compare import Difference, paired
from ncbook._evidence import (
    CATEGORY_CONDITIONS,
    HOLDS,
    LABEL_NOISE,
    PARTLY,
    UNSUPERVISED,
    Finding,
    best_other,
    compare,
    conclude,
    conditions_of,
    data_of,
    growth,
    no_record,
    verdict_of,
    within,
)
from ncbook._ledger import judge
from ncbook.runs import Runs, select

if TYPE_CHECKING:
    import pandas as pd

RAPID = 0.25  # share of the value at 0.2 that is lost at 0.8: from there called rapid
SENSITIVE = 0.02  # mean average precision: a smaller change over a sweep is called low sensitivity
NO_PLC, NO_BHG, NO_SET = "plc=off", "lam=0", "confident=random"


def _noisy(runs: Runs) -> pd.DataFrame:
    """Runs with symmetric label noise; those without any are not what the paper speaks of."""
    table = select(runs.category, protocol="symmetric")
    return table[table["noise_rate"] > 0] if len(table) else table


def _usual(runs: Runs) -> pd.DataFrame:
    return select(_noisy(runs), variant="")


def _own(runs: Runs) -> pd.DataFrame:
    return select(_noisy(runs), method="uot_rcl")


def _data(runs: Runs) -> str:
    return data_of(_own(runs))


def _methods(table: pd.DataFrame) -> list[str]:
    return sorted(set(table["method"])) if "method" in table else []


def _without(runs: Runs, variant: str, value: str = "map_avg", **where: float) -> list[Difference]:
    """Full method minus a variant of it."""
    return compare(
        select(_own(runs), **where),
        {"variant": ""},
        {"variant": variant},
        value,
        digits=3,
        conditions=CATEGORY_CONDITIONS,
        name=f"full − {variant},",
    )


@judge("U01")
def best_everywhere(runs: Runs) -> Finding:
    """Both directions, against the best other method at each rate."""
    table, found = _usual(runs), []
    for direction in ("map_i2t", "map_t2i"):
        for d in best_other(
            table,
            "method",
            "uot_rcl",
            _methods(table),
            direction,
            digits=3,
            conditions=CATEGORY_CONDITIONS,
            least=3,
        ):
            found.append(Difference(d.values, f"{direction}, {d.name}", digits=3))
    return conclude(found, _data(runs), missing="uot_rcl and other category methods")


@judge("U02")
def supervised_fall(runs: Runs) -> Finding:
    """Mean average precision at 0.8 minus that at 0.2, supervised methods without defence."""
    table = _usual(runs)
    names = [m for m in _methods(table) if m not in (*UNSUPERVISED, *LABEL_NOISE, "zero_shot")]
    found, lost = [], []
    for method in names:
        low, high = (select(table, method=method, noise_rate=r) for r in (0.2, 0.8))
        d = paired(high, low, "map_avg", name=method, digits=3)
        if d.n > 1:
            found.append(d)
            lost.append(-d.mean / float(low["map_avg"].mean()))
    if not found:
        return no_record("supervised category methods at 0.2 and 0.8")
    average = sum(lost) / len(lost)
    verdict = verdict_of(found, "below")
    verdict = PARTLY if verdict == HOLDS and average < RAPID else verdict
    lead = f"{len(found)} methods lose {100 * average:.0f} % of their value on average (rapid: {RAPID:.0%})"
    return conclude(found, data_of(table), verdict=verdict, want="below", lead=lead)


@judge("U03")
def unsupervised_below(runs: Runs) -> Finding:
    """Mean of the supervised minus mean of the unsupervised methods per rate; turned at 0.8."""
    table = _usual(runs)
    plain = [m for m in _methods(table) if m not in (*UNSUPERVISED, *LABEL_NOISE, "zero_shot")]
    found = []
    for at, part in conditions_of(table, CATEGORY_CONDITIONS):
        means = [
            part[part["method"].isin(names)].groupby("seed")["map_avg"].mean()
            for names in (plain, UNSUPERVISED)
        ]
        values = (means[0] - means[1]).dropna()
        sign = -1 if part["noise_rate"].iloc[0] >= 0.8 else 1
        found.append(Difference(tuple(sign * float(v) for v in values), at, digits=3))
    lead = "supervised minus unsupervised on average, sign turned at 0.8"
    return conclude(
        [d for d in found if d.n], data_of(table), lead=lead, missing="both kinds of category methods"
    )


def _gain(runs: Runs, rate: float) -> tuple[float, ...]:
    table = select(_usual(runs), noise_rate=rate)
    best = best_other(
        table, "method", "uot_rcl", _methods(table), "map_avg", digits=3, conditions=CATEGORY_CONDITIONS
    )
    return best[0].values if best else ()


@judge("U04")
def gain_grows(runs: Runs) -> Finding:
    """Gain over the best other method at each rate minus that at the rate below."""
    found = []
    for low, high in ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8)):
        a, b = _gain(runs, low), _gain(runs, high)
        if a and len(a) == len(b):
            found.append(growth(a, b, f"gain at {high:g} minus at {low:g}", 3))
    return conclude(found, _data(runs), missing="uot_rcl and other category methods at several rates")


@judge("U11")
def steadier_than_elrcmr(runs: Runs) -> Finding:
    """Higher than ELRCMR, and less is lost between the selected and the last epoch."""
    table = _usual(runs)
    higher = compare(
        table,
        {"method": "uot_rcl"},
        {"method": "elrcmr"},
        "map_avg",
        digits=3,
        conditions=CATEGORY_CONDITIONS,
        name="uot_rcl − elrcmr,",
    )
    steadier: list[Difference] = []
    if "last.map_avg" in table:
        table = table.assign(lost=table["map_avg"] - table["last.map_avg"])
        part = table[table["noise_rate"] >= 0.6]
        steadier = compare(
            part,
            {"method": "elrcmr"},
            {"method": "uot_rcl"},
            "lost",
            name="loss to the last epoch, elrcmr − uot_rcl,",
            digits=3,
            conditions=CATEGORY_CONDITIONS,
        )
    return conclude([*higher, *steadier], _data(runs), missing="uot_rcl and elrcmr")


@judge("U12")
def every_component_helps(runs: Runs) -> Finding:
    """Full method minus each row of the ablation."""
    found = [d for v in (NO_PLC, NO_BHG, NO_SET) for d in _without(runs, v)]
    return conclude(found, _data(runs), missing=f"uot_rcl with {NO_PLC}, {NO_BHG}, {NO_SET}")


@judge("U13")
def label_correction_matters_most(runs: Runs) -> Finding:
    """The row without label correction is below the other rows."""
    found = []
    for other in (NO_BHG, NO_SET):
        found += compare(
            _own(runs),
            {"variant": other},
            {"variant": NO_PLC},
            "map_avg",
            digits=3,
            conditions=CATEGORY_CONDITIONS,
            name=f"{other} − {NO_PLC},",
        )
    return conclude(found, _data(runs), missing=f"uot_rcl with {NO_PLC}, {NO_BHG}, {NO_SET}")


@judge("U14")
def relation_matters_more_with_noise(runs: Runs) -> Finding:
    """What relation alignment gives at 0.8 minus what it gives at 0.2."""
    low, high = (_without(runs, NO_BHG, noise_rate=r) for r in (0.2, 0.8))
    found = [
        growth(a.values, b.values, "worth at 0.8 minus at 0.2", 3)
        for a, b in zip(low, high, strict=False)
        if a.n == b.n
    ]
    return conclude(found, _data(runs), missing=f"uot_rcl with {NO_BHG} at 0.2 and 0.8")


def _variants(runs: Runs, option: str) -> list[str]:
    found = {v for v in _own(runs).get("variant", ()) if v.startswith(f"{option}=") and "," not in v}
    return sorted(found)


@judge("U15")
def lambda_hardly_matters(runs: Runs) -> Finding:
    """Change of the result for lambda between 0.1 and 0.7."""
    names = [v for v in _variants(runs, "lam") if 0.1 <= float(v[4:]) <= 0.7]
    found = [d for v in names for d in _without(runs, v)]
    small = [abs(d.mean) <= SENSITIVE for d in found if d.n > 1]
    verdict = HOLDS if all(small) else PARTLY
    lead = f"low sensitivity: a change of at most {SENSITIVE:g}"
    return conclude(
        found, _data(runs), verdict=verdict, lead=lead, missing="uot_rcl with lam from 0.1 to 0.7"
    )


def _momenta(runs: Runs) -> pd.DataFrame:
    """Runs that differ from the usual in the momentum at most."""
    table = _own(runs)
    return table[table["variant"].isin(["", *_variants(runs, "gamma")])] if len(table) else table


def _higher(table: pd.DataFrame, high: Sequence[float], low: Sequence[float]) -> list[Difference]:
    """Every momentum in ``high`` minus every one in ``low``."""
    return [
        d
        for a in high
        for b in low
        for d in compare(
            table,
            {"option.gamma": a},
            {"option.gamma": b},
            "map_avg",
            digits=3,
            conditions=CATEGORY_CONDITIONS,
            name=f"gamma={a:g} − {b:g},",
        )
    ]


@judge("U16")
def high_momenta_are_better(runs: Runs) -> Finding:
    """At 0.2, momenta near 1 against momenta near 0."""
    found = _higher(select(_momenta(runs), noise_rate=0.2), (0.95, 0.99, 1.0), (0.0, 0.1))
    return conclude(found, _data(runs), missing="uot_rcl with other values of gamma at 0.2")


@judge("U17")
def fixed_labels_overfit(runs: Runs) -> Finding:
    """At 0.8, gamma = 1 loses more between the selected and the last epoch than 0.99 does."""
    table = select(_momenta(runs), noise_rate=0.8)
    if "last.map_avg" in table:
        table = table.assign(lost=table["map_avg"] - table["last.map_avg"])
    found = compare(
        table,
        {"option.gamma": 1.0},
        {"option.gamma": 0.99},
        "lost",
        digits=3,
        conditions=CATEGORY_CONDITIONS,
        name="loss to the last epoch, gamma=1 − 0.99,",
    )
    return conclude(found, _data(runs), missing="uot_rcl with gamma=1 at 0.8")


@judge("U18")
def prototypes_alone_are_worse(runs: Runs) -> Finding:
    """gamma = 0.99 against 0 and 0.1."""
    found = _higher(_momenta(runs), (0.99,), (0.0, 0.1))
    return conclude(found, _data(runs), missing="uot_rcl with gamma=0 and 0.1")


@judge("U19")
def usual_momentum_is_best(runs: Runs) -> Finding:
    """gamma = 0.99 against every other recorded value."""
    table = _momenta(runs)
    others = sorted(set(table.get("option.gamma", ())) - {0.99})
    found = _higher(table, (0.99,), others)
    return conclude(found, _data(runs), missing="uot_rcl with other values of gamma")


@judge("U21")
def corrected_labels_are_better(runs: Runs) -> Finding:
    """Share of right labels on the training set: corrected minus given, last epoch."""
    table = select(_own(runs), variant="")
    found = within(table, "corrected_accuracy", "given_accuracy", conditions=CATEGORY_CONDITIONS)
    return conclude(found, _data(runs), lead="share of right labels, corrected − given", missing="uot_rcl")


@judge("U23")
def growing_mass_helps(runs: Runs) -> Finding:
    """The growing transported mass against a fixed one."""
    names = [v for v in _own(runs).get("variant", ()) if v.startswith(("s_start=", "s_end="))]
    found = [d for v in sorted(set(names)) for d in _without(runs, v, "corrected_accuracy")]
    lead = "share of right corrected labels"
    return conclude(found, _data(runs), lead=lead, missing="uot_rcl with a fixed mass (s_start = s_end)")


@judge("U24")
def instances_hurt(runs: Runs) -> Finding:
    """Relations from transport against every pair for itself."""
    found = _without(runs, "relation=instance")
    return conclude(found, _data(runs), missing="uot_rcl with relation=instance")
