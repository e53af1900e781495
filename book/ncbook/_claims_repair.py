"""Claims of REPAIR that recorded runs can decide; each function names the ones it judges."""

from __future__ import annotations

from typing import Any

from ncbook._compare import Difference
from ncbook._evidence import (
    HOLDS,
    PARTLY,
    ROBUST,
    Finding,
    all_rates,
    best_other,
    compare,
    conclude,
    conditions_of,
    data_of,
    usual,
    verdict_of,
)
from ncbook._ledger import judge
from ncbook.runs import Runs, select

EASY: dict[str, Any] = {"protocol": "captions"}  # the protocol that the paper's wording points to
SEPARATES = 0.7  # area under the ROC curve from which labels are said to separate two groups
ACCURATE = 0.9  # precision that is called high
TRUSTED_SHARE, WRONG_SHARE = 0.1, 0.01  # Eq. 9: anchors of the soft labels


def _data(runs: Runs) -> str:
    return data_of(select(runs.retrieval, method="repair"))


def _rows(runs: Runs, ours: str, theirs: str) -> list[Difference]:
    """One row of the ablation minus another; the empty name is the full method."""
    table = select(runs.retrieval, method="repair", **EASY)
    names = [v.removeprefix("variant=") or "rc+npr" for v in (ours, theirs)]
    return compare(table, {"variant": ours}, {"variant": theirs}, name=f"{names[0]} − {names[1]},")


@judge("R01")
def best_at_every_rate(runs: Runs) -> Finding:
    """rSum against the best other method at each rate."""
    found = best_other(usual(runs), "method", "repair", ("plain", *ROBUST), least=3, **EASY)
    finding = conclude(found, _data(runs), missing="repair and other robust methods, captions moved alone")
    return all_rates(finding, found, (0.2, 0.4, 0.6))


@judge("R02")
def exceeds_mscn(runs: Runs) -> Finding:
    """rSum minus that of MSCN; the sign can be carried over, the size cannot."""
    found = compare(usual(runs), {"method": "repair"}, {"method": "mscn"}, name="repair − mscn,", **EASY)
    return conclude(found, _data(runs), missing="repair and mscn, captions moved alone")


@judge("R06")
def beats_ncr_on_dual_encoder(runs: Runs) -> Finding:
    """With a dual encoder REPAIR beats NCR."""
    found = []
    for model in ("vse", "vse_inf"):
        table = select(usual(runs), model=model, **EASY)
        found += compare(table, {"method": "repair"}, {"method": "ncr"}, name=f"{model}, repair − ncr,")
    return conclude(found, _data(runs), missing="repair and ncr on vse or vse_inf")


@judge("R07")
def dropping_beats_hard_labels(runs: Runs) -> Finding:
    """Noisy pairs dropped against noisy pairs with hard labels."""
    found = _rows(runs, "variant=hard+drop", "variant=hard")
    return conclude(found, _data(runs), missing="repair with variant=hard and hard+drop")


@judge("R08")
def soft_labels_help(runs: Runs) -> Finding:
    """Labels from rank correlation against hard labels."""
    found = _rows(runs, "variant=rc+drop", "variant=hard+drop")
    return conclude(found, _data(runs), missing="repair with variant=rc+drop and hard+drop")


@judge("R09")
def replacing_beats_dropping(runs: Runs) -> Finding:
    """Half-replaced pairs against dropped ones."""
    found = _rows(runs, "", "variant=rc+drop")
    return conclude(found, _data(runs), missing="repair with variant=rc+drop")


def _sweep(runs: Runs, name: str) -> list[Difference]:
    """Usual value of an option minus every other recorded one."""
    table = select(runs.retrieval, method="repair")
    variants = sorted({v for v in table.get("variant", ()) if v.startswith(f"{name}=") and "," not in v})
    return [
        d for v in variants for d in compare(table, {"variant": ""}, {"variant": v}, name=f"usual − {v},")
    ]


@judge("R12")
def bank_size(runs: Runs) -> Finding:
    """The usual bank against larger and smaller ones."""
    return conclude(_sweep(runs, "bank_size"), _data(runs), missing="repair with other bank sizes")


@judge("R13")
def eta_hardly_matters(runs: Runs) -> Finding:
    """How well mismatched pairs are found, over eta."""
    table = select(runs.retrieval, method="repair")
    variants = sorted({v for v in table.get("variant", ()) if v.startswith("eta=") and "," not in v})
    found = [
        d
        for v in variants
        for d in compare(
            table, {"variant": ""}, {"variant": v}, "replaced_precision", digits=3, name=f"usual − {v},"
        )
    ]
    inside = [d for d in found if d.n > 1 and d.sign == "open"]
    counted = [d for d in found if d.n > 1]
    verdict = HOLDS if counted and len(inside) == len(counted) else verdict_of(counted) and PARTLY
    lead = "precision of the pairs taken as mismatched"
    return conclude(found, _data(runs), verdict=verdict, lead=lead, missing="repair with other values of eta")


@judge("R14")
def tau_is_best_in_the_middle(runs: Runs) -> Finding:
    """tau = 0.15 against smaller and larger values."""
    return conclude(_sweep(runs, "tau"), _data(runs), missing="repair with other values of tau")


def _values(runs: Runs, column: str, minus: float | str, method: str = "repair") -> list[Difference]:
    """A diagnostic of the last epoch minus a number or another column, per condition."""
    table, found = select(usual(runs), method=method), []
    if column not in table or (isinstance(minus, str) and minus not in table):
        return []
    for at, part in conditions_of(table, ("dataset", "preset", "model", "protocol", "mrate")):
        part = part.dropna(subset=[column])
        base = part[minus] if isinstance(minus, str) else minus
        found.append(Difference(tuple(float(v) for v in part[column] - base), f"{method} {at}", digits=3))
    return [d for d in found if d.n]


@judge("R15")
def labels_separate(runs: Runs) -> Finding:
    """Area under the ROC curve of the rank correlation, truth against matched."""
    found = _values(runs, "rc_auc", SEPARATES)
    lead = f"area under the ROC curve of rank correlation minus {SEPARATES:g} (from there it separates)"
    return conclude(found, _data(runs), lead=lead, missing="repair with diagnostics")


@judge("R19")
def both_below_eta_is_precise(runs: Runs) -> Finding:
    """Share of really mismatched pairs among those taken as mismatched by both networks."""
    high, chance = _values(runs, "replaced_precision", ACCURATE), _values(runs, "replaced_precision", "mrate")
    verdict = verdict_of(high)
    verdict = PARTLY if verdict != HOLDS and verdict_of(chance) == HOLDS else verdict
    lead = f"precision of the selected pairs minus {ACCURATE:g} (called high from there)"
    return conclude(high, _data(runs), verdict=verdict, lead=lead, missing="repair with diagnostics")


@judge("R21")
def anchors_are_safe(runs: Runs) -> Finding:
    """At least 10 % of pairs match and 1 % do not: the true rate of every recorded draw."""
    table = runs.retrieval
    table = table.dropna(subset=["true_rate"]) if "true_rate" in table else table.iloc[:0]
    if table.empty:
        return conclude([], "", missing="any method, with the truth")
    by_rate = table.groupby("mrate")["true_rate"].agg(["min", "max"])
    ok = (1 - by_rate["max"] >= TRUSTED_SHARE) & (by_rate["min"] >= WRONG_SHARE)
    draws = int(table["noise_checksum"].nunique())
    shown = "; ".join(
        f"rate {rate:g}: {100 * row['min']:.2f} to {100 * row['max']:.2f} % wrong"
        for rate, row in by_rate.iterrows()
    )
    verdict = HOLDS if ok.all() else PARTLY
    said = f"{draws} recorded draws of noise. {shown}. At rate 0 the lower anchor is a matched pair."
    return Finding(verdict, said, draws, data_of(table), "count of the drawn noise")


@judge("R23")
def posterior_is_skewed(runs: Runs) -> Finding:
    """Share of pairs called clean minus the share that is clean, Gaussian mixtures of NCR and REPAIR."""
    found = []
    for method in ("ncr", "repair"):
        table = select(usual(runs), method=method)
        if "called_matched" not in table:
            continue
        table = table.assign(
            called=table["called_matched"] / table["train_pairs"], clean=1 - table["true_rate"]
        )
        for at, part in conditions_of(
            table.dropna(subset=["called"]), ("dataset", "model", "protocol", "mrate")
        ):
            values = tuple(float(v) for v in part["called"] - part["clean"])
            found.append(Difference(values, f"{method} {at}", digits=3))
    lead = "share called clean minus share that is clean"
    every = usual(runs)
    both = data_of(every[every["method"].isin(("ncr", "repair"))])
    return conclude(found, both, lead=lead, missing="ncr and repair with diagnostics")
